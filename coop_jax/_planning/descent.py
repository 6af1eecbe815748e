"""Ways down to as few bytes as can be reached. Imports no JAX.

descend    in strides to smaller pools, each from the last schedule or else from the
           program's own order; with scores of gaps a little at random it comes out
           elsewhere, often lower; what it passes is remembered for other pools
deepen     from a schedule on, a little at a time
roomy      descend with room left beside the fullest place (`margins`), then deepen
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

from .crew import AnySearch, open_search
from .margins import with_margins
from .planned import Effort, Planned, Positions, little, program_order

OUT_OF_REACH = 1.04
"""A fresh start that ends so far above the best would end no lower with more room."""

_ATTEMPTS = 10
_FIRST_SHARE = 0.3
_STRIDE = 0.75
_SHORTEST = 0.98
# After a fresh start that ends so far above the best, no other is tried.
_OUT_OF_SIGHT = 1.5
_MOST_STRIDES = 40


@dataclass(frozen=True, slots=True)
class WayDown:
    """A way down from a program's own order, as far as it was gone.

    Attributes:
      noise: most by which scores of gaps are changed at random, as a share; then gaps
        are taken by their estimates first.
      seed: of the random numbers.
      moves: tried at most on a stride.
      passed: schedules that it passed, each smaller than the one before.
      is_over: whether it leads no further.
    """

    noise: float = 0.0
    seed: int = 0
    moves: int = 0
    passed: tuple[Planned, ...] = ()
    is_over: bool = False

    def leads(self, target: int, moves: int) -> bool:
        """Whether it is known where it comes to with so many moves."""
        return self.moves >= moves and (self.is_over or self.comes_to(target))

    def comes_to(self, target: int) -> bool:
        """Whether it passed a schedule within `target` bytes."""
        return any(one.size <= target for one in self.passed)


def descend(search: AnySearch, target: int, way: WayDown) -> tuple[Planned, WayDown]:
    """The first schedule on a way down within `target` bytes, or else its last.

    Args:
      search: at the problem; what it did before is forgotten.
      target: bytes; the way is gone so far, unless it is known.
      way: which one.

    Returns:
      The schedule, trimmed if it is within, and the way as it is known now.
    """
    moves = max(search.moves // 2, min(8 * len(search.problem.ops), search.moves))
    if not way.leads(target, moves):
        way = _gone(search, target, way, moves)
    search.begin(target, way.seed)
    search.moves_left = moves
    for schedule in way.passed:
        if schedule.size <= target:
            return search.reach(schedule.positions), way
    return dataclasses.replace(way.passed[-1], fits=False), way


def _gone(search: AnySearch, target: int, way: WayDown, moves: int) -> WayDown:
    search.begin(target, way.seed)
    passed: list[Planned] = []
    for schedule in _strides(search, way.noise, moves):
        if schedule not in passed[-1:]:
            passed.append(schedule)
        if schedule.size <= target:
            break
    is_over = passed[-1].size > target
    return dataclasses.replace(way, moves=moves, passed=tuple(passed), is_over=is_over)


def _strides(search: AnySearch, noise: float, moves: int) -> Iterator[Planned]:
    """The smallest schedules so far; a stride that leads nowhere is halved."""
    order = program_order(search.problem)
    best, stride = search.at(order), _FIRST_SHARE
    afresh = [(order, False), (order, True)]
    tried: set[tuple[Positions, int, bool]] = set()
    for _ in range(_ATTEMPTS):
        search.pool = int(stride * best.size)
        reached = best
        for start, is_quick in ((best.positions, noise > 0), *afresh):
            way = (start, search.pool, is_quick)
            if way not in tried and reached.size >= best.size:
                tried.add(way)
                search.moves_left = moves
                reached = search.reach(start, noise, is_quick)
                if start is order and reached.size > OUT_OF_REACH * best.size:
                    afresh = [way for way in afresh if way != (order, is_quick)]
                    if reached.size > _OUT_OF_SIGHT * best.size:
                        afresh = []
                        break
        stride = max(stride, _STRIDE) if reached.fits else math.sqrt(stride)
        best = min(best, reached, key=lambda planned: planned.size)
        yield best
        if stride > _SHORTEST:
            break


def deepen(search: AnySearch, best: Planned, effort: Effort) -> Planned:
    """Goes on down from a schedule, refining where only packing is in the way."""
    for _ in range(_MOST_STRIDES):
        search.pool, search.moves_left = int(best.size * _SHORTEST), search.moves // 2
        reached = search.reach(best.positions)
        if reached.peak <= search.pool < reached.size:
            reached = search.refine(reached, little(effort))
        if reached.size >= best.size:
            break
        best = dataclasses.replace(reached, fits=True)
    return best


def roomy(search: AnySearch, best: Planned, share: float, effort: Effort) -> Planned:
    """What a way down comes to that leaves room beside the fullest place.

    Args:
      search: to go on with.
      best: a schedule, whose fullest place counts.
      share: left of what has not piled up yet.
      effort: how long to refine.
    """
    margins = with_margins(search.problem, best, share)
    # Idle ops would be packed too: only what is alive counts on that way down.
    beside = open_search(margins.problem, best.peak, effort, is_packed=False)
    beside.deadline = search.deadline
    found, _ = descend(beside, best.peak, WayDown())
    search.begin(best.size)
    found = search.at(margins.without(found.positions))
    return deepen(search, dataclasses.replace(found, fits=True), effort)
