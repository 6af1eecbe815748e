"""Which bytes are alive when, and where they lie: what the pictures of a plan show.

A step of the planned program is one operation. Bytes are those of the memory model:
live ranges of the schedule, packed as XLA packs them. What XLA
measured is drawn beside them, never mixed in.

Each buffer belongs to one category:

    parameters, optimizer state, inputs   arguments (`Argument.role`)
    outputs      outputs that are not in a donated argument's bytes
    gradients    of the backward pass or after, and of the type of a donated argument
    recomputed   a second or later computation
    kept         waits for a reader over more than 2 % of the program
    temporaries  everything else, workspaces included
"""

import itertools
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from .._planning.buffer_assignment import Tenancy, packed, schedule_tenancies
from .._planning.types import Schedule, ValueId

if TYPE_CHECKING:
    from .._plan import Plan

FIXED = ("parameters", "optimizer state", "inputs", "outputs")
POOL = ("gradients", "kept", "recomputed", "temporaries")
CATEGORIES = FIXED + POOL
COLORS = {
    "parameters": "#4e79a7",
    "optimizer state": "#86b4d6",
    "inputs": "#8f8781",
    "outputs": "#c9c3bf",
    "gradients": "#59a14f",
    "kept": "#f28e2b",
    "recomputed": "#d1383f",
    "temporaries": "#edc948",
}

_LONG_WAIT = 0.02
_SHORTEST_LONG_WAIT = 4


@dataclass(frozen=True, slots=True)
class Box:
    """One value, in the bytes it lies in while it is alive.

    Attributes:
      name: the operation that writes it.
      source: the user's `file:line (function)`.
      type: shape and dtype; "" for a workspace.
      size: bytes.
      offset: bytes from the start of the block.
      start, end: half-open range of steps.
      category: one of `POOL`.
      kind: what the plan does with it, as in `Action.kind`.
    """

    name: str
    source: str
    type: str
    size: int
    offset: int
    start: int
    end: int
    category: str
    kind: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """One program over its steps.

    Attributes:
      boxes: what is in the block, in order of time.
      fixed: bytes of each category of `FIXED`, alive throughout.
      steps: per step, the operation and its source line.
      block: bytes of the block, fragmentation included.
      is_again: per step, whether it computes something again.
    """

    boxes: tuple[Box, ...]
    fixed: dict[str, int]
    steps: tuple[str, ...]
    block: int
    is_again: tuple[bool, ...]

    def stacks(self) -> dict[str, np.ndarray]:
        """Bytes alive at each step, by category."""
        length = len(self.steps)
        stacks = {name: np.full(length, size) for name, size in self.fixed.items()}
        for name in POOL:
            change = np.zeros(length + 2, np.int64)
            for box in self.boxes:
                if box.category == name:
                    change[box.start] += box.size
                    change[min(box.end, length)] -= box.size
            stacks[name] = np.cumsum(change)[:length]
        return stacks

    def live(self) -> np.ndarray:
        """Bytes alive at each step, the fixed ones included."""
        return np.sum(list(self.stacks().values()), axis=0)

    @property
    def peak(self) -> int:
        """The step at which most bytes are alive."""
        return int(np.argmax(self.live())) if self.steps else 0

    def alive(self, step: int) -> list[Box]:
        """What is in the block at a step, largest first."""
        here = [box for box in self.boxes if box.start <= step < box.end]
        return sorted(here, key=lambda box: -box.size)

    @property
    def fragmentation(self) -> int:
        """Bytes of the block that packing loses at the peak."""
        if not self.steps:
            return 0
        return self.block + sum(self.fixed.values()) - int(self.live().max())


def after(plan: "Plan") -> Timeline:
    """The planned program."""
    return _timeline(plan if plan.positions else _as_written(plan), plan.schedule)


def before(plan: "Plan") -> Timeline:
    """The program as it was written."""
    return _timeline(_as_written(plan), plan.problem.program_order)


def _as_written(plan: "Plan") -> "Plan":
    """A plan of the program as it was written, which has no watershed."""
    return replace(plan, problem=replace(plan.problem, has_watershed=False))


def places_of_program_order(plan: "Plan") -> list[int]:
    """Per operation as written, the step where its turn ends in the plan.

    It puts both programs on one axis.
    """
    if not plan.positions:
        return list(range(1, len(plan.problem.ops) + 1))
    counts = [0] * len(plan.problem.ops)
    for runs in plan.positions:
        for at in runs:
            counts[at] += 1
    return list(itertools.accumulate(counts))


def _timeline(plan: "Plan", schedule: Schedule) -> Timeline:
    problem = plan.problem
    buffers, tenancies = schedule_tenancies(problem, schedule)
    assigned = packed(problem, schedule)
    waits = _longest_waits(plan, schedule)
    actions = {action.value: action for action in plan.actions}
    state_types = {a.type for a in plan.arguments if a.role != "inputs"}
    long_wait = max(_SHORTEST_LONG_WAIT, _LONG_WAIT * len(schedule))
    has_run: set[int] = set()
    is_again = []
    for op in schedule:
        is_again.append(op in has_run)
        has_run.add(op)
    names = _op_names(plan)
    last_backward = max(
        (problem.producer[a.value] for a in plan.actions if a.is_backward), default=-1
    )

    def box(tenancy: Tenancy) -> Box:
        name, _, source = names[tenancy.op].partition(" at ")
        action = actions.get(-1 if tenancy.value is None else tenancy.value)
        if action is None:
            name, category = f"workspace of {name}", "temporaries"
        elif is_again[tenancy.start]:
            category = "recomputed"
        else:
            is_long = waits.get((action.value, tenancy.start), 0) > long_wait
            is_late = action.is_backward or (is_long and tenancy.op > last_backward)
            is_gradient = is_late and action.type in state_types
            category = "kept" if is_long else "temporaries"
            category = "gradients" if is_gradient else category
        return Box(
            name,
            source,
            action.type if action else "",
            buffers[tenancy.buffer].size,
            assigned.offsets[tenancy.buffer],
            tenancy.start,
            tenancy.end,
            category,
            action.kind if action else "workspace",
        )

    return Timeline(
        tuple(map(box, tenancies)),
        _fixed(plan),
        tuple(names[op] for op in schedule),
        assigned.peak,
        tuple(is_again),
    )


def _fixed(plan: "Plan") -> dict[str, int]:
    """Bytes that are alive throughout, as XLA measured them."""
    sizes: dict[str, int] = {name: 0 for name in FIXED}
    for argument in plan.arguments:
        sizes[argument.role] += argument.size
    known = sizes["parameters"] + sizes["optimizer state"]
    sizes["inputs"] = max(0, plan.measured.argument - known)
    sizes["outputs"] = plan.measured.output - plan.measured.alias
    return sizes


def _op_names(plan: "Plan") -> list[str]:
    """Per operation, its primitive and source line, from the values it writes."""
    values = plan.problem.values
    return [
        values[op.outputs[0]].name if op.outputs else op.name for op in plan.problem.ops
    ]


def _longest_waits(plan: "Plan", schedule: Schedule) -> dict[tuple[ValueId, int], int]:
    """Per value and step that computes it: the most steps between two uses."""
    waits: dict[tuple[ValueId, int], int] = defaultdict(int)
    born: dict[ValueId, int] = {}
    used: dict[ValueId, int] = {}
    for step, op in enumerate(schedule):
        for value in plan.problem.ops[op].inputs:
            if value in born:
                key = (value, born[value])
                waits[key] = max(waits[key], step - used[value])
                used[value] = step
        for value in plan.problem.ops[op].outputs:
            born[value] = used[value] = step
    return waits
