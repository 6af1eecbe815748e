"""A frontier as a picture and as comma-separated values."""

import csv
import io
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .files import IMAGES, suffix_of
from .requirements import require

if TYPE_CHECKING:
    from .._frontier import Frontier

MIB = 1024**2


def knee_of(points: Sequence[tuple[float, float]]) -> int:
    """Number of the point farthest below the line between the first and the last.

    Args:
      points: (bytes, cost), from one end of the curve to the other.
    """
    (x0, y0), (x1, y1) = points[0], points[-1]
    if x0 == x1 or y0 == y1:
        return len(points) - 1

    def below(i: int) -> float:
        x, y = points[i]
        return (x - x0) / (x1 - x0) - (y - y0) / (y1 - y0)

    return max(range(len(points)), key=below)


def csv_text(frontier: "Frontier") -> str:
    """Rows of a frontier, with a header. Bytes are measured by XLA."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        (
            "name",
            "budget",
            "bytes",
            "temporary",
            "fixed",
            "flops",
            "time",
            "fingerprint",
        )
    )
    for plan in frontier.plans:
        use = plan.measured
        writer.writerow(
            ("plan", plan.budget, use.total, use.temp, use.fixed, plan.flops, plan.time,
             plan.fingerprint)
        )  # fmt: skip
    for other in frontier.compared:
        use = other.memory
        writer.writerow(
            (other.name, "", use.total, use.temp, use.fixed, other.flops, "", "")
        )
    return text.getvalue()


def draw_curve(frontier: "Frontier", path: str | os.PathLike[str]) -> None:
    """Draws overhead against bytes into an image file."""
    suffix_of(path, IMAGES)
    require("matplotlib", "plot", "pictures")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    sizes = [plan.measured.total / MIB for plan in frontier.plans]
    flops = [100 * (plan.flops - 1) for plan in frontier.plans]
    times = [100 * (plan.time - 1) for plan in frontier.plans]
    axes.plot(sizes, flops, "o-", color="#d1383f", label="flops (counted)")
    axes.plot(sizes, times, "s--", color="#f28e2b", ms=4, label="time (estimated)")
    _mark(axes, frontier)
    for other in frontier.compared:
        at = (other.memory.total / MIB, 100 * (other.flops - 1))
        axes.plot(*at, "D", color="#4e79a7")
        axes.annotate(other.name, at, xytext=(6, 4), textcoords="offset points",
                      fontsize=8, color="#4e79a7")  # fmt: skip
    axes.set_xlabel("bytes of the whole step, measured by XLA (MiB)")
    axes.set_ylabel("overhead (%)")
    axes.grid(color="0.9")
    axes.legend(fontsize=9)
    figure.savefig(path, dpi=110)


def _mark(axes: Any, frontier: "Frontier") -> None:
    """The knee, the step as written, and what lies below the floor."""
    knee, floor = frontier.knee, frontier.floor / MIB
    low = 0.9 * min([floor, *(o.memory.total / MIB for o in frontier.compared)])
    axes.axvspan(low, floor, facecolor="none", edgecolor="0.8", hatch="//", lw=0)
    axes.axvline(floor, color="0.5", lw=1)
    axes.annotate("floor", (floor, 0), xycoords=("data", "axes fraction"), va="bottom",
                  xytext=(3, 3), textcoords="offset points", fontsize=8)  # fmt: skip
    axes.set_xlim(left=low)
    if len(frontier.plans) > 2:
        at = (knee.measured.total / MIB, 100 * (knee.time - 1))
        axes.plot(*at, "o", mfc="none", mec="black", ms=13)
        # The curve bends around that corner, so nothing else is there.
        axes.annotate("knee", at, xytext=(-7, -7), textcoords="offset points",
                      ha="right", va="top", fontsize=9)  # fmt: skip
    written = max(plan.measured.total for plan in frontier.plans)
    axes.annotate("as written", (written / MIB, 0), xytext=(0, 8),
                  textcoords="offset points", ha="right", fontsize=8)  # fmt: skip
