"""A plan drawn with matplotlib, for files that are images."""

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from .._budget import format_bytes
from .requirements import require
from .table import shortened
from .timeline import (
    CATEGORIES,
    COLORS,
    POOL,
    Timeline,
    after,
    before,
    places_of_program_order,
)

if TYPE_CHECKING:
    from .._plan import Plan

MIB = 1024**2
_LARGEST_AT_PEAK = 5
_WIDEST = 34


def draw(plan: "Plan", path: str | os.PathLike[str]) -> None:
    """Writes the picture of a plan; the suffix decides the kind of image.

    Raises:
      ImportError: matplotlib is not installed.
    """
    require("matplotlib", "plot", "pictures")
    from matplotlib.figure import Figure

    planned = after(plan)
    figure = Figure(figsize=(13, 8.5), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _draw_live_bytes(top, plan, planned)
    _draw_addresses(bottom, planned)
    figure.suptitle(_title(plan), fontsize=11)
    figure.savefig(path, dpi=110)


def _title(plan: "Plan") -> str:
    return (
        f"coop_jax plan {plan.fingerprint}: {format_bytes(plan.unplanned.total)} as "
        f"written, {format_bytes(plan.measured.total)} as planned (measured by XLA), "
        f"{plan.flops - 1:+.1%} flops"
    )


def _draw_live_bytes(axes: Any, plan: "Plan", planned: Timeline) -> None:
    steps = np.arange(len(planned.steps) + 1)
    stacks = planned.stacks()
    shown = [name for name in CATEGORIES if stacks[name].any()]
    bottom = np.zeros(len(planned.steps))
    for name in shown:
        top = bottom + stacks[name] / MIB
        axes.stairs(top, steps, baseline=bottom, fill=True, color=COLORS[name],
                    label=name)  # fmt: skip
        bottom = top
    if plan.is_planned:
        edges = np.array([0, *places_of_program_order(plan)])
        written = before(plan).live() / MIB
        axes.stairs(written, edges, color="0.35", lw=1.2, label="as written, modelled")
        axes.axhline(plan.unplanned.total / MIB, color="0.35", ls=":", lw=1,
                     label="as written, measured")  # fmt: skip
    if plan.budget is not None:
        axes.axhline(plan.budget / MIB, color="black", ls="--", lw=1.2, label="budget")
    axes.axhline(plan.measured.total / MIB, color="black", ls=":", lw=1,
                 label="planned, measured")  # fmt: skip
    again = [i for i, is_again in enumerate(planned.is_again) if is_again]
    axes.plot(again, np.zeros(len(again)), "|", color=COLORS["recomputed"], ms=7,
              clip_on=False, zorder=5)  # fmt: skip
    _explain_peak(axes, planned)
    axes.set_ylabel("bytes alive (MiB)")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.005, 1.0))


def _explain_peak(axes: Any, planned: Timeline) -> None:
    if not planned.steps:
        return
    peak = planned.peak
    live = planned.live()[peak]
    lines = [f"{format_bytes(int(live))} alive at the peak,", f"step {peak}:"]
    for box in planned.alive(peak)[:_LARGEST_AT_PEAK]:
        where = shortened(box.source).partition(" ")[0][-_WIDEST:]
        lines += [f"{format_bytes(box.size):>10} {box.name}", f"           {where}"]
    lines.append(f"packing adds {format_bytes(planned.fragmentation)}")
    axes.plot([peak + 0.5], [live / MIB], "v", color="black", ms=7, zorder=6)
    axes.text(1.012, 0.0, "\n".join(lines), transform=axes.transAxes, va="bottom",
              fontsize=7, family="monospace")  # fmt: skip


def _draw_addresses(axes: Any, planned: Timeline) -> None:
    for name in POOL:
        boxes = [box for box in planned.boxes if box.category == name]
        if not boxes:
            continue
        x = np.array([box.start for box in boxes])
        width = np.array([box.end - box.start for box in boxes])
        y = np.array([box.offset for box in boxes]) / MIB
        height = np.array([box.size for box in boxes]) / MIB
        # One collection draws thousands of boxes at once.
        corners = np.stack(
            [np.stack([x, x + width, x + width, x], 1),
             np.stack([y, y, y + height, y + height], 1)],
            axis=2,
        )  # fmt: skip
        axes.add_collection(_polygons(corners, COLORS[name]))
    axes.axhline(planned.block / MIB, color="black", lw=0.8)
    axes.set_xlim(0, max(1, len(planned.steps)))
    axes.set_ylim(0, max(1e-6, planned.block / MIB) * 1.02)
    axes.set_xlabel("steps of the planned program (red marks: computed again)")
    axes.set_ylabel("offset in the block (MiB), modelled")


def _polygons(corners: np.ndarray, color: str) -> Any:
    from matplotlib.collections import PolyCollection

    return PolyCollection(
        list(corners), facecolors=color, edgecolors="white", linewidths=0.25
    )
