"""Moves that fit a schedule into a pool and make it cheaper. Imports no JAX.

    relieve   while some position is over the pool: rematerialize across the gap
              that takes most excess bytes away per second of recomputation
    trim      take back every rematerialization that is no longer needed
    refine    relieve to a slightly smaller pool and trim back, or tear out a few
              neighbouring rematerializations and repair; keep what is cheaper

A *gap* is a stretch over which a value only waits for its next reader. Dropping it
means running the producer again just before that reader; each input of the producer is
then either kept alive that much longer or recomputed too, whichever is cheaper at the
going rate of excess bytes per second. A value with no reader before the gap is simply
moved, which costs nothing.
"""

import random
import time
from dataclasses import dataclass

import numpy as np

from ._retention import Edit, Gap, Retention, Step
from ._types import OpId, Schedule

_NEGLIGIBLE = 1 / 4096
_MAX_CHAIN = 64
_PROBES = 12
_NEAR_BEST = 0.7
_SQUEEZE = (0.93, 0.995)
_TEARING = 0.3
_NOISE = 0.3
_WORTH_FOLLOWING = 1.003
_PATIENCE = 8
_SMALL = 1000


type Positions = tuple[tuple[int, ...], ...]
"""Per op, where it runs."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to search.

    Attributes:
      rounds: refinement rounds without improvement before stopping, and at most ten
        times as many in all; problems of few ops, which take no time, get more.
      moves: steps tried at most, seeds and refinement together; bounds the time.
      time_limit: seconds after which refinement stops wherever it is.
    """

    rounds: int = 20
    moves: int = 12_000
    time_limit: float = 20.0


@dataclass(frozen=True, slots=True)
class Planned:
    """Result of `plan`.

    Attributes:
      schedule: ops in the order they run.
      positions: per op, where it runs (its own position first if it runs at home).
      peak: most bytes alive in the pool at once.
      cost: seconds by the cost model.
      fits: whether `peak` is within the pool asked for.
    """

    schedule: Schedule
    positions: Positions
    peak: int
    cost: float
    fits: bool


@dataclass(frozen=True, slots=True)
class Chain:
    """Steps that recompute a value.

    Attributes:
      steps: in the order they run; none if the value cannot be recomputed there.
      estimate: excess bytes that they take away per second.
      stretches: whether an input has to stay alive, over some excess, for them.
    """

    steps: tuple[Step, ...]
    estimate: float
    stretches: bool


class Relief:
    """How much excess a value of some size adds or takes away over a stretch."""

    def __init__(self, bytes_at: np.ndarray, pool: int) -> None:
        self._excess = np.maximum(bytes_at - pool, 0)
        self._prefix: dict[int, list[int]] = {}

    def of(self, size: int, start: int, end: int) -> int:
        """Sum over positions `[start, end)` of the excess that `size` bytes cover."""
        if size not in self._prefix:
            covered = np.cumsum(np.minimum(self._excess, size))
            self._prefix[size] = [0, *covered.tolist()]
        prefix = self._prefix[size]
        return prefix[end] - prefix[start]


class Search:
    """Moves on one `Retention` towards one pool size."""

    def __init__(self, state: Retention, pool: int, effort: Effort) -> None:
        self.state = state
        self.pool = pool
        self.minimum = max(1, int(state.peak() * _NEGLIGIBLE))
        self.tiny_cost = 1e-6 * state.cost + 1e-30
        self.rng = random.Random(0)
        self.moves_left = effort.moves
        self.tabu: set[OpId] = set()
        self.relief = Relief(state.bytes_at, pool)
        self.rate = np.inf

    def reach(self, start: Positions) -> Planned:
        """Relieves a schedule until it is within the pool, then trims it."""
        self.state.restore(start)
        fits = self.relieve()
        if fits:
            self.trim()
        return self.result(fits)

    def result(self, fits: bool) -> Planned:
        state = self.state
        return Planned(
            state.schedule(), state.snapshot(), state.peak(), state.cost, fits
        )

    # Relieve: from over the pool to within it

    def relieve(self, noise: float = 0.0) -> bool:
        """Adds rematerializations until nothing is over the pool, or nothing helps."""
        while excess := self.state.overload(self.pool):
            if self.moves_left <= 0:
                return False
            moves = self._rank(noise)
            if not self._take(moves, excess):
                self.rate = 0.0
                if not self._take(moves, excess):
                    return False
        return True

    def _rank(self, noise: float) -> list[tuple[float, Gap]]:
        """Gaps over the excess with a bound on bytes per second, best first."""
        state, relief = self.state, Relief(self.state.bytes_at, self.pool)
        self.relief = relief
        ranked = []
        for gap in state.gaps(self.minimum):
            producer = state.problem.producer[gap.value]
            gain = relief.of(state.sizes[gap.value], gap.start + 1, gap.end)
            if not gain or producer in self.tabu:
                continue
            score = gain / self._least_cost(gap)
            if noise:
                score *= self.rng.uniform(1 - noise, 1 + noise)
            ranked.append((score, gap))
        ranked.sort(key=lambda move: -move[0])
        return ranked

    def _least_cost(self, gap: Gap) -> float:
        """Seconds of the producer, or nothing if it would only move."""
        producer = self.state.problem.producer[gap.value]
        cost = self.state.problem.ops[producer].cost - self._saved(gap)
        return max(cost, self.tiny_cost)

    def _saved(self, gap: Gap) -> float:
        """Seconds of the earlier step if this gap leaves it without readers."""
        producer = self.state.problem.producer[gap.value]
        op = self.state.problem.ops[producer]
        only_moves = gap.start in self.state.runs[producer] and len(op.outputs) == 1
        return op.cost if only_moves else 0.0

    def _take(self, moves: list[tuple[float, Gap]], excess: int) -> bool:
        """Takes the best move, then others in order while they come near it."""
        best, edits = self._probe(moves, excess)
        if not edits:
            return False
        self.state.redo(edits)
        self.rate = best * _NEAR_BEST
        failures = 0
        for bound, gap in moves:
            excess = self.state.overload(self.pool)
            if bound < best * _NEAR_BEST or failures > _PROBES or excess == 0:
                break
            _, edits = self._best_variant(gap, excess, best * _NEAR_BEST)
            self.state.redo(edits)
            failures = 0 if edits else failures + 1
        return True

    def _probe(
        self, moves: list[tuple[float, Gap]], excess: int
    ) -> tuple[float, list[Edit]]:
        """The best true rate among the most promising moves, with its edits."""
        best, best_edits, helpful = 0.0, [], 0
        for bound, gap in moves:
            if bound <= best or helpful >= _PROBES:
                break
            score, edits = self._best_variant(gap, excess, best)
            if edits:
                best, best_edits, helpful = score, edits, helpful + 1
        return best, best_edits

    def _best_variant(
        self, gap: Gap, excess: int, floor: float
    ) -> tuple[float, list[Edit]]:
        """The best way to drop this gap: (bytes per second, edits) if above `floor`.

        Inputs that are dead by then are kept alive, or recomputed where that is worth
        the going rate; recomputing all of them is the last resort.
        """
        best, best_edits = floor, []
        kept = self._chain(gap, np.inf)
        chains = [kept]
        if kept.stretches:
            again = self._chain(gap, self.rate)
            chains += [again] if again.steps != kept.steps else []
        for chain in chains:
            if not chain.steps or chain.estimate < best * _NEAR_BEST:
                continue
            score, edits = self._try(chain.steps, excess)
            if score > best or (score == best > 0 and not best_edits):
                best, best_edits = score, edits
        return best, best_edits

    def _chain(self, gap: Gap, rate: float) -> Chain:
        """Steps that recompute the gap's value at its end.

        An input that is no longer alive is recomputed too if keeping it would cost more
        than `rate` excess bytes per second of its recomputation. No steps if the value
        cannot be recomputed there.
        """
        state, problem = self.state, self.state.problem
        op, position = problem.producer[gap.value], gap.end
        if op in self.tabu or not state.may_run(op, position):
            return Chain((), 0.0, False)
        stretches = False
        gain = self.relief.of(state.sizes[gap.value], gap.start + 1, position)
        cost = self._least_cost(gap)
        steps, todo = {op}, [op]
        while todo:
            for v in problem.ops[todo.pop()].inputs:
                producer, size = problem.producer[v], state.sizes[v]
                if size < self.minimum or producer in steps:
                    continue
                alive = state.last_alive(v, position, producer + 1)
                if alive >= position:
                    continue
                kept = self.relief.of(size, alive + 1, position)
                again = problem.ops[producer].cost
                stretches = stretches or kept > 0
                if kept > rate * again and self._may_chain(producer, position, steps):
                    steps.add(producer)
                    todo.append(producer)
                    cost += again
                else:
                    gain -= kept
        places = tuple((k, position) for k in sorted(steps))
        return Chain(places, gain / cost, stretches)

    def _may_chain(self, op: OpId, position: int, steps: set[OpId]) -> bool:
        return (
            len(steps) < _MAX_CHAIN
            and op not in self.tabu
            and self.state.may_run(op, position)
        )

    def _try(self, steps: tuple[Step, ...], excess: int) -> tuple[float, list[Edit]]:
        """Applies and undoes the steps. Returns excess bytes taken away per second."""
        state, before = self.state, self.state.cost
        self.moves_left -= len(steps)
        log: list[Edit] = []
        for op, position in steps:
            state.insert(op, position, log)
        state.sweep([op for op, _ in steps], log)
        gain = excess - state.overload(self.pool)
        score = gain / max(state.cost - before, self.tiny_cost)
        edits = list(log)
        state.undo(log)
        return score, edits

    # Trim: take back what is not needed

    def trim(self) -> None:
        """Removes rematerializations, dearest first, while the pool still holds."""
        state = self.state
        improved = True
        while improved:
            improved = False
            costs = [(state.problem.ops[k].cost, k, b) for k, b in state.remats()]
            for _, op, position in sorted(costs, reverse=True):
                improved |= self._take_back((op, position))

    def _take_back(self, step: Step) -> bool:
        state = self.state
        op, position = step
        if position not in state.runs[op][1:]:
            return False
        log: list[Edit] = []
        before = state.cost
        state.remove(op, position, log)
        if state.cost < before and state.overload(self.pool) == 0:
            return True
        state.undo(log)
        return False

    # Refine: leave the schedule and come back by another way

    def refine(self, effort: Effort) -> None:
        """Iterated local search around the present schedule, which fits.

        Most rounds plan for a slightly smaller pool and trim back to the real one; the
        others tear out a few neighbouring rematerializations and repair. A schedule a
        little dearer than the best is a starting point too.
        """
        state = self.state
        best = present = state.snapshot()
        best_cost = present_cost = state.cost
        deadline = time.monotonic() + effort.time_limit
        idle = 0
        rounds = effort.rounds * min(5, max(1, _SMALL // max(state.length, 1)))
        for _ in range(10 * rounds):
            is_spent = self.moves_left <= 0 or time.monotonic() > deadline
            if idle >= rounds or not state.remats() or is_spent:
                break
            idle += 1
            if self._leave_and_return():
                if state.cost < best_cost * (1 - 1e-9):
                    best, best_cost, idle = state.snapshot(), state.cost, 0
                if state.cost <= best_cost * _WORTH_FOLLOWING != present_cost:
                    present, present_cost = state.snapshot(), state.cost
                    continue
            if idle % _PATIENCE == 0:
                present, present_cost = best, best_cost
            state.restore(present)
        state.restore(best)

    def _leave_and_return(self) -> bool:
        """One perturbation and its repair. Returns whether the result fits."""
        pool = self.pool
        if self.rng.random() < _TEARING:
            self._tear_out(self.state.remats())
        else:
            self.pool = int(pool * self.rng.uniform(*_SQUEEZE))
        is_repaired = self.relieve(noise=_NOISE)
        self.pool = pool
        self.tabu.clear()
        if is_repaired:
            self.trim()
        return is_repaired

    def _tear_out(self, remats: list[Step]) -> None:
        """Removes some rematerializations near a random, preferably dear, one."""
        ops = self.state.problem.ops
        weights = [ops[k].cost + self.tiny_cost for k, _ in remats]
        op, centre = self.rng.choices(remats, weights)[0]
        reach = self.rng.choice((0, 4, 16, 64))
        if self.rng.random() < 0.7:
            self.tabu.add(op)
        for op, position in remats:
            near = abs(position - centre) <= reach
            if near and self.rng.random() < 0.6 and position in self.state.runs[op][1:]:
                self.state.remove(op, position, [])
