"""A plan as a trace for Perfetto (https://ui.perfetto.dev): Chrome's JSON format.

Each program, as written and as planned, is a process with its operations as slices and
the bytes of each category as counters. Times are the cost model's estimates.
"""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .._planning.types import Schedule
from .timeline import Timeline, after, before

if TYPE_CHECKING:
    from .._plan import Plan


def trace(plan: "Plan") -> str:
    """The trace as JSON text."""
    events = [
        *_events(plan, after(plan), plan.schedule, 1, "planned"),
        *_events(plan, before(plan), plan.problem.program_order, 2, "as written"),
    ]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events})


def _events(
    plan: "Plan", timeline: Timeline, schedule: Schedule, process: int, name: str
) -> Iterator[dict[str, Any]]:
    yield {
        "ph": "M", "name": "process_name", "pid": process, "tid": 0,
        "args": {"name": f"{name} (estimated times)"},
    }  # fmt: skip
    stacks = timeline.stacks()
    shown = [category for category, sizes in stacks.items() if sizes.any()]
    now = 0.0
    for step, op in enumerate(schedule):
        micros = plan.problem.ops[op].cost * 1e6
        label, _, source = timeline.steps[step].partition(" at ")
        kind = "recomputed" if timeline.is_again[step] else "computed"
        yield {
            "ph": "X", "name": label, "cat": kind, "pid": process, "tid": 1,
            "ts": now, "dur": micros, "args": {"source": source, "step": step},
        }  # fmt: skip
        yield {
            "ph": "C", "name": "bytes alive", "pid": process, "tid": 1, "ts": now,
            "args": {category: int(stacks[category][step]) for category in shown},
        }  # fmt: skip
        now += micros
