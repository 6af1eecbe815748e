"""The bodies of loops and branches, and running others in their place."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.extend.core as jexc
from jax import lax

from .._program.trace import Equation

type Body = Callable[..., list[Any]]
"""Flat operands -> flat results: of one iteration, or of a branch."""


def bodies_of(equation: Equation) -> tuple[Any, ...]:
    """The closed jaxprs of a `scan` or `while`'s body, or of a `cond`'s branches.

    None of anything else, nor where effects must happen in order.
    """
    params = equation.params
    if equation.effects:
        return ()
    match equation.primitive.name:
        case "scan":
            return (params["jaxpr"],)
        case "while":
            return (params["body_jaxpr"],)
        case "cond" if params.get("branches_platforms") is None:
            return tuple(params["branches"])
    return ()


def iterations(equation: Equation) -> int:
    """How often a body runs, as far as that is known: a `while` counts as once."""
    return equation.params["length"] if equation.primitive.name == "scan" else 1


def run_with(equation: Equation, bodies: Sequence[Body], *operands: Any) -> list[Any]:
    """Runs the loop or branch on `operands` with other bodies."""
    match equation.primitive.name:
        case "scan":
            return _scan(equation.params, bodies[0], operands)
        case "while":
            return _while(equation.params, bodies[0], operands)
    index, *rest = operands
    return list(lax.switch(index, bodies, *rest))


def _scan(params: dict[str, Any], body: Body, operands: Sequence[Any]) -> list[Any]:
    sizes = [len(part) for part in params["ft_in"].unpack()]
    consts, init, xs = split(operands, sizes)

    def step(carry: list[Any], rows: list[Any]) -> Any:
        outputs = body(*consts, *carry, *rows)
        return outputs[: len(init)], outputs[len(init) :]

    carry, rows = lax.scan(
        step,
        init,
        xs,
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    return [*carry, *rows]


def _while(params: dict[str, Any], body: Body, operands: Sequence[Any]) -> list[Any]:
    sizes = [params["cond_nconsts"], params["body_nconsts"]]
    asked, consts, init = split(operands, [*sizes, len(operands) - sum(sizes)])
    goes_on = partial(jexc.jaxpr_as_fun(params["cond_jaxpr"]), *asked)
    return lax.while_loop(
        lambda carry: goes_on(*carry)[0], lambda carry: body(*consts, *carry), init
    )


def split(values: Sequence[Any], sizes: Sequence[int]) -> list[list[Any]]:
    """Consecutive parts of these sizes."""
    parts, start = [], 0
    for size in sizes:
        parts.append(list(values[start : start + size]))
        start += size
    return parts
