"""Moments of an optimizer updated along with their weight. Imports no JAX.

Where the order frees a gradient before its weight can be overwritten, as the product
that passes the gradient on reads the weight still, the moments are updated in one part
and the weight in a later one. XLA:GPU then makes two kernels of what is one elsewhere,
different ones, and the second reads the moments again. So moments wait for their weight
where there is room until then for what they are made of.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain

from .._planning.types import OpId, Problem, ValueId
from .._planning.validate import live_bytes
from .parts import bytes_before, bytes_made, overwriting


def with_moments_waiting(
    problem: Problem, parts: Sequence[Sequence[OpId]], spreading: Set[OpId]
) -> list[list[OpId]]:
    """The parts, updates moved into the part of the one update that reads them.

    Where what they read fits the plan's own peak until then, in whatever order parts
    run inside, and nothing on the way overwrites it.

    Args:
      problem: what is planned.
      parts: in the order they run.
      spreading: ops whose workspace XLA may write before all else of a part.
    """
    waiting = _Waiting(problem, parts, _spare(problem, parts, spreading))
    # The last first: what a moment is made of may be an update too.
    for update in sorted(waiting.updates, reverse=True):
        if moments := waiting.moments(update):
            waiting.move(moments, update)
    return [part for part in waiting.parts if part]


class _Waiting:
    """Parts while updates are moved to later ones.

    Args:
      problem: what is planned.
      parts: in the order they run.
      spare: per part, bytes that may be alive besides.
    """

    def __init__(
        self,
        problem: Problem,
        parts: Sequence[Sequence[OpId]],
        spare: Iterable[int],
    ) -> None:
        self.parts = [list(part) for part in parts]
        self.updates = overwriting(problem)
        self._problem = problem
        self._spare = list(spare)
        self._place = {op: i for i, part in enumerate(parts) for op in part}
        self._readers: dict[ValueId, set[OpId]] = defaultdict(set)
        for op in range(len(problem.ops)):
            for v in problem.ops[op].inputs:
                self._readers[v].add(op)
        self._read_in: dict[ValueId, set[int]] = defaultdict(set)
        for i, part in enumerate(parts):
            for v in self._read(part):
                self._read_in[v].add(i)

    def moments(self, update: OpId) -> list[OpId]:
        """Updates of earlier parts that nothing else reads than this one."""
        read = self._problem.ops[update].inputs
        makers = {self._problem.producer[v] for v in read} & self.updates
        return [
            op
            for op in sorted(makers)
            if self._place[op] < self._place[update]
            and all(self._readers[v] == {update} for v in self._problem.ops[op].outputs)
        ]

    def move(self, moments: Sequence[OpId], update: OpId) -> None:
        """Moves them into the part of the update that reads them, if that can be."""
        read, end = self._read(moments), self._place[update]
        start = min(self._place[op] for op in moments)
        needed = self._bytes_kept(read, end)
        fits = all(size <= self._spare[i] for i, size in needed.items())
        if fits and read.isdisjoint(self._overwritten(start, end, but=moments)):
            for i, size in needed.items():
                self._spare[i] -= size
            for v in read:
                self._read_in[v].add(end)
            for op in moments:
                self.parts[self._place[op]].remove(op)
                self._place[op] = end
            at = self.parts[end].index(update)
            self.parts[end][at:at] = moments

    def _read(self, ops: Iterable[OpId]) -> set[ValueId]:
        return {v for op in ops for v in self._problem.ops[op].inputs}

    def _bytes_kept(self, read: Iterable[ValueId], end: int) -> Mapping[int, int]:
        """Per part, bytes kept for what is to be read in part `end` and was not."""
        needed = Counter[int]()
        for v in read:
            if self._problem.producer[v] >= 0:
                last = max(i for i in self._read_in[v] if i <= end)
                for i in range(last + 1, end + 1):
                    needed[i] += self._problem.values[v].size
        return needed

    def _overwritten(
        self, start: int, end: int, but: Sequence[OpId]
    ) -> set[ValueId | None]:
        """What other ops of these parts overwrite."""
        ops = set(chain(*self.parts[start : end + 1])).difference(but)
        written = (v for op in ops for v in self._problem.ops[op].outputs)
        return {self._problem.values[v].overwrites for v in written}


def _spare(
    problem: Problem, parts: Sequence[Sequence[OpId]], spreading: Set[OpId]
) -> Iterable[int]:
    """Per part, what is left of the peak with all that it makes alive at once."""
    most = max(live_bytes(problem, tuple(chain(*parts))), default=0)
    for part, before in zip(parts, bytes_before(problem, parts), strict=True):
        workspace = max(problem.ops[op].workspace for op in part)
        yield most - before - bytes_made(problem, part, spreading) - workspace
