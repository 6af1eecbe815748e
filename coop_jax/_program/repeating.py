"""Which equations may run more than once."""

from typing import Any

import jax.extend.core as jexc

from .trace import Equation

_COLLECTIVES = {
    "all_gather", "all_gather_done", "all_gather_invariant", "all_gather_reduced",
    "all_gather_start", "all_reduce", "all_to_all", "pbroadcast", "pbroadcast_dynamic",
    "pmax", "pmin", "ppermute", "precv", "psend", "psum", "psum_done", "psum_invariant",
    "psum_start", "psum2", "psum_scatter", "ragged_all_to_all", "reduce_scatter",
    "unreduced_pmax", "unreduced_pmin", "unreduced_psum", "unreduced_reduce_scatter",
}  # fmt: skip
_STATEFUL = {"rng_uniform", "rng_bit_generator_stateful", "infeed", "outfeed"}


def is_recomputable(equation: Equation, repeats_collectives: bool = False) -> bool:
    """Whether the equation may run more than once."""
    if equation.effects or equation.is_pinned or is_stateful(equation):
        return False
    return repeats_collectives or not _COLLECTIVES & _names(equation)


def is_stateful(equation: Any) -> bool:
    """Whether it gives something else each time it runs, also inside of a loop."""
    return bool(_STATEFUL & _names(equation))


def _names(equation: Any) -> set[str]:
    return {equation.primitive.name, *names_inside(equation)}


def names_inside(equation: Any) -> set[str]:
    """Primitives in the programs that an equation, ours or JAX's, holds."""
    names: set[str] = set()
    todo = list(jexc.jaxprs_in_params(equation.params))
    while todo:
        body = todo.pop()
        for eqn in getattr(body, "jaxpr", body).eqns:
            names.add(eqn.primitive.name)
            todo += jexc.jaxprs_in_params(eqn.params)
    return names
