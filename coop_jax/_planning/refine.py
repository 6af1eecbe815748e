"""Makes a schedule that fits cheaper: iterated local search. Imports no JAX.

    squeeze    relieve to a slightly smaller pool and trim back to the real one; less
               and less so while that leads nowhere
    tear out   take back a few neighbouring rematerializations and repair

What is cheaper is kept, and a schedule a little dearer than the best is gone on from.
"""

import time

from .retention import Step
from .search import Effort, Planned, Search

_DEEPEST, _SHALLOWEST = 0.07, 0.002
_TEARING = 0.3
_NOISE = 0.3
_WORTH_FOLLOWING = 1.003
_PATIENCE = 8
_SMALL = 1000


def refine(search: Search, start: Planned, effort: Effort) -> Planned:
    """The cheapest schedule found around one that fits, but for packing."""
    state, best = search.state, start
    state.restore(best.positions)
    present, present_cost = best.positions, best.cost
    _make_room(search, best)
    deadline = time.monotonic() + effort.time_limit
    idle, depth = 0, _DEEPEST
    rounds = effort.rounds * min(5, max(1, _SMALL // max(state.length, 1)))
    for _ in range(10 * rounds):
        is_spent = search.moves_left <= 0 or time.monotonic() > deadline
        if idle >= rounds or not state.remats() or is_spent:
            break
        idle += 1
        is_back = _leave_and_return(search, depth)
        depth = min(max(depth * (1.5 if is_back else 0.6), _SHALLOWEST), _DEEPEST)
        if is_back:
            if not best.fits or state.cost < best.cost * (1 - 1e-9):
                found = search.result()
                _make_room(search, found)
                if found.beats(best):
                    best, idle = found, 0
            if state.cost <= best.cost * _WORTH_FOLLOWING != present_cost:
                present, present_cost = state.snapshot(), state.cost
                continue
        if idle % _PATIENCE == 0:
            present, present_cost = best.positions, best.cost
            _make_room(search, best)
        state.restore(present)
    return best


def _make_room(search: Search, found: Planned) -> None:
    """Lets as much be alive as packing leaves, going by this schedule."""
    if found.fits:
        search.room = search.pool - (found.size - found.peak)
    else:
        search.room -= (found.size - search.pool) // 2


def _leave_and_return(search: Search, depth: float) -> bool:
    """One perturbation and its repair. Returns whether the result fits.

    Args:
      search: at a schedule that fits.
      depth: share of the pool that is squeezed out at most.
    """
    room = search.room
    if search.rng.random() < _TEARING:
        _tear_out(search, search.state.remats())
    else:
        search.room = int(room * (1 - depth * search.rng.uniform(0.1, 1)))
    is_repaired = search.relieve(noise=_NOISE)
    search.room = room
    search.tabu.clear()
    if is_repaired:
        search.trim()
    return is_repaired


def _tear_out(search: Search, remats: list[Step]) -> None:
    """Removes some rematerializations near a random, preferably dear, one."""
    ops = search.state.problem.ops
    weights = [ops[k].cost + search.tiny_cost for k, _ in remats]
    op, centre = search.rng.choices(remats, weights)[0]
    reach = search.rng.choice((0, 4, 16, 64))
    if search.rng.random() < 0.7:
        search.tabu.add(op)
    for op, position in remats:
        near = abs(position - centre) <= reach
        if near and search.rng.random() < 0.6 and position in search.state.runs[op][1:]:
            search.state.remove(op, position, [])
