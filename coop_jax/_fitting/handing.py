"""Ops that must be kernels of their own, for what overwrites their results. No JAX.

Of what has no barrier in between, XLA:GPU makes one kernel where operands are shared or
one reads the other. A result of a kernel with several keeps its bytes: what overwrites
it in the plan is written elsewhere. To be apart costs a read more, so only what the
plan's peak rests on is.
"""

from collections.abc import Iterable, Sequence, Set

from .._planning.types import OpId, Problem, Schedule
from .._planning.validate import live_bytes, live_ranges


class Handing:
    """What a plan's peak rests on being overwritten.

    Args:
      problem: what is planned.
      schedule: the plan.
      alone: ops that XLA fuses with no other.
    """

    def __init__(self, problem: Problem, schedule: Schedule, alone: Set[OpId]):
        self._problem = problem
        self._alone = alone
        self._ops = _overwritten_at_the_peak(problem, schedule) - alone

    def is_broken_by(self, op: OpId, others: Iterable[OpId]) -> bool:
        """Whether one kernel of these ops keeps the bytes of a result in its place."""
        near = others if op in self._ops else self._ops.intersection(others)
        return any(self._share(op, other) for other in near)

    def set_apart(self, part: Sequence[OpId]) -> list[list[OpId]]:
        """The part, cut in front of what must not be in one kernel with it."""
        found: list[list[OpId]] = []
        for op in part:
            if not found or self.is_broken_by(op, found[-1]):
                found.append([])
            found[-1].append(op)
        return found

    def _share(self, one: OpId, other: OpId) -> bool:
        """Whether XLA makes one kernel of both: they meet in as much as they write."""
        if one == other or not self._alone.isdisjoint((one, other)):
            return False
        a, b = (self._problem.ops[op] for op in (one, other))
        shared = {*a.inputs, *a.outputs} & {*b.inputs, *b.outputs}
        sizes = [self._problem.values[v].size for v in (*a.outputs, *b.outputs)]
        return any(2 * self._problem.values[v].size > max(sizes) for v in shared)


def _overwritten_at_the_peak(problem: Problem, schedule: Schedule) -> set[OpId]:
    """Ops with a result that is overwritten, and else would be too much beside that."""
    alive = live_bytes(problem, schedule)
    most = max(alive, default=0)
    producer = {v: k for k, op in enumerate(problem.ops) for v in op.outputs}
    dying = {(v, r.end - 1) for v, r in live_ranges(problem, schedule)}
    found = set[OpId]()
    for position, op in enumerate(schedule):
        for source, result in problem.ops[op].in_place:
            needed = alive[position] + problem.values[result].size > most
            if needed and (source, position) in dying and source in producer:
                found.add(producer[source])
    return found
