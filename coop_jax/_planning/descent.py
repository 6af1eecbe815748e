"""Ways down to as few bytes as can be reached. Imports no JAX.

descend    in strides to smaller pools, each from the last schedule or else from the
           program's own order; with scores of gaps a little at random it comes out
           elsewhere, often lower
deepen     from a schedule on, a little at a time
roomy      descend with room left beside the fullest place (`margins`), then deepen
"""

import dataclasses
import math

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


def descend(
    search: AnySearch, target: int, noise: float = 0.0, seed: int = 0
) -> Planned:
    """The smallest schedule reached on the way down to `target` bytes.

    A stride that leads nowhere is halved.

    Args:
      search: at the problem; what it did before is forgotten.
      target: bytes; the way ends there.
      noise: most by which scores of gaps are changed at random, as a share; then gaps
        are taken by their estimates first.
      seed: of the random numbers.
    """
    problem = search.problem
    search.begin(target, seed)
    moves = max(search.moves // 2, min(8 * len(problem.ops), search.moves))
    order = program_order(problem)
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
        if best.size <= target or stride > _SHORTEST:
            break
    search.pool, search.moves_left = target, moves
    if best.size > target:
        return dataclasses.replace(best, fits=False)
    return search.reach(best.positions)


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


def roomy(
    search: AnySearch, best: Planned, share: float, is_packed: bool, effort: Effort
) -> Planned:
    """What a way down comes to that leaves room beside the fullest place.

    Args:
      search: to go on with.
      best: a schedule, whose fullest place counts.
      share: left of what has not piled up yet.
      is_packed: whether what packing loses counts on that way down.
      effort: how long to refine.
    """
    margins = with_margins(search.problem, best, share)
    beside = open_search(margins.problem, best.peak, effort, is_packed)
    beside.deadline = search.deadline
    found = descend(beside, best.peak)
    search.begin(best.size)
    found = search.at(margins.without(found.positions))
    return deepen(search, dataclasses.replace(found, fits=True), effort)
