"""What evicting each value costs, DTR's and Coop's `h`, for a whole pool. No JAX.

    h = (own cost + cost of the evicted neighbours) / (idle time * size term)

The own cost is that of the op that computes the value; the evicted neighbours are the
ops behind its absent inputs, each with the ops that are evicted around it, which
`EvictedSets` estimates by union-find, as DTR's h_eq does (arXiv 2006.09616). An op with
several outputs counts once, not once per output as in OneFlow.

All is kept in arrays by value, with one entry more that stands for a free chunk, and a
search gathers from them what it needs: pools have thousands of chunks, and a search
runs for almost every allocation.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from .arena import Arena
from .eviction import Policy
from .types import OpId, Problem, ValueId
from .window import LAST_CHOICE

_LEAST_STALENESS = 1e-3
"""Added to every staleness, in mean costs of an op (MegEngine: 1e-3 of its units)."""


class EvictedSets:
    """Cost of the evicted neighbourhood of each op.

    Sets only merge. An op that runs again leaves its set and takes its cost along; what
    was merged through it stays so. The smaller set's members are relabelled, so that
    `set_of` is flat and a whole pool can be looked up at once.

    Attributes:
      set_of: per op, the number of its set.
      time: per set, the seconds of its ops.
    """

    def __init__(self, costs: Sequence[float]) -> None:
        count = len(costs)
        self._cost = list(costs)
        self.set_of = np.arange(count)
        self.time = np.array([*costs, *costs], float)
        self._members = {op: {op} for op in range(count)}
        self._unused = list(range(count, 2 * count))

    def cost(self, op: OpId) -> float:
        """Of the set that the evicted op is in, seconds."""
        return max(float(self.time[self.set_of[op]]), self._cost[op])

    def evict(self, op: OpId, neighbours: Iterable[OpId]) -> None:
        """Merges the op's set with those of its evicted neighbours."""
        for other in neighbours:
            one, two = int(self.set_of[op]), int(self.set_of[other])
            if one == two:
                continue
            if len(self._members[one]) > len(self._members[two]):
                one, two = two, one
            self.time[two] += self.time[one]
            members = self._members.pop(one)
            for member in members:
                self.set_of[member] = two
            self._members[two] |= members
            self._unused.append(one)

    def restore(self, op: OpId) -> None:
        """Takes the op out of its set, if it is in one."""
        old = int(self.set_of[op])
        if len(self._members[old]) == 1:
            self.time[old] = self._cost[op]
            return
        self._members[old].remove(op)
        self.time[old] = max(0.0, float(self.time[old]) - self._cost[op])
        new = self._unused.pop()
        self._members[new] = {op}
        self.set_of[op] = new
        self.time[new] = self._cost[op]


class Scores:
    """The state that scores are made of, by value.

    Attributes:
      resident: 1 where the value is there.
      pins: how many hold on to it.
      stays_after: the turn after which it must not be evicted any more.
    """

    def __init__(
        self, problem: Problem, policy: Policy, stays_after: Sequence[int]
    ) -> None:
        ops, values = problem.ops, problem.values
        costs = [op.cost for op in ops]
        self._policy = policy
        self.sets = EvictedSets(costs)
        self.resident = bytearray(len(values) + 1)
        self.pins = array("q", bytes(8 * (len(values) + 1)))
        self._resident = np.frombuffer(self.resident, bool)
        self._pins = np.frombuffer(self.pins, np.int64)
        self.stays_after = array("q", [*stays_after, len(ops)])
        self._stays_after = np.frombuffer(self.stays_after, np.int64)
        producers = [*problem.producer, -1]
        self._own = np.array([costs[p] if p >= 0 else 0.0 for p in producers])
        self._size = np.array([*(max(1, v.size) for v in values), 1], float)
        self._op_cost = np.array(costs, float)
        self._least = _LEAST_STALENESS * (sum(costs) / max(1, len(ops)) or 1.0)
        self._inputs = _Inputs(problem)
        # Free chunks have never been used, and never will be.
        self._accesses = array("d", [*(0.0 for _ in values), -np.inf])
        self._last_access = np.frombuffer(self._accesses, float)
        if policy.looks_ahead:
            self._elapsed = [0.0, *accumulate(costs)]
            self._following = _following_uses(problem)
            self._next_use = np.full(len(values) + 1, 2 * self._elapsed[-1])
            self._next_use[-1] = np.inf
            for k in range(len(ops) - 1, -1, -1):
                self._next_use[list(ops[k].inputs)] = self._elapsed[k]

    def touch(self, values: Iterable[ValueId], clock: float) -> None:
        """Notes that they are used now."""
        for v in values:
            self._accesses[v] = clock

    def take_turn(self, op: OpId, inputs: Iterable[ValueId]) -> None:
        """Notes that the program has come to this op, which reads these values."""
        if self._policy.looks_ahead:
            for v, k in zip(inputs, self._following[op], strict=True):
                self._next_use[v] = 2 * self._elapsed[-1] if k < 0 else self._elapsed[k]

    def of(self, arena: Arena, clock: float, turn: OpId) -> NDArray[np.float64]:
        """Scores of all chunks: 0 if free, inf if the value has to stay."""
        owners = arena.owners
        stays = self._pins[owners] > 0
        stays |= self._stays_after[owners] < turn
        places = np.flatnonzero(~stays)
        owners = owners[places]
        if self._policy.looks_ahead:
            idle = self._next_use[owners] - self._elapsed[turn]
        else:
            idle = clock - self._last_access[owners]
        idle += self._least
        score = self._own[owners]
        score += self._neighbours(owners)
        score /= idle
        if self._policy.size_term == "size":
            score /= self._size[owners]
        elif self._policy.size_term == "size and free":
            score /= self._size[owners] + arena.free_beside()[places]
        np.minimum(score, LAST_CHOICE, out=score)
        scores = np.full(len(stays), np.inf)
        scores[places] = score
        return scores

    def _neighbours(self, owners: NDArray[np.int64]) -> NDArray[np.float64]:
        """Seconds of the evicted ops around the inputs of each chunk's op."""
        rows, inputs = self._inputs.of(owners)
        is_absent = ~self._resident[self._inputs.values[inputs]]
        rows, inputs = rows[is_absent], inputs[is_absent]
        ops = self._inputs.producers[inputs]
        each = np.maximum(self.sets.time[self.sets.set_of[ops]], self._op_cost[ops])
        each *= self._inputs.weights[inputs]
        return np.bincount(rows, each, len(owners))


class _Inputs:
    """The inputs of the op behind each value, those that other ops compute, flat.

    Attributes:
      values: the inputs of all ops, one op after the other.
      producers: of each of them.
      weights: one op that computes several inputs of another counts once.
    """

    def __init__(self, problem: Problem) -> None:
        values: list[ValueId] = []
        producers: list[OpId] = []
        weights: list[float] = []
        starts, counts = [], []
        for op in problem.ops:
            computed = [v for v in op.inputs if problem.producer[v] >= 0]
            sources = [problem.producer[v] for v in computed]
            times = Counter(sources)
            starts.append(len(values))
            counts.append(len(computed))
            values += computed
            producers += sources
            weights += [1 / times[source] for source in sources]
        # Arguments and free chunks have no op, and so no inputs.
        op_of = np.array([*problem.producer, -1])
        self._starts = np.array([*starts, 0])[op_of]
        self._counts = np.array([*counts, 0])[op_of]
        self.values = np.array(values, np.int64)
        self.producers = np.array(producers, np.int64)
        self.weights = np.array(weights, float)

    def of(
        self, owners: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Pairs (position in `owners`, position in `values`)."""
        counts = self._counts[owners]
        ends = np.cumsum(counts)
        rows = np.repeat(np.arange(len(owners)), counts)
        first = self._starts[owners] - ends + counts
        return rows, first[rows] + np.arange(len(rows))


def _following_uses(problem: Problem) -> list[tuple[OpId, ...]]:
    """Per op and input the next op that reads it, or -1."""
    following: list[tuple[OpId, ...]] = []
    later: dict[ValueId, OpId] = {}
    for k in range(len(problem.ops) - 1, -1, -1):
        inputs = problem.ops[k].inputs
        following.append(tuple(later.get(v, -1) for v in inputs))
        later |= dict.fromkeys(inputs, k)
    return following[::-1]
