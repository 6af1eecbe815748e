"""Finds the dynamic arguments of a traced call among static ones."""

import itertools
from typing import Any

import jax


def dynamic_leaves(traced: Any, args: tuple, kwargs: dict) -> list[Any]:
    """Flat arguments without the static ones, which `traced` leaves out."""
    positional, named = traced.args_info
    chosen = _dynamic_arguments(args, positional)
    leaves = [leaf for arg in chosen for leaf in jax.tree.leaves(arg)]
    leaves += jax.tree.leaves({name: kwargs[name] for name in named})
    return leaves


def _dynamic_arguments(args: tuple, infos: tuple) -> tuple:
    """The arguments, in order, whose structure and types are those of `infos`."""
    if len(args) == len(infos):
        return args
    matches = [
        chosen
        for chosen in itertools.combinations(args, len(infos))
        if all(_matches(a, info) for a, info in zip(chosen, infos, strict=True))
    ]
    if len(matches) != 1:
        raise TypeError(
            f"{len(args)} positional arguments, of which {len(args) - len(infos)} are "
            f"static, can be matched in {len(matches)} ways to what `jax.jit` traced. "
            "Make the static ones `static_argnames` and pass them by keyword."
        )
    return matches[0]


def _matches(argument: Any, info: Any) -> bool:
    if jax.tree.structure(argument) != jax.tree.structure(info):
        return False
    for leaf, wanted in zip(
        jax.tree.leaves(argument), jax.tree.leaves(info), strict=True
    ):
        if not hasattr(leaf, "shape") and not isinstance(leaf, int | float | complex):
            return False
        aval = jax.typeof(leaf)
        if (aval.shape, aval.dtype) != (wanted.shape, wanted.dtype):
            return False
    return True
