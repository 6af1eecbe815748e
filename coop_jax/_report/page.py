"""A plan as one HTML page that needs nothing else: data, style and script inside.

The page draws SVG itself (`page.js`), so that it opens offline, years later, without a
library.
"""

import dataclasses
import importlib.resources
import json
from typing import TYPE_CHECKING, Any

from .table import shortened
from .timeline import (
    COLORS,
    POOL,
    Box,
    Timeline,
    after,
    before,
    places_of_program_order,
)

if TYPE_CHECKING:
    from .._plan import Plan

_LARGEST_AT_PEAK = 12
_COLUMNS = [field.name for field in dataclasses.fields(Box)]


def page(plan: "Plan") -> str:
    """The HTML of a plan."""
    # Script ends at the first `</` whatever surrounds it.
    data = json.dumps(_content(plan), separators=(",", ":")).replace("</", "<\\/")
    html = _read("page.html")
    for mark, text in (
        ("/*STYLE*/", _read("page.css")),
        ("/*SCRIPT*/", _read("page.js")),
        ("/*DATA*/", data),
    ):
        html = html.replace(mark, text)
    return html


def _read(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text("utf-8")


def _content(plan: "Plan") -> dict[str, Any]:
    planned, written = after(plan), before(plan)
    edges = [0, *places_of_program_order(plan)]
    return {
        "title": f"coop_jax plan {plan.fingerprint}",
        "summary": str(plan),
        "table": plan.table(),
        "fixed": list(planned.fixed.items()),
        "pool": POOL,
        "colors": COLORS,
        "columns": _COLUMNS,
        "budget": plan.budget,
        "measured": plan.measured.total,
        "unplanned": plan.unplanned.total,
        "isPlanned": plan.is_planned,
        "after": _program(planned),
        "before": _program(written) | {"edges": edges},
        "peak": _peak(planned),
    }


def _program(timeline: Timeline) -> dict[str, Any]:
    return {
        "steps": [shortened(step) for step in timeline.steps],
        "again": timeline.is_again,
        "block": timeline.block,
        "boxes": [
            [
                shortened(x) if isinstance(x, str) else x
                for x in dataclasses.astuple(box)
            ]
            for box in timeline.boxes
        ],
    }


def _peak(timeline: Timeline) -> list[list[Any]]:
    largest = timeline.alive(timeline.peak)[:_LARGEST_AT_PEAK]
    rows: list[list[Any]] = [
        [box.size, box.name, box.type, box.category, shortened(box.source)]
        for box in largest
    ]
    rows.append([timeline.fragmentation, "lost between buffers", "", "", ""])
    return rows
