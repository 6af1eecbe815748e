"""`coop_jax.largest_batch`: the largest batch whose step fits a budget."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._budget import BudgetLike, parse_budget
from ._errors import BudgetError
from ._fitting.progress import stage
from ._plan import Plan
from ._remat import remat

_MOST_DOUBLINGS = 40


@dataclass(frozen=True, slots=True)
class LargestBatch:
    """What `largest_batch` found.

    Attributes:
      size: the batch size.
      plan: its plan.

    Example:
      >>> def make_args(batch):
      ...     return state, jax.ShapeDtypeStruct((batch, 64), jnp.float32)
      >>> found = coop_jax.largest_batch(make_args, train_step, "12GiB", most=4)
      >>> found.size, found.plan.measured.total <= 12 * 1024**3
      (4, True)
    """

    size: int
    plan: Plan

    def __str__(self) -> str:
        return f"batch of {self.size}\n{self.plan}"


def largest_batch(
    make_args: Callable[[int], tuple],
    step: Callable[..., Any],
    budget: BudgetLike,
    *,
    multiple_of: int = 1,
    most: int | None = None,
    **options: Any,
) -> LargestBatch:
    """Finds the largest batch whose step fits a budget.

    Doubles the batch until no plan fits, then halves the interval in between. Each size
    tried is planned, which compiles the step several times.

    Args:
      make_args: batch size -> the step's arguments, as a tuple of arrays or
        `jax.ShapeDtypeStruct`s.
      step: the training step, as for `coop_jax.remat`.
      budget: bytes per device, as for `coop_jax.remat`, but no share of the unplanned
        bytes and not `"min"`, which any batch meets.
      multiple_of: sizes are multiples of it; the first one tried.
      most: largest size to try.
      **options: what `coop_jax.remat` takes.

    Returns:
      The size and its plan.

    Raises:
      BudgetError: the smallest batch does not fit.
      ValueError: `budget` is relative, or a size is not positive.

    Example:
      >>> def make_args(batch):
      ...     return state, jax.ShapeDtypeStruct((batch, 64), jnp.float32)
      >>> found = coop_jax.largest_batch(
      ...     make_args, train_step, "12GiB", multiple_of=8, most=32
      ... )
      >>> found.size
      32
    """
    if parse_budget(budget).kind in ("share", "min"):
        raise ValueError(
            f"`budget={budget!r}` is relative to each batch's own step, so any batch "
            'meets it. Give bytes, for example "12GiB".'
        )
    if multiple_of < 1 or (most is not None and most < multiple_of):
        raise ValueError(
            f"`multiple_of={multiple_of}` and `most={most}` leave no batch size to try."
        )
    planned = remat(step, budget, **options)

    def plan(units: int) -> Plan:
        args = make_args(units * multiple_of)
        if not isinstance(args, tuple):
            raise TypeError(
                f"`make_args` returns the step's arguments as a tuple, not as "
                f"{type(args).__name__}: write `return (state, batch)`."
            )
        stage("batch of %d", units * multiple_of)
        return planned.plan(*args)

    units, found = _search(plan, None if most is None else most // multiple_of)
    return LargestBatch(units * multiple_of, found)


def _search(plan: Callable[[int], Plan], most: int | None) -> tuple[int, Plan]:
    """The largest number, at most `most`, that `plan` raises no BudgetError for."""
    good, best = 1, plan(1)
    bad = None if most is None else most + 1
    for _ in range(_MOST_DOUBLINGS):
        if bad is not None and bad - good <= 1:
            break
        units = 2 * good if bad is None else min(2 * good, (good + bad) // 2)
        try:
            good, best = units, plan(units)
        except BudgetError:
            bad = units
    return good, best
