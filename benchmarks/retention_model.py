"""The planner's schedules as a mixed integer program, for lower bounds that are proven.

The class of schedules is that of `_planning.retention`, with one condition more.
Positions are those of the program order; op `k` may run at any position `b >= k` at
which its inputs are at hand (later than its own at no cost, or again), and the ops of
one position run in program order. Every op runs at least once. Ops with effects, and
those that overwrite a donated argument, stay in place, and nothing reads an argument
that was overwritten. The bytes are those of `_planning.validate.live_bytes`, values in
place included, at most `pool`.

The condition: some ops that are named run for the first time at their own positions; in
general those of a longest path through the program, its *spine*. Without it the whole
program could slide along its positions; half of it here and half of it there would be a
fractional solution with half the bytes at no cost, and no bound worth having could be
proven.

Values below `negligible` bytes are left out of the peak rows. That makes the program
smaller and, again, weaker: the bound holds, but a schedule found may not fit.

    x[k, b]     op k runs at position b
    a[v, b]     value v is kept from position b - 1 into position b
    peak rows   the bytes alive while op k runs at position b

This is Checkmate's program (Jain et al., MLSys 2020) with two changes: an op need not
run at its own position, and the peak rows, which are as many as the pairs (k, b), are
written only where a solution breaks them. Leaving rows out makes the program weaker, so
that its bound holds at any time.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import scipy.sparse

from coop_jax._planning.types import OpId, Problem, Schedule, ValueId

type Pair = tuple[OpId, int]
"""An op and the position it runs at."""

type Terms = list[tuple[int, float]]
"""Columns with coefficients."""

_TOLERANCE = 1e-6


@dataclass
class Rows:
    """Inequalities `terms <= bound`, in coordinate form."""

    row: list[int] = field(default_factory=list)
    column: list[int] = field(default_factory=list)
    coefficient: list[float] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)

    def add(self, terms: Terms, bound: float) -> None:
        for column, coefficient in terms:
            self.row.append(len(self.bounds))
            self.column.append(column)
            self.coefficient.append(coefficient)
        self.bounds.append(bound)

    def matrix(self, columns: int) -> scipy.sparse.csr_array:
        entries = (self.coefficient, (self.row, self.column))
        return scipy.sparse.csr_array(entries, shape=(len(self.bounds), columns))


class RetentionModel:
    """`cost @ z` to minimize over `rows` and `lower <= z <= upper`.

    `in_place` are the ops whose first run stays where it is, by default the spine.

    Attributes:
      cost: seconds, per column.
      is_integer: per column; the others follow from these.
      lower, upper: bounds, per column.
      rows: inequalities so far.
    """

    def __init__(
        self,
        problem: Problem,
        pool: int,
        in_place: Collection[OpId] | None = None,
        negligible: int = 0,
    ) -> None:
        self.problem = problem
        self.pool = pool
        self.length = len(problem.ops)
        self.sizes = [v.size if v.size > negligible else 0 for v in problem.values]
        self.scale = float(max((v.size for v in problem.values), default=0) or 1)
        self.cost: list[float] = []
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.is_integer: list[bool] = []
        self.rows = Rows()
        self.run: dict[Pair, int] = {}
        self.kept: dict[tuple[ValueId, int], int] = {}
        self.has_row: set[Pair] = set()
        self._present: dict[tuple[ValueId, int, OpId], int] = {}
        self.readers = _readers(problem)
        in_place = spine(problem) if in_place is None else in_place
        self.first_run_by = first_run_limits(problem, self.readers, in_place)
        self._add_columns()
        self._add_dependencies()
        self.add_peak_rows((k, k) for k in range(self.length))

    # Columns

    def _add_columns(self) -> None:
        last = self._last_positions()
        for k, op in enumerate(self.problem.ops):
            for b in range(k, last[k] + 1):
                must_run = b == k == self.first_run_by[k]
                self.run[k, b] = self._column(op.cost, lower=float(must_run))
        for v, value in enumerate(self.problem.values):
            producer = self.problem.producer[v]
            if producer < 0:
                continue
            end = max((last[j] for j in self.readers[v]), default=0)
            if value.is_output:
                end = self.length
            if not self.sizes[v]:
                # Costs nothing to keep, so it is there from the latest first run on.
                end = min(end, self.first_run_by[producer])
            for b in range(producer + 1, end + 1):
                is_needed = value.is_output and b == self.length
                self.kept[v, b] = self._column(0.0, lower=float(is_needed))

    def _last_positions(self) -> list[int]:
        """Per op, the last position at which running it can serve anything."""
        problem, last = self.problem, list(self.first_run_by)
        for k in reversed(range(self.length)):
            outputs = problem.ops[k].outputs
            # A second run is for bytes: what has none is kept.
            sized = [v for v in outputs if self.sizes[v]]
            if _is_fixed(problem, k) or not sized:
                continue
            served = [last[j] for v in sized for j in self.readers[v]]
            if any(problem.values[v].is_output for v in sized):
                served.append(self.length - 1)
            useful = min(max(served, default=k), _deadline(problem, k))
            last[k] = max(self.first_run_by[k], useful)
        return last

    def _column(self, cost: float, lower: float = 0.0, integer: bool = True) -> int:
        self.cost.append(cost)
        self.lower.append(lower)
        self.upper.append(1.0)
        self.is_integer.append(integer)
        return len(self.cost) - 1

    # Rows

    def _add_dependencies(self) -> None:
        producer = self.problem.producer
        for (v, b), column in self.kept.items():
            # Kept from here only if it was here.
            source = [self.kept.get((v, b - 1)), self.run.get((producer[v], b - 1))]
            terms = [(c, -1.0) for c in source if c is not None]
            self.rows.add([(column, 1.0), *terms], 0.0)
        for (k, b), column in self.run.items():
            for v in self.problem.ops[k].inputs:
                is_there = not self.sizes[v] and b > self.first_run_by[producer[v]]
                if producer[v] >= 0 and not is_there:
                    source = [self.kept.get((v, b)), self.run.get((producer[v], b))]
                    terms = [(c, -1.0) for c in source if c is not None]
                    self.rows.add([(column, 1.0), *terms], 0.0)
        runs = defaultdict(list)
        for (k, b), column in self.run.items():
            if b <= self.first_run_by[k]:
                runs[k].append((column, -1.0))
        for terms in runs.values():
            self.rows.add(terms, -1.0)

    def add_peak_rows(self, pairs: Iterable[Pair]) -> int:
        """Adds the peak rows of pairs that have none yet; returns how many."""
        new = [p for p in pairs if p in self.run and p not in self.has_row]
        for pair in new:
            self.has_row.add(pair)
            self._add_peak_row(pair)
        return len(new)

    def _add_peak_row(self, pair: Pair) -> None:
        workspace = self.problem.ops[pair[0]].workspace
        terms: Terms = [(self.run[pair], workspace / self.scale)]
        for v, columns in self._alive(pair):
            size = self.sizes[v] / self.scale
            terms.append((self._greatest(v, pair, columns), size))
        for source, target, columns in self._handovers(pair):
            size = min(self.sizes[source], self.sizes[target])
            credit = self._column(0.0, integer=False)
            self.rows.add([(credit, 1.0), (self.run[pair], -1.0)], 0.0)
            for column in columns:
                self.rows.add([(credit, 1.0), (column, 1.0)], 1.0)
            terms.append((credit, -size / self.scale))
        self._share_handovers(pair, terms)
        self.rows.add(terms, self.pool / self.scale)

    def _share_handovers(self, pair: Pair, terms: Terms) -> None:
        """A source hands its bytes over once, and a target takes over one source's."""
        pairs = list(self._handovers(pair))
        if len(pairs) < 2:
            return
        credits = [column for column, _ in terms[-len(pairs) :]]
        for side in (0, 1):
            groups = defaultdict(list)
            for handover, credit in zip(pairs, credits, strict=True):
                groups[handover[side]].append((credit, 1.0))
            for members in groups.values():
                if len(members) > 1:
                    self.rows.add(members, 1.0)

    def _alive(self, pair: Pair) -> Iterator[tuple[ValueId, list[int]]]:
        """Values that may be alive while the pair runs, each with columns of which the
        greatest says whether it is."""
        k, b = pair
        for v in range(len(self.problem.values)):
            producer = self.problem.producer[v]
            if not 0 <= producer <= b or not self.sizes[v]:
                continue
            if producer > k:
                # Computed later in this position, if at all: alive if it was kept.
                columns = [self.kept.get((v, b))]
            else:
                readers = [j for j in self.readers[v] if k <= j <= b]
                columns = [self.run.get((j, b)) for j in readers]
                columns.append(self.kept.get((v, b + 1)))
                if producer == k:
                    columns.append(self.run[pair])
            found = [c for c in columns if c is not None]
            if found:
                yield v, found

    def _greatest(self, v: ValueId, pair: Pair, columns: list[int]) -> int:
        """The column for the greatest of `columns`, shared by pairs that agree."""
        if len(columns) == 1:
            return columns[0]
        k, b = pair
        first = k
        if self.problem.producer[v] != k:
            first = min((j for j in self.readers[v] if j >= k), default=self.length)
        key = (v, b, first)
        if key not in self._present:
            self._present[key] = self._column(0.0, integer=False)
            for column in columns:
                self.rows.add([(column, 1.0), (self._present[key], -1.0)], 0.0)
        return self._present[key]

    def _handovers(self, pair: Pair) -> Iterator[tuple[ValueId, ValueId, list[int]]]:
        """Values in place with the columns that forbid it: the source is needed yet."""
        k, b = pair
        for source, target in self.problem.ops[k].in_place:
            is_nothing = not self.sizes[source] or not self.sizes[target]
            if self.problem.producer[source] < 0 or is_nothing:
                continue
            later = [j for j in self.readers[source] if k < j <= b]
            columns = [self.run.get((j, b)) for j in later]
            columns.append(self.kept.get((source, b + 1)))
            yield source, target, [c for c in columns if c is not None]

    # Solutions

    def broken_pairs(self, solution: np.ndarray) -> list[Pair]:
        """Pairs that run, at least in part, over the pool and without a peak row."""
        found = []
        for pair, column in self.run.items():
            if solution[column] > _TOLERANCE and pair not in self.has_row:
                if self._bytes(pair, solution) > self.pool * (1 + _TOLERANCE):
                    found.append(pair)
        return found

    def _bytes(self, pair: Pair, solution: np.ndarray) -> float:
        sizes = self.sizes
        total = self.problem.ops[pair[0]].workspace * solution[self.run[pair]]
        for v, columns in self._alive(pair):
            total += sizes[v] * solution[columns].max()
        sources, targets = set(), set()
        for source, target, columns in self._handovers(pair):
            if source in sources or target in targets:
                continue
            sources.add(source)
            targets.add(target)
            room = min([solution[self.run[pair]], *(1 - solution[columns])])
            total -= min(sizes[source], sizes[target]) * max(room, 0.0)
        return total

    def schedule(self, solution: np.ndarray) -> Schedule:
        """The ops that run, in order; `solution` is integral."""
        pairs = [pair for pair, column in self.run.items() if solution[column] > 0.5]
        return tuple(k for k, _ in sorted(pairs, key=lambda pair: (pair[1], pair[0])))


def spine(problem: Problem) -> list[OpId]:
    """The ops of one longest path, in program order."""
    depth = [0] * len(problem.ops)
    before = [-1] * len(problem.ops)
    for k, op in enumerate(problem.ops):
        for v in op.inputs:
            source = problem.producer[v]
            if source >= 0 and depth[source] >= depth[k]:
                depth[k], before[k] = depth[source] + 1, source
    path = []
    k = max(range(len(depth)), key=depth.__getitem__, default=-1)
    while k >= 0:
        path.append(k)
        k = before[k]
    return path[::-1]


def first_run_limits(
    problem: Problem, readers: list[list[OpId]], in_place: Collection[OpId]
) -> list[int]:
    """Per op, the last position for its first run: that of its first reader."""
    limit = [len(problem.ops) - 1] * len(problem.ops)
    stays = set(in_place)
    for k in reversed(range(len(problem.ops))):
        if k in stays or _is_fixed(problem, k):
            limit[k] = k
            continue
        needs = [limit[j] for v in problem.ops[k].outputs for j in readers[v]]
        limit[k] = min([*needs, limit[k], _deadline(problem, k)])
    return limit


def _readers(problem: Problem) -> list[list[OpId]]:
    """Per value, the ops that read it, in program order."""
    readers: list[list[OpId]] = [[] for _ in problem.values]
    for k, op in enumerate(problem.ops):
        for v in op.inputs:
            readers[v].append(k)
    return readers


def _is_fixed(problem: Problem, k: OpId) -> bool:
    op = problem.ops[k]
    overwrites = any(problem.values[v].overwrites is not None for v in op.outputs)
    return overwrites or not op.is_recomputable or not op.outputs


def _deadline(problem: Problem, k: OpId) -> int:
    """The last position at which the op finds its arguments as they were."""
    overwriting = (
        j
        for j, op in enumerate(problem.ops)
        for v in op.outputs
        if problem.values[v].overwrites in problem.ops[k].inputs
    )
    return min(overwriting, default=len(problem.ops) - 1)
