"""What a traced call passes on, and what its `jax.jit` asks of it."""

import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax


class Asked(NamedTuple):
    """What `jax.jit` was given besides the function.

    Attributes:
      inputs: `in_shardings`, flat, None where there is none.
      outputs: `out_shardings`, likewise.
      compiler_options: by name.
    """

    inputs: Sequence[Any] = ()
    outputs: Sequence[Any] = ()
    compiler_options: Mapping[str, Any] = MappingProxyType({})


NOTHING_ASKED = Asked()


def dynamic_leaves(traced: Any, args: tuple, kwargs: dict) -> list[Any]:
    """Flat arguments without the static ones, which `traced` leaves out."""
    return jax.tree.leaves(_dynamic(traced, args, kwargs))


def asked_of(jitted: Any, traced: Any, args: tuple, kwargs: dict) -> Asked:
    """What a function's `jax.jit` was given, but for compiler options.

    It is in the equation that calling the function makes in another trace.

    Args:
      jitted: the function under `jax.jit`.
      traced: its `jax.stages.Traced` for the call.
      args: positional arguments of the call.
      kwargs: named ones.

    Raises:
      TypeError: it was given compiler options.
    """
    positions = _dynamic_positions(args, traced.args_info[0])

    def call(dynamic: tuple, named: dict) -> Any:
        whole = list(args)
        for k, arg in zip(positions, dynamic, strict=True):
            whole[k] = arg
        return jitted(*whole, **(kwargs | named))

    dynamic = _dynamic(traced, args, kwargs)
    try:
        *_, equation = jax.make_jaxpr(call)(*dynamic).eqns
    except ValueError as error:
        if "compiler_options" not in str(error):
            raise
        raise TypeError(
            "the step is under a `jax.jit` with compiler options, which JAX shows to "
            "nobody. Leave them out there, and give them to "
            "`coop_jax.remat(step, budget, compiler_options=...)`."
        ) from error
    params, count = equation.params, traced.in_tree.num_leaves
    return Asked(
        _specified(params["in_shardings"])[-count:] if count else [],
        _specified(params["out_shardings"]),
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
