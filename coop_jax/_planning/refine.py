"""Makes a schedule that fits cheaper: iterated local search. Imports no JAX.

    squeeze    relieve to a slightly smaller pool and trim back to the real one; less
               and less so while that leads nowhere
    tear out   take back a few neighbouring rematerializations and repair
    tighten    take back many at once, if that packs

What is cheaper is kept, and a schedule a little dearer than the best is gone on from.
"""

import time
from bisect import bisect_right
from itertools import accumulate

from .planned import Effort, Planned
from .retention import Step
from .search import Search
from .types import Problem

_DEEPEST, _SHALLOWEST = 0.07, 0.002
_TEARING = 0.3
_NOISE = 0.3
_WORTH_FOLLOWING = 1.003
_PATIENCE = 8
_SMALL = 1000
_MOST_PACKINGS = 100
"""Packings of one schedule that is tightened."""
_PACKED, _MOVES = 50, 3
"""So many ops are packed for so many moves."""
_REACHES = (0, 4, 16, 64)


def refinement_rounds(problem: Problem, effort: Effort) -> int:
    """Rounds without improvement before stopping: more of them for few ops."""
    return effort.rounds * min(5, max(1, _SMALL // max(len(problem.ops), 1)))


class LocalSearch(Search):
    """`Search` that goes on from a schedule that fits."""

    def refine(self, start: Planned, effort: Effort) -> Planned:
        """The cheapest schedule found around one that fits, but for packing."""
        state, best, present = self.state, start, start.positions
        state.restore(present)
        self._make_room(best)
        idle, depth = 0, _DEEPEST
        rounds = refinement_rounds(self.problem, effort)
        for _ in range(10 * rounds):
            is_spent = self.moves_left <= 0 or time.monotonic() > self.deadline
            if idle >= rounds or not state.remats() or is_spent:
                break
            idle += 1
            is_back = self._leave_and_return(depth)
            depth = min(max(depth * (1.5 if is_back else 0.6), _SHALLOWEST), _DEEPEST)
            if is_back:
                if not best.fits or state.cost < best.cost * (1 - 1e-9):
                    found = self.result()
                    self._make_room(found)
                    if found.beats(best):
                        best, idle = found, 0
                if state.cost <= best.cost * _WORTH_FOLLOWING:
                    present = state.snapshot()
                    continue
            if idle % _PATIENCE == 0:
                present = best.positions
                self._make_room(best)
            state.restore(present)
        return best

    def tightened(self, best: Planned) -> Planned:
        """A schedule that fits, with less recomputed, if packing allows that.

        Takes back many rematerializations at once or, if that does not pack, fewer.
        The fewer moves are left, the less often it packs.
        """
        self.room = self.pool
        self.state.restore(best.positions)
        batches = _halves(self._dearest_first())  # all together do not pack
        most = _PACKED * self.moves_left // (_MOVES * max(len(self.problem.ops), 1))
        for _ in range(min(_MOST_PACKINGS, most)):
            if not batches:
                break
            batch = batches.pop()
            if not any([self._take_back(step) for step in batch]):
                continue
            found = self.result()
            if found.fits:
                best = found
                continue
            self.state.restore(best.positions)
            batches += _halves(batch)
        return best

    def _make_room(self, found: Planned) -> None:
        """Lets as much be alive as packing leaves, going by this schedule."""
        if found.fits:
            self.room = self.pool - (found.size - found.peak)
        else:
            self.room -= (found.size - self.pool) // 2

    def _leave_and_return(self, depth: float) -> bool:
        """One perturbation and its repair. Returns whether the result fits.

        Args:
          depth: share of the pool that is squeezed out at most.
        """
        room = self.room
        if self.rng.unit() < _TEARING:
            self._tear_out(self.state.remats())
        else:
            self.room = int(room * (1 - depth * self.rng.between(0.1, 1)))
        is_repaired = self.relieve(noise=_NOISE)
        self.room = room
        self.tabu.clear()
        if is_repaired:
            self.trim()
        return is_repaired

    def _tear_out(self, remats: list[Step]) -> None:
        """Removes some rematerializations near a random, preferably dear, one."""
        ops, runs = self.problem.ops, self.state.runs
        weights = list(accumulate(ops[k].cost + self.tiny_cost for k, _ in remats))
        drawn = bisect_right(weights, self.rng.unit() * weights[-1])
        op, centre = remats[min(drawn, len(remats) - 1)]
        reach = self.rng.choice(_REACHES)
        if self.rng.unit() < 0.7:
            self.tabu.add(op)
        for k, position in remats:
            is_near = abs(position - centre) <= reach
            if is_near and self.rng.unit() < 0.6 and position in runs[k][1:]:
                self.state.remove(k, position, [])


def _halves(steps: list[Step]) -> list[list[Step]]:
    """The second and the first half; none of one step."""
    middle = (len(steps) + 1) // 2
    return [steps[middle:], steps[:middle]] if len(steps) > 1 else []
