"""Errors a user may want to catch: no such budget, no such plan. Imports no JAX."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ._budget import format_bytes

_MOST_LISTED = 10

_GENERAL_ADVICE = (
    "Make the batch smaller, or accumulate gradients over smaller ones.",
)


class LiveBuffer(NamedTuple):
    """A buffer that is alive where a program uses the most memory.

    Attributes:
      name: the operation that writes it.
      size: bytes.
      source: `file:line` of the user's code, or "" if unknown.
    """

    name: str
    size: int
    source: str = ""


class BudgetError(ValueError):
    """A step cannot be brought within its budget.

    Attributes:
      budget: bytes that were asked for.
      floor: smallest bytes that any program tried came to, or None if none was tried.
      buffers: what is alive at that program's peak, largest first.
      advice: sentences on what would help, beside the usual ones.
      plan: the `Plan` of that program, if there is one; its `explain()` tells more.

    Example:
      >>> try:
      ...     coop_jax.remat(train_step, "1kB").plan(state, batch)
      ... except coop_jax.BudgetError as error:
      ...     print(error.floor, "bytes are the fewest that were reached")
    """

    def __init__(
        self,
        budget: int,
        floor: int | None = None,
        buffers: Sequence[tuple[str, int, str]] = (),
        advice: Sequence[str] = (),
        plan: Any = None,
    ) -> None:
        self.budget = budget
        self.floor = floor
        live = [LiveBuffer(*buffer) for buffer in buffers]
        self.buffers = tuple(sorted(live, key=lambda buffer: -buffer.size))
        self.advice = tuple(advice)
        self.plan = plan
        parts = [_headline(budget, floor), _listing(self.buffers)]
        parts.append(_advice_text(floor, self.advice))
        super().__init__("\n".join(part for part in parts if part))

    def __reduce__(self):
        # An exception is otherwise rebuilt from its message alone.
        given = (self.budget, self.floor, self.buffers, self.advice, self.plan)
        return BudgetError, given


_PLAN_AGAIN = "Plan again: `coop_jax.remat(step, budget).plan(*args).save(path)`."


class PlanError(ValueError):
    """A saved plan cannot be used.

    Attributes:
      summary: what was refused.
      reasons: sentences on what stands in the way.
      remedy: what to do.

    Example:
      >>> try:
      ...     coop_jax.remat(jax.nn.relu, plan=step.plan(state, batch)).plan(batch)
      ... except coop_jax.PlanError as error:
      ...     print(error.reasons[0])
    """

    def __init__(
        self, summary: str, reasons: Sequence[str], remedy: str = _PLAN_AGAIN
    ) -> None:
        self.summary = summary
        self.reasons = tuple(reasons)
        self.remedy = remedy
        lines = [f"`coop_jax`: {summary}."]
        lines += [f"  - {reason}" for reason in self.reasons]
        super().__init__("\n".join([*lines, remedy]))

    def __reduce__(self):
        return PlanError, (self.summary, self.reasons, self.remedy)


def _headline(budget: int, floor: int | None) -> str:
    asked = f"`coop_jax.remat` cannot run this step in {_exact(budget)}"
    if floor is None:
        return f"{asked}: no program of that size was found."
    return f"{asked}: the smallest program it found takes {_exact(floor)}."


def _listing(buffers: tuple[LiveBuffer, ...]) -> str:
    if not buffers:
        return ""
    lines = ["Largest buffers alive at its peak:"]
    for buffer in buffers[:_MOST_LISTED]:
        size = format_bytes(buffer.size)
        lines.append(f"  {size:>10}  {buffer.name}  {buffer.source}".rstrip())
    rest = buffers[_MOST_LISTED:]
    if rest:
        size = format_bytes(sum(buffer.size for buffer in rest))
        lines.append(f"  {size:>10}  in {len(rest)} smaller ones")
    return "\n".join(lines)


def _advice_text(floor: int | None, advice: tuple[str, ...]) -> str:
    if floor is None:
        first = 'Raise `budget`, or pass `budget="min"` for the smallest reachable.'
    else:
        first = f"Raise `budget` to at least {floor:,} bytes."
    lines = [f"  - {line}" for line in (first, *advice, *_GENERAL_ADVICE)]
    return "\n".join(["What would help:", *lines])


def _exact(size: int) -> str:
    return f"{size:,} bytes ({format_bytes(size)})"
