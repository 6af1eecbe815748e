"""What a traced call passes on, and what its `jax.jit` asks of it."""

import itertools
from typing import Any

import jax

type Asked = tuple[list[Any], list[Any]]
"""Shardings of flat arguments and results; None where there is none."""


def dynamic_leaves(traced: Any, args: tuple, kwargs: dict) -> list[Any]:
    """Flat arguments without the static ones, which `traced` leaves out."""
    return jax.tree.leaves(_dynamic(traced, args, kwargs))


def asked_shardings(jitted: Any, traced: Any, args: tuple, kwargs: dict) -> Asked:
    """The `in_shardings` and `out_shardings` of `jax.jit`.

    They are in the equation that calling the function makes in another trace.

    Args:
      jitted: the function under `jax.jit`.
      traced: its `jax.stages.Traced` for the call.
      args: positional arguments of the call.
      kwargs: named ones.
    """
    positions = _dynamic_positions(args, traced.args_info[0])

    def call(dynamic: tuple, named: dict) -> Any:
        whole = list(args)
        for k, arg in zip(positions, dynamic, strict=True):
            whole[k] = arg
        return jitted(*whole, **(kwargs | named))

    dynamic = _dynamic(traced, args, kwargs)
    *_, equation = jax.make_jaxpr(call)(*dynamic).eqns
    count = traced.in_tree.num_leaves
    return (
        _specified(equation.params["in_shardings"])[-count:] if count else [],
        _specified(equation.params["out_shardings"]),
    )


def _specified(shardings: Any) -> list[Any]:
    return [s if isinstance(s, jax.sharding.Sharding) else None for s in shardings]


def _dynamic(traced: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """The call without what is static."""
    positional, named = traced.args_info
    chosen = tuple(args[k] for k in _dynamic_positions(args, positional))
    return chosen, {name: kwargs[name] for name in named}


def _dynamic_positions(args: tuple, infos: tuple) -> tuple[int, ...]:
    """Those of the arguments whose structure and types are `infos`, in order."""
    if len(args) == len(infos):
        return tuple(range(len(args)))
    matches = [
        chosen
        for chosen in itertools.combinations(range(len(args)), len(infos))
        if all(_matches(args[k], x) for k, x in zip(chosen, infos, strict=True))
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
