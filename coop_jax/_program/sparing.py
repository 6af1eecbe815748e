"""What computing a value again spares, where XLA makes one kernel of several.

On GPU an elementwise op is part of the kernels that read it, if they can take it in.
Then its result is in memory only because it is kept: computed again, it is neither
written by the forward pass nor read by the backward pass, and another run may cost
less than nothing. Costs below nothing are no costs to search by. So what is left over
goes to the op that has to run again with it, such as the scores of a softmax whose
exponentials are computed again; `Problem.once` keeps what the program takes as written.
"""

import itertools
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from .._planning.types import OpId, Problem, ValueId
from .cost import DeviceRates
from .fusing import FUSIBLE, fusible
from .units import Graph, Unit, has_call

_WAITS, _FEW = 0.05, 5
"""Share of a program, and ops, over which a value is kept, not just handed on."""
_LEAST = 0.01
"""Share of its own cost that another run of an op takes in any case."""
_SMALL = 1 / 8
"""Results of this share of what is read have little to do with computing it again."""


@dataclass(frozen=True, slots=True)
class Joining:
    """How XLA treats an op.

    Attributes:
      takes_in: it is part of a kernel that elementwise ops before it are part of too.
      is_elementwise: such kernels may take it in.
    """

    takes_in: bool
    is_elementwise: bool


def joining(
    graph: Graph, units: Sequence[Unit], calls: Container[int]
) -> list[Joining]:
    """How XLA:GPU treats units.

    Args:
      graph: of the program.
      units: in the order of the ops.
      calls: roots of those that are in-place calls.
    """
    found = []
    for unit in units:
        name = graph.equations[unit.root].primitive.name
        is_call = unit.root in calls or has_call(graph.equations, unit)
        takes_in = not is_call and name in fusible("gpu")
        found.append(Joining(takes_in, takes_in and name in FUSIBLE))
    return found


def with_spared(
    problem: Problem, joining: Sequence[Joining], rates: DeviceRates
) -> Problem:
    """The problem with costs less what another run of each op spares.

    Args:
      problem: with what each op takes as a kernel of its own for costs.
      joining: of each op.
      rates: those that the costs are by.
    """
    return _Sparing(problem, joining, rates).spared()


class _Sparing:
    def __init__(
        self, problem: Problem, joining: Sequence[Joining], rates: DeviceRates
    ) -> None:
        self.problem = problem
        self.joining = joining
        self.rates = rates
        self.readers: list[list[OpId]] = [[] for _ in problem.values]
        for k, op in enumerate(problem.ops):
            for v in op.inputs:
                self.readers[v].append(k)

    def spared(self) -> Problem:
        """Goes backwards, so that readers hand over before what they read does."""
        ops = self.problem.ops
        costs = [op.cost for op in ops]
        for k in reversed(range(len(ops))):
            costs[k] -= self._traffic(k)
            before = self._runs_for(k) if costs[k] < 0 else None
            if before is not None:
                costs[before] += costs[k]
        least = [max(c, _LEAST * op.cost) for c, op in zip(costs, ops, strict=True)]
        again = tuple(replace(op, cost=c) for op, c in zip(ops, least, strict=True))
        spared = sum(op.cost for op in ops) - sum(least)
        return replace(self.problem, ops=again, once=self.problem.once + spared)

    def _traffic(self, k: OpId) -> float:
        """Seconds in memory, and of a kernel, that another run of an op spares."""
        if not self.joining[k].is_elementwise:
            return 0.0
        problem, rates = self.problem, self.rates
        moved, is_written = 0, False
        for v in problem.ops[k].outputs:
            size = problem.values[v].size
            early, late = self._uses(v)
            after = late or early
            if problem.values[v].is_output or not self._all_take_in(after):
                is_written = True
                continue
            # What computes it again does not write it, nor do its readers read it.
            moved += 2 * size
            if late and self._all_take_in(early):
                moved += size  # nor does the first run write it
        launch = 0.0 if is_written else rates.launch
        return rates.traffic * (moved / rates.bytes + launch)

    def _runs_for(self, k: OpId) -> OpId | None:
        """The op, if any, that runs again only for `k` to run again, as a rule."""
        ops, values = self.problem.ops, self.problem.values
        found = []
        for v in ops[k].inputs:
            p = self.problem.producer[v]
            if p < 0 or not ops[p].is_recomputable:
                continue
            size = values[v].size
            uses = [self._uses(w) for w in ops[p].outputs]
            readers = {r for early, _ in uses for r in early}
            written = {r: sum(values[w].size for w in ops[r].outputs) for r in readers}
            large = {r for r in readers if written[r] > _SMALL * size}
            if large == {k} and not any(late for _, late in uses):
                found.append((size, p))
        return max(found)[1] if found else None

    def _all_take_in(self, readers: Sequence[OpId]) -> bool:
        return bool(readers) and all(self.joining[r].takes_in for r in readers)

    def _uses(self, value: ValueId) -> tuple[list[OpId], list[OpId]]:
        """Readers before and after the longest stretch over which a value is kept."""
        readers = self.readers[value]
        places = [self.problem.producer[value], *readers]
        gaps = [b - a for a, b in itertools.pairwise(places)]
        widest = max(gaps, default=0)
        if widest < max(_WAITS * len(self.problem.ops), _FEW):
            return readers, []
        first = gaps.index(widest)
        return readers[:first], readers[first:]
