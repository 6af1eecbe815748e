"""Cuts a plan into the parts that run one after the other.

All steps at one position of the plan (the rematerializations for an op, then the op)
form a group. A group is cut after each op that XLA computes on its own, as nothing
orders what is in one part but data. An update of donated arguments stays with what runs
before it, for XLA to fuse: a gradient need not be written in its final layout.
"""

from collections.abc import Sequence, Set

from .._planning.types import OpId, Problem

type Positions = Sequence[Sequence[int]]
"""Per op, the positions it runs at (`_planning.planner.Planned.positions`)."""


def parts(problem: Problem, positions: Positions, alone: Set[OpId]) -> list[list[OpId]]:
    """The parts of a plan, in the order they run.

    Args:
      problem: what is planned.
      positions: where each op runs.
      alone: the ops that XLA computes on their own.
    """
    updates = overwriting(problem)
    found: list[list[OpId]] = []
    for group in groups(positions):
        is_open = bool(found) and all(
            op in updates and not _is_read_aside(problem, op, found[-1]) for op in group
        )
        for op in group:
            if not is_open:
                found.append([])
            found[-1].append(op)
            is_open = op not in alone
    return found


def groups(positions: Positions) -> list[list[OpId]]:
    """Ops that run at each position, in op order: the op itself comes last."""
    at: list[list[OpId]] = [[] for _ in positions]
    for op, places in enumerate(positions):
        for position in places:
            at[position].append(op)
    return at


def overwriting(problem: Problem) -> set[OpId]:
    """Ops whose results all take the bytes of donated arguments."""
    return {
        k
        for k, op in enumerate(problem.ops)
        if op.outputs
        and all(problem.values[v].overwrites is not None for v in op.outputs)
    }


def _is_read_aside(problem: Problem, update: OpId, part: Sequence[OpId]) -> bool:
    """Whether the part reads what the update overwrites, and not just for the update.

    XLA would not know that the reader comes first, and copy the argument.
    """
    needs = set(problem.ops[update].inputs)
    overwritten = {problem.values[v].overwrites for v in problem.ops[update].outputs}
    return any(
        overwritten.intersection(problem.ops[op].inputs)
        and needs.isdisjoint(problem.ops[op].outputs)
        for op in part
    )
