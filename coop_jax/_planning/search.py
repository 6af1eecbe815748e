"""Moves that fit a schedule into a pool. Imports no JAX.

    relieve   while some position is over the pool: rematerialize across the gap
              that takes most excess bytes away per second of recomputation; where
              there are too many gaps to try them, go by estimates, many at once
    trim      take back every rematerialization that is no longer needed

A *gap* is a stretch over which a value only waits for its next reader. Dropping it
means running the producer again just before that reader; each input of the producer is
then either kept alive that much longer or recomputed too, whichever is cheaper at the
going rate of excess bytes per second. A value with no reader before the gap is simply
moved, which costs nothing.
"""

import time
from dataclasses import dataclass, replace

import numpy as np

from .buffer_assignment import packed
from .planned import LONG, Effort, Planned, Positions, most_moves
from .relief import Relief, least_counted
from .retention import Edit, Gap, Retention, Step
from .splitmix import SplitMix
from .types import OpId

_MAX_CHAIN = 64
_PROBES = 12
_NEAR_BEST = 0.7
_MOST_PACKINGS = 6
_TRIES_PER_GAP = 4
_UNTRIED_SHARE = 0.5
_SWELLING = 2


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


class Search:
    """Moves on one `Retention` towards one pool.

    Attributes:
      pool: bytes that a schedule may take.
      room: bytes that may be alive at once: less than `pool` where `is_packed`, by what
        packing was seen to lose.
      moves: steps tried at most from one seed.
      moves_left: of these.
      deadline: when refinement stops, by `time.monotonic`.
    """

    def __init__(
        self, state: Retention, pool: int, effort: Effort, is_packed: bool = False
    ) -> None:
        self.state = state
        self.problem = state.problem
        self.pool = self.room = pool
        self.is_packed = is_packed
        self._needed = [
            op.workspace + sum(state.sizes[v] for v in op.outputs)
            for op in self.problem.ops
        ]
        self.minimum = least_counted(state.sizes, state.peak())
        self.tiny_cost = 1e-6 * state.cost + 1e-30
        self.rng = SplitMix()
        self.moves = self.moves_left = most_moves(state.problem, effort)
        self.deadline = time.monotonic() + effort.time_limit
        self.tabu: set[OpId] = set()
        self.relief = Relief(state.bytes_at, pool)
        self.rate = np.inf
        self.is_quick = False

    def begin(self, pool: int, seed: int = 0) -> None:
        """Forgets what earlier searches left behind, and draws anew from `seed`."""
        self.pool, self.moves_left = pool, self.moves
        self.rng, self.rate = SplitMix(seed), np.inf

    def at(self, positions: Positions) -> Planned:
        """The schedule at these positions."""
        self.state.restore(positions)
        return self.result()

    def reach(
        self, start: Positions, noise: float = 0.0, is_quick: bool = False
    ) -> Planned:
        """Relieves a schedule until it is within the pool, then trims it.

        What packing loses may still be too much.

        Args:
          start: positions to begin with.
          noise: most by which scores of gaps are changed at random, as a share.
          is_quick: take gaps by their estimates, without trying them.
        """
        self.is_quick = is_quick
        self.state.restore(start)
        self.room = self.pool
        best: Planned | None = None
        for _ in range(_MOST_PACKINGS):
            if not self._relieve_on(noise):
                break
            dearer = self.result()
            self.trim()
            found = self.result()
            # Where neither fits, that the dearer one takes less is chance.
            for planned in (dearer, found) if dearer.fits else (found,):
                best = planned if best is None or planned.beats(best) else best
            if found.fits:
                break
            self.room -= found.size - self.pool
        self.is_quick = False
        return best or self.result()

    def result(self) -> Planned:
        """The present schedule."""
        state = self.state
        peak, size = state.peak(), self._size()
        fits = size <= self.pool
        return Planned(state.schedule(), state.snapshot(), peak, size, state.cost, fits)

    def _size(self) -> int:
        """Bytes that the schedule takes."""
        if not self.is_packed:
            return self.state.peak()
        return packed(self.problem, self.state.schedule()).peak

    # Relieve: from over the pool to within it

    def _relieve_on(self, noise: float) -> bool:
        """Relieves; where that ends, takes back what is not needed and goes on."""
        least, kept = np.inf, self.state.snapshot()
        is_long = len(self.problem.ops) > LONG  # to trim takes as long as the moves
        while not self.relieve(noise):
            peak, room = self.state.peak(), self.room
            if peak >= least:
                self.state.restore(kept)
            if peak >= least or (self.moves_left <= 0 and is_long):
                return False
            self.room = peak
            self.trim()
            self.room = room
            if self.moves_left <= 0:
                return False
            least, kept = peak, self.state.snapshot()
        return True

    def relieve(self, noise: float = 0.0) -> bool:
        """Adds rematerializations until nothing is over the pool, or nothing helps."""
        while excess := self.state.overload(self.room):
            if self.moves_left <= 0:
                return False
            moves = self._rank(noise)
            is_quick = self.is_quick or len(moves) * _TRIES_PER_GAP > self.moves_left
            if is_quick and self._take_untried(moves, excess):
                continue
            if not self._take(moves, excess):
                self.rate = 0.0
                if not self._take(moves, excess):
                    return False
        return True

    def _rank(self, noise: float) -> list[tuple[float, Gap]]:
        """Gaps over the excess with a bound on bytes per second, best first."""
        state, relief = self.state, Relief(self.state.bytes_at, self.room)
        self.relief = relief
        ranked = []
        for gap in state.gaps(self.minimum):
            producer = state.problem.producer[gap.value]
            gain = relief.of(state.sizes[gap.value], gap.start + 1, gap.end)
            if not gain or producer in self.tabu:
                continue
            score = gain / self._least_cost(gap)
            if noise:
                score *= self.rng.between(1 - noise, 1 + noise)
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
            excess = self.state.overload(self.room)
            if bound < best * _NEAR_BEST or failures > _PROBES or excess == 0:
                break
            _, edits = self._best_variant(gap, excess, best * _NEAR_BEST)
            self.state.redo(edits)
            failures = 0 if edits else failures + 1
        return True

    def _take_untried(self, moves: list[tuple[float, Gap]], excess: int) -> bool:
        """Takes the best moves by their estimates, until half of the excess is gone."""
        best = 0.0
        for bound, gap in moves:
            if bound <= best:
                break
            best = max(best, self._chain(gap, bound).estimate)
        left, least = excess * _UNTRIED_SHARE, best * _UNTRIED_SHARE
        is_taken = False
        for bound, gap in moves:
            if best == 0 or bound < least or left <= 0:
                break
            chain = self._chain(gap, bound)
            if not chain.steps or chain.estimate < least:
                continue
            before = self.state.cost
            self._insert(chain.steps, [])
            left -= chain.estimate * max(self.state.cost - before, self.tiny_cost)
            is_taken = True
        return is_taken

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
        the going rate; recomputing all of them is the last resort. What takes much room
        to compute may also be computed a position earlier.
        """
        best, best_edits = floor, []
        kept = self._chain(gap, np.inf)
        chains = [kept]
        if kept.stretches:
            again = self._chain(gap, self.rate)
            chains += [again] if again.steps != kept.steps else []
        if self._swells(gap, chains[-1]):
            chains.append(self._chain(replace(gap, end=gap.end - 1), self.rate))
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

    def _swells(self, gap: Gap, chain: Chain) -> bool:
        """Whether some step takes much more than the value: better before the others.

        So it is with the random bits of a dropout mask, made where attention is made
        again.
        """
        size = _SWELLING * self.state.sizes[gap.value]
        has_room = gap.end - 1 > gap.start
        return has_room and any(self._needed[op] > size for op, _ in chain.steps)

    def _may_chain(self, op: OpId, position: int, steps: set[OpId]) -> bool:
        return (
            len(steps) < _MAX_CHAIN
            and op not in self.tabu
            and self.state.may_run(op, position)
        )

    def _try(self, steps: tuple[Step, ...], excess: int) -> tuple[float, list[Edit]]:
        """Applies and undoes the steps. Returns excess bytes taken away per second."""
        state, before = self.state, self.state.cost
        log: list[Edit] = []
        self._insert(steps, log)
        gain = excess - state.overload(self.room)
        score = gain / max(state.cost - before, self.tiny_cost)
        edits = list(log)
        state.undo(log)
        return score, edits

    def _insert(self, steps: tuple[Step, ...], log: list[Edit]) -> None:
        self.moves_left -= len(steps)
        for op, position in steps:
            self.state.insert(op, position, log)
        self.state.sweep([op for op, _ in steps], log)

    # Trim: take back what is not needed

    def trim(self) -> None:
        """Removes rematerializations, dearest first, while the pool still holds."""
        improved = True
        while improved:
            improved = False
            for step in self._dearest_first():
                improved |= self._take_back(step)

    def _dearest_first(self) -> list[Step]:
        """Rematerializations, for taking them back."""
        ops = self.problem.ops
        costs = [(ops[k].cost, k, b) for k, b in self.state.remats()]
        return [(op, position) for _, op, position in sorted(costs, reverse=True)]

    def _take_back(self, step: Step) -> bool:
        state = self.state
        op, position = step
        if position not in state.runs[op][1:]:
            return False
        log: list[Edit] = []
        before = state.cost
        state.remove(op, position, log)
        if state.cost < before and state.overload(self.room) == 0:
            return True
        state.undo(log)
        return False
