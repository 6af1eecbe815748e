"""Cuts a plan into the parts that run one after the other.

All steps at one position of the plan (the rematerializations for an op, then the op)
form a group. A group is cut after each op that XLA computes on its own, as nothing
orders what is in one part but data, and on CPU after each op that several others read,
which XLA would compute in each of them, of operands that stay alive. An update of
donated arguments stays with what runs before it, for XLA to fuse: a gradient need not
be written in its final layout. On GPU parts are joined again (`joining`).
"""

from collections.abc import Sequence, Set
from itertools import accumulate, chain

from .._planning.types import OpId, Problem
from .._planning.validate import live_ranges

type Positions = Sequence[Sequence[int]]
"""Per op, the positions it runs at (`_planning.planner.Planned.positions`)."""


def parts(problem: Problem, positions: Positions, ends: Set[OpId]) -> list[list[OpId]]:
    """The parts of a plan, in the order they run.

    Args:
      problem: what is planned.
      positions: where each op runs.
      ends: the ops that end the part they are in.
    """
    updates = overwriting(problem)
    found: list[list[OpId]] = []
    for group in groups(positions):
        is_open = bool(found) and all(
            op in updates and not is_read_aside(problem, op, found[-1]) for op in group
        )
        for op in group:
            if not is_open:
                found.append([])
            found[-1].append(op)
            is_open = op not in ends
    return found


def bytes_made(problem: Problem, part: Sequence[OpId], spreading: Set[OpId]) -> int:
    """Bytes of all that a part makes, and of what XLA may write before that."""
    written = (v for op in part for v in problem.ops[op].outputs)
    early = sum(problem.ops[op].workspace for op in part if op in spreading)
    return early + sum(problem.values[v].size for v in written)


def bytes_before(problem: Problem, parts: Sequence[Sequence[OpId]]) -> list[int]:
    """Per part, bytes of values made before it and read in it or later."""
    starts = [0, *accumulate(map(len, parts))]
    change = [0] * (starts[-1] + 2)
    for v, alive in live_ranges(problem, tuple(chain(*parts))):
        if alive.start + 1 < alive.end:
            change[alive.start + 1] += problem.values[v].size
            change[alive.end] -= problem.values[v].size
    across = list(accumulate(change))
    return [across[start] for start in starts[:-1]]


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


def is_read_aside(problem: Problem, update: OpId, part: Sequence[OpId]) -> bool:
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
