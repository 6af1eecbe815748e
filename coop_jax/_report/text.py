"""A plan's bytes over program order, drawn with characters for a terminal."""

from typing import TYPE_CHECKING

import numpy as np

from .._budget import format_bytes
from .table import shortened
from .timeline import after, before, places_of_program_order

if TYPE_CHECKING:
    from .._plan import Plan

_LARGEST_AT_PEAK = 5


def timeline_text(plan: "Plan", width: int = 64, height: int = 14) -> str:
    """The planned program as bars, the one as written above them as dots.

    Args:
      plan: what to draw.
      width: columns of the chart.
      height: lines of the chart.
    """
    planned, written = after(plan), before(plan)
    if not planned.steps:
        return "nothing is computed"
    edges = [0, *places_of_program_order(plan)]
    bars = _columns(planned.live(), np.arange(len(planned.steps) + 1), width)
    dots = _columns(written.live(), np.array(edges), width)
    top = max(bars.max(), dots.max(), plan.budget or 0)
    rows = []
    for line in range(height, 0, -1):
        low, high = (line - 1) / height * top, line / height * top
        is_budget = plan.budget is not None and low < plan.budget <= high
        cells = "".join(
            _cell(bar, dot, low, is_budget) for bar, dot in zip(bars, dots, strict=True)
        )
        rows.append(f"{format_bytes(round(high)):>10} |{cells}")
    fixed = sum(planned.fixed.values())
    rows.append(f"{'':>10} +{'-' * width}")
    rows.append(
        f"{'':>12}# planned  . as written  {'- budget  ' if plan.budget else ''}"
        f"({format_bytes(fixed)} of it arguments and outputs)"
    )
    peak = planned.peak
    live = format_bytes(int(planned.live()[peak]))
    rows.append(f"{live} alive at the peak, {shortened(planned.steps[peak])}:")
    rows += [
        f"{format_bytes(box.size):>12}  {box.name}  {shortened(box.source)}".rstrip()
        for box in planned.alive(peak)[:_LARGEST_AT_PEAK]
    ]
    return "\n".join(rows)


def _columns(live: np.ndarray, edges: np.ndarray, width: int) -> np.ndarray:
    """The most bytes alive in each of `width` equal stretches of the planned steps."""
    most = np.zeros(width)
    first = np.minimum(edges[:-1] * width // edges[-1], width - 1)
    last = np.maximum(
        first, np.minimum((edges[1:] * width - 1) // edges[-1], width - 1)
    )
    for size, start, end in zip(live, first, last, strict=True):
        most[start : end + 1] = np.maximum(most[start : end + 1], size)
    return most


def _cell(bar: float, dot: float, low: float, is_budget: bool) -> str:
    if bar > low:
        return "#"
    if is_budget:
        return "-"
    return "." if dot > low else " "
