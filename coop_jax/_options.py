"""Checks of the options of `coop_jax.remat`, before anything is traced."""

import difflib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from ._budget import Budget
from ._plan import Plan
from ._planning.policies import PLANNERS

COST_MODELS = ("roofline", "measured")

_PLACED = "put the arguments on the device (`jax.device_put`) that is to run the step."
_LOST = {
    "backend": _PLACED,
    "device": _PLACED,
}
_JIT_OPTIONS = tuple(
    name
    for name in list(inspect.signature(jax.jit).parameters)[1:]
    if name not in _LOST
)


def check_options(
    budget: Budget,
    policy: Any,
    cost_model: Any,
    time_limit: Any,
    inplace: Any,
    plan: Any,
) -> None:
    """Refuses options of `remat` that are unknown or contradict each other.

    Raises:
      ValueError, TypeError: the option, what it was, and what it may be.
    """
    if policy not in PLANNERS:
        known = ", ".join(map(repr, PLANNERS))
        raise ValueError(f"policy {policy!r} is not one of {known}.")
    if cost_model not in COST_MODELS:
        known = ", ".join(map(repr, COST_MODELS))
        raise ValueError(f"cost_model {cost_model!r} is not one of {known}.")
    if not isinstance(time_limit, int | float) or not time_limit > 0:
        raise ValueError(f"time_limit is seconds above 0, not {time_limit!r}.")
    if not (isinstance(inplace, bool) or inplace == "auto"):
        raise ValueError(f'inplace {inplace!r} is not one of "auto", True, False.')
    if plan is None:
        return
    if not isinstance(plan, Plan):
        raise TypeError(
            f"`plan` is a coop_jax.Plan, not {type(plan).__name__}: read a file with "
            "`coop_jax.load_plan(path)`."
        )
    if budget.kind != "device":
        raise ValueError(
            "give `budget` or `plan`, not both: a plan has the budget it was made for."
        )


def check_jit_options(options: dict[str, Any], function: Callable) -> None:
    """Refuses options that `jax.jit` does not take, or that planning would lose.

    Raises:
      TypeError: the option, and what to do instead.
    """
    for name in options:
        if name in _LOST:
            raise TypeError(f"`coop_jax.remat` cannot take `{name}`: {_LOST[name]}")
        if name not in _JIT_OPTIONS:
            known = [*(inspect.signature(function).parameters), *_JIT_OPTIONS]
            near = difflib.get_close_matches(name, known, 1)
            meant = (
                f"Did you mean `{near[0]}`?" if near else "See `help(coop_jax.remat)`."
            )
            raise TypeError(f"`coop_jax.remat` has no option `{name}`. {meant}")


def check_leaves(leaves: Sequence[Any]) -> None:
    """Refuses arguments that a planned program cannot have.

    Raises:
      TypeError: what one is, and what to do instead.
    """
    for leaf in leaves:
        if isinstance(leaf, jax.Ref):
            raise TypeError(
                "an argument is a `jax.Ref`, and `coop_jax` only rewrites steps of "
                "values. Pass its value (`ref[...]`), and return the new one; "
                "references made inside the step are fine."
            )
        aval = jax.typeof(leaf)
        if not all(isinstance(size, int) for size in aval.shape):
            raise TypeError(
                f"an argument has the symbolic shape {aval.shape}, and bytes are those "
                "of numbers. Plan for concrete shapes; a step is planned for each anew."
            )
        if _is_turned(leaf):
            raise TypeError(
                f"an argument, {aval.str_short()}, has a layout of its own, "
                f"{leaf.format.layout}, and those of a planned step have JAX's. Pass "
                "it without."
            )


def _is_turned(leaf: Any) -> bool:
    """Whether an array's dimensions do not lie in their order."""
    if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
        return False
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        return False
    layout = getattr(getattr(leaf, "format", None), "layout", None)
    order = getattr(layout, "major_to_minor", None)
    return order is not None and tuple(order) != tuple(range(leaf.ndim))
