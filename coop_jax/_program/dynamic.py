"""What a traced call passes on, and what its `jax.jit` asks of it."""

import inspect
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


def dynamic_positions(
    jitted: Any, traced: Any, args: tuple, static: Mapping[str, Any]
) -> tuple[int, ...]:
    """Which positional arguments are not static; `traced` leaves out those that are.

    Args:
      jitted: the function under `jax.jit`.
      traced: its `jax.stages.Traced` for the call.
      args: positional arguments of the call.
      static: its `static_argnums` and `static_argnames`, as far as they are known.

    Raises:
      TypeError: they are not, and several could be.
    """
    infos = traced.args_info[0]
    if len(args) == len(infos):
        return tuple(range(len(args)))
    chosen = set(range(len(args))) - _static_positions(jitted, static, len(args))
    if len(chosen) == len(infos):
        return tuple(sorted(chosen))
    matches = [
        chosen
        for chosen in itertools.combinations(range(len(args)), len(infos))
        if all(_matches(args[k], x) for k, x in zip(chosen, infos, strict=True))
    ]
    if len(matches) != 1:
        raise TypeError(
            f"{len(args)} positional arguments, of which {len(args) - len(infos)} are "
            f"static, can be matched in {len(matches)} ways to what `jax.jit` traced. "
            "Make the static ones `static_argnames` and pass them by keyword, or give "
            "`static_argnums` to `coop_jax.remat` instead of to `jax.jit`."
        )
    return matches[0]


def _static_positions(jitted: Any, static: Mapping[str, Any], count: int) -> set[int]:
    """Of so many positional arguments, those that are static by number or name."""

    def several(given: Any) -> tuple:
        return (given,) if isinstance(given, int | str) else tuple(given or ())

    numbers, names = static.get("static_argnums"), static.get("static_argnames")
    if numbers is None:
        # As JAX does it: names are also for positions only where no numbers are given.
        parameters = inspect.signature(jitted).parameters.values()
        numbers = [
            k
            for k, parameter in enumerate(parameters)
            if parameter.kind == parameter.POSITIONAL_OR_KEYWORD
            and parameter.name in several(names)
        ]
    return {k % count for k in several(numbers) if -count <= k < count}


def dynamic(
    traced: Any, args: tuple, kwargs: dict, positions: Sequence[int]
) -> tuple[tuple, dict]:
    """The call without what is static."""
    named = {name: kwargs[name] for name in traced.args_info[1]}
    return tuple(args[k] for k in positions), named


def asked_of(
    jitted: Any, traced: Any, args: tuple, kwargs: dict, positions: Sequence[int]
) -> Asked:
    """What a function's `jax.jit` was given, but for compiler options.

    It is in the equation that calling the function makes in another trace.

    Args:
      jitted: the function under `jax.jit`.
      traced: its `jax.stages.Traced` for the call.
      args: positional arguments of the call.
      kwargs: named ones.
      positions: of the positional arguments that are not static.

    Raises:
      TypeError: it was given compiler options or layouts.
    """

    def call(some: tuple, named: dict) -> Any:
        whole = list(args)
        for k, arg in zip(positions, some, strict=True):
            whole[k] = arg
        return jitted(*whole, **(kwargs | named))

    dynamic_args = dynamic(traced, args, kwargs, positions)
    try:
        *_, equation = jax.make_jaxpr(call)(*dynamic_args).eqns
    except ValueError as error:
        if "compiler_options" not in str(error):
            raise
        raise TypeError(
            "the step is under a `jax.jit` with compiler options, which JAX shows to "
            "nobody. Leave them out there, and give them to "
            "`coop_jax.remat(step, budget, compiler_options=...)`."
        ) from error
    params, count = equation.params, traced.in_tree.num_leaves
    if any(params["in_layouts"]) or any(params["out_layouts"]):
        raise TypeError(
            "the step's `jax.jit` asks for layouts of its arguments or results, and a "
            "planned step has JAX's own. Give it shardings, without a `Layout`."
        )
    return Asked(
        _specified(params["in_shardings"])[-count:] if count else [],
        _specified(params["out_shardings"]),
    )


def _specified(shardings: Any) -> list[Any]:
    return [s if isinstance(s, jax.sharding.Sharding) else None for s in shardings]


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
