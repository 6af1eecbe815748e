"""Which values are alive when, kept up to date while recomputations come and go.

Time is the program order. Op `k` runs at its own position `k`; a rematerialization of
`k` at position `b > k` runs just before op `b`. A step is therefore a pair `(b, k)`
with `k <= b`, and steps run in that order; as one integer, `b * len(ops) + k`. Because
inputs have smaller op numbers than their readers, every group of steps at one position
is in dependency order by construction.

A value's instance is alive from the step that computes it to its last reader before the
next instance (Moccasin's retention intervals, arXiv 2304.14463, without a limit on the
number of copies). `bytes_at[b]` is the peak while position `b` runs: values alive
through it plus the peak among those that begin or end there.

The naive version of all of this is `validate.live_bytes`; tests compare the two.
"""

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass

import numpy as np

from .types import OpId, Problem, Schedule, ValueId

type Step = tuple[OpId, int]
"""An op and the position it runs at."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One step added to or removed from the schedule."""

    op: OpId
    position: int
    is_added: bool


@dataclass(frozen=True, slots=True)
class Gap:
    """A value kept from position `start` to `end` without being read between."""

    value: ValueId
    start: int
    end: int


class Retention:
    """A schedule under edit. Every edit goes to a log and can be undone."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.length = length = len(problem.ops)
        self.sizes = problem.pool_sizes
        # Per op, the values that take bytes: most do not, and this is the inner loop.
        self._sized = [
            tuple(v for v in dict.fromkeys((*op.inputs, *op.outputs)) if self.sizes[v])
            for op in problem.ops
        ]
        self.runs: list[list[int]] = [[k] for k in range(length)]
        self.groups: list[list[OpId]] = [[k] for k in range(length)]
        self.reads: list[list[int]] = [[] for _ in problem.values]
        self.segments: list[list[tuple[int, int]]] = [[] for _ in problem.values]
        self.cost = problem.cost(problem.program_order)
        self.bytes_at = np.zeros(length, np.int64)
        self._through = np.zeros(length, np.int64)
        self._local = np.zeros(length, np.int64)
        self._dirty = set(range(length))
        self._is_fixed, self._deadline = movability(problem)
        for k, op in enumerate(problem.ops):
            for v in op.inputs:
                self.reads[v].append(k * length + k)
        for v, value in enumerate(problem.values):
            if problem.producer[v] >= 0:
                if value.is_output:
                    self.reads[v].append(length * length)
                self._refresh(v)
        self.flush()

    # Questions

    def may_run(self, op: OpId, position: int) -> bool:
        """Whether a rematerialization of `op` at `position` is legal."""
        if self._is_fixed[op] or position <= op or position > self._deadline[op]:
            return False
        if position in self.runs[op]:
            return False
        key = position * self.length + op
        for v in self.problem.ops[op].inputs:
            producer = self.problem.producer[v]
            if producer >= 0 and self.runs[producer][0] * self.length + producer > key:
                return False
        return True

    def last_alive(self, value: ValueId, position: int, op: OpId) -> int:
        """Position up to which the instance that step (op, position) reads is alive."""
        key = position * self.length + op
        end = -1
        for start, stop in self.segments[value]:
            if start >= key:
                break
            end = stop
        return end // self.length

    def overload(self, budget: int) -> int:
        """Bytes over `budget`, summed over positions."""
        self.flush()
        excess = self.bytes_at - budget
        return int(excess[excess > 0].sum())

    def peak(self) -> int:
        """Most bytes alive at once."""
        self.flush()
        return int(self.bytes_at.max(initial=0))

    def gaps(self, minimum: int) -> list[Gap]:
        """Every stretch over which a value of at least `minimum` bytes only waits."""
        found = []
        length = self.length
        for value, segments in enumerate(self.segments):
            if self.sizes[value] < minimum:
                continue
            producer = self.problem.producer[value]
            if self._is_fixed[producer]:
                continue
            deadline = self._deadline[producer]
            reads = self.reads[value]
            for start, stop in segments:
                before = start // length
                first = bisect_right(reads, start)
                for key in reads[first : bisect_right(reads, stop)]:
                    at = key // length
                    if at > before + 1 and at <= deadline and at < length:
                        found.append(Gap(value, before, at))
                    before = at
        return found

    def remats(self) -> list[Step]:
        """Steps beyond each op's first, the ones that cost something."""
        return [(k, b) for k, runs in enumerate(self.runs) for b in runs[1:]]

    def moved_or_rematerialized(self) -> list[Step]:
        """All steps that are not at the op's own position."""
        return [(k, b) for k, runs in enumerate(self.runs) for b in runs if b != k]

    def schedule(self) -> Schedule:
        """Ops in the order they run."""
        return tuple(k for group in self.groups for k in group)

    # Edits

    def insert(self, op: OpId, position: int, log: list[Edit]) -> None:
        """Runs `op` just before the op at `position`."""
        self._apply(Edit(op, position, True))
        log.append(Edit(op, position, True))

    def remove(self, op: OpId, position: int, log: list[Edit]) -> None:
        """Removes a step; if it was the op's first, the op runs at home again."""
        if self.runs[op][0] == position and position != op:
            self._run_at_home(op, log)
        if position != op:
            self._delete(op, position, log)
            self.sweep(self._producers(op), log)

    def sweep(self, ops: list[OpId], log: list[Edit]) -> None:
        """Removes steps of `ops` that nothing reads, then their inputs' likewise."""
        todo = list(ops)
        while todo:
            op = todo.pop()
            if self._is_fixed[op] or len(self.runs[op]) < 2:
                continue
            for position in list(self.runs[op]):
                if len(self.runs[op]) > 1 and self._is_unread(op, position):
                    self._delete(op, position, log)
                    todo += self._producers(op)

    def undo(self, log: list[Edit]) -> None:
        """Takes back all edits of the log."""
        for edit in reversed(log):
            self._apply(Edit(edit.op, edit.position, not edit.is_added))
        log.clear()

    def redo(self, log: list[Edit]) -> None:
        """Applies the edits of a log again."""
        for edit in log:
            self._apply(edit)

    def snapshot(self) -> tuple[tuple[int, ...], ...]:
        """The positions of every op, to come back to."""
        return tuple(tuple(runs) for runs in self.runs)

    def restore(self, snapshot: tuple[tuple[int, ...], ...]) -> None:
        """Returns to a snapshot."""
        for op, wanted in enumerate(snapshot):
            present = set(self.runs[op])
            if len(present) == len(wanted) and present.issuperset(wanted):
                continue
            for position in sorted(present.difference(wanted)):
                self._apply(Edit(op, position, False))
            for position in sorted(set(wanted).difference(present)):
                self._apply(Edit(op, position, True))
        # Counted anew: what rounding left in it depends on all that was done before.
        self.cost = self.problem.once
        for op, runs in zip(self.problem.ops, self.runs, strict=True):
            self.cost += op.cost * len(runs)

    # Bookkeeping

    def flush(self) -> None:
        """Brings `bytes_at` up to date."""
        if not self._dirty:
            return
        for position in self._dirty:
            self._local[position] = self._group_peak(position)
        self._dirty.clear()
        np.add(self._through, self._local, out=self.bytes_at)

    def _producers(self, op: OpId) -> list[OpId]:
        producer = self.problem.producer
        return [producer[v] for v in self.problem.ops[op].inputs if producer[v] >= 0]

    def _run_at_home(self, op: OpId, log: list[Edit]) -> None:
        """Adds the op's original step, and those of inputs that had moved too."""
        todo = [op]
        while todo:
            k = todo.pop()
            if self.runs[k][0] == k:
                continue
            self.insert(k, k, log)
            home = k * self.length + k
            todo += [
                p
                for p in self._producers(k)
                if self.runs[p][0] * self.length + p > home
            ]

    def _delete(self, op: OpId, position: int, log: list[Edit]) -> None:
        self._apply(Edit(op, position, False))
        log.append(Edit(op, position, False))

    def _is_unread(self, op: OpId, position: int) -> bool:
        key = position * self.length + op
        for v in self.problem.ops[op].outputs:
            for start, stop in self.segments[v]:
                if start == key and stop != key:
                    return False
        return True

    def _apply(self, edit: Edit) -> None:
        op, position = edit.op, edit.position
        spec = self.problem.ops[op]
        key = position * self.length + op
        if edit.is_added:
            insort(self.runs[op], position)
            insort(self.groups[position], op)
            self.cost += spec.cost
        else:
            self.runs[op].remove(position)
            self.groups[position].remove(op)
            self.cost -= spec.cost
        self._dirty.add(position)
        for v in spec.outputs:
            self._refresh(v)
        producer = self.problem.producer
        for v in spec.inputs:
            if producer[v] < 0:
                continue
            reads = self.reads[v]
            if edit.is_added:
                insort(reads, key)
            else:
                del reads[bisect_left(reads, key)]
            self._refresh(v)

    def _refresh(self, value: ValueId) -> None:
        """Recomputes the value's segments and books the difference."""
        old, new = self.segments[value], self._segments(value)
        if old == new:
            return
        self.segments[value] = new
        size = self.sizes[value]
        if size:
            for segment in old:
                if segment not in new:
                    self._book(segment, -size)
            for segment in new:
                if segment not in old:
                    self._book(segment, size)

    def _segments(self, value: ValueId) -> list[tuple[int, int]]:
        producer = self.problem.producer[value]
        length, reads = self.length, self.reads[value]
        runs = self.runs[producer]
        if len(runs) == 1:
            start = runs[0] * length + producer
            return [(start, max(start, reads[-1]) if reads else start)]
        starts = [b * length + producer for b in runs]
        segments = []
        for index, start in enumerate(starts):
            if index + 1 < len(starts):
                last = bisect_left(reads, starts[index + 1]) - 1
            else:
                last = len(reads) - 1
            stop = reads[last] if last >= 0 else start
            segments.append((start, max(start, stop)))
        return segments

    def _book(self, segment: tuple[int, int], size: int) -> None:
        first, last = segment[0] // self.length, segment[1] // self.length
        if last > first + 1:
            self._through[first + 1 : last] += size
        self._dirty.add(first)
        if last < self.length:
            self._dirty.add(last)

    def _group_peak(self, position: int) -> int:
        """Peak of the values that begin or end while `position` runs."""
        group = self.groups[position]
        if len(group) == 1:
            return self._single_peak(group[0], position)
        ops = self.problem.ops
        low = position * self.length
        high = low + self.length
        born: dict[int, int] = {}
        dying: dict[int, int] = {}
        live = 0
        for v in {v for k in group for v in self._sized[k]}:
            size = self.sizes[v]
            for start, stop in self.segments[v]:
                if start >= high:
                    break
                if stop < low:
                    continue
                if start >= low:
                    born[start] = born.get(start, 0) + size
                elif stop < high:
                    live += size
                if stop < high:
                    dying[stop] = dying.get(stop, 0) + size
        peak = live
        for k in group:
            key = low + k
            appearing = born.get(key, 0)
            shared = self._handed_over(k, key) if appearing and key in dying else 0
            peak = max(peak, live + appearing - shared + ops[k].workspace)
            live += appearing - dying.get(key, 0)
        return peak

    def _single_peak(self, op: OpId, position: int) -> int:
        """The same where nothing but `op` runs, which is most positions."""
        key = position * self.length + op
        total, appears, dies = self.problem.ops[op].workspace, False, False
        for v in self._sized[op]:
            for start, stop in self.segments[v]:
                if start >= key:
                    if start == key:
                        total += self.sizes[v]
                        appears = True
                    break
                if stop == key:
                    total += self.sizes[v]
                    dies = True
        return total - self._handed_over(op, key) if appears and dies else total

    def _handed_over(self, op: OpId, key: int) -> int:
        """Bytes that outputs of this step take over from inputs that die here."""
        shared, taken = 0, set()
        for source, target in self.problem.ops[op].in_place:
            if source in taken or target in taken:
                continue
            if any(stop == key for _, stop in self.segments[source]):
                shared += self.sizes[target]
                taken |= {source, target}
        return shared


def movability(problem: Problem) -> tuple[list[bool], list[int]]:
    """Per op: whether it must stay put, and the last position it may be repeated at.

    A repeat must come before the arguments it reads are overwritten (the paper's
    version check); an op that overwrites one runs exactly once, where it is.
    """
    overwritten_at = {}
    for k, op in enumerate(problem.ops):
        for v in op.outputs:
            target = problem.values[v].overwrites
            if target is not None:
                overwritten_at[target] = k
    end = len(problem.ops)
    is_fixed, deadline = [], []
    for op in problem.ops:
        overwrites = any(problem.values[v].overwrites is not None for v in op.outputs)
        is_fixed.append(overwrites or not op.is_recomputable or not op.outputs)
        deadline.append(
            min((overwritten_at.get(v, end) for v in op.inputs), default=end)
        )
    return is_fixed, deadline
