"""Finds a cheap schedule whose values fit a pool, with the whole step in view.

    plan(problem, pool):
        seed      the program's own order; if that cannot be made to fit, online Coop
                  with look-ahead: eviction windows in an arena, partitioned, in place
        relieve   it until it fits, trim what is not needed      (`_search`)
        refine    leave the schedule and come back by another way

This is Coop's economy (cost over staleness, NeurIPS 2023 section 3.3) with the future
in place of the past: the waiting time ahead instead of the staleness behind, and the
bytes actually in the way instead of a request. Work is counted in moves tried, not in
seconds, so that a plan is the same on every host; `time_limit` is a guard for the
extreme case.
"""

import math
from collections.abc import Iterator, Sequence

from ._eviction import LOOKAHEAD
from ._online import run_online
from ._retention import Retention
from ._search import Effort as Effort
from ._search import Planned as Planned
from ._search import Positions as Positions
from ._search import Search
from ._types import Problem, Schedule

_SEED_STEPS_PER_OP = 4
_ATTEMPTS = 8
_FIRST_SHARE = 0.3
_CLOSE = 1.02


def plan(
    problem: Problem,
    pool: int,
    effort: Effort | None = None,
    starts: Sequence[Positions] = (),
) -> Planned:
    """Plans `problem` so that at most `pool` bytes are alive at once.

    Args:
      problem: ops in program order with costs and sizes.
      pool: bytes for values (the budget less `problem.fixed`).
      effort: how long to refine.
      starts: plans for other pools to begin with; from scratch if none can be made to
        fit.

    Returns:
      The cheapest schedule found; with `fits=False`, none was within the pool and the
      schedule is only the last attempt's.
    """
    effort = effort or Effort()
    state = Retention(problem)
    search = Search(state, pool, effort)
    outcomes = [search.reach(start) for start in starts]
    for seed in _seeds(problem, pool):
        if any(outcome.fits for outcome in outcomes):
            break
        search.moves_left = effort.moves
        outcomes.append(search.reach(seed))
    best = min(outcomes, key=lambda outcome: (not outcome.fits, outcome.cost))
    state.restore(best.positions)
    if best.fits:
        search.refine(effort)
    return search.result(best.fits)


def _seeds(problem: Problem, pool: int) -> Iterator[Positions]:
    """The unplanned schedule, then online Coop with look-ahead if it gets through."""
    yield program_order(problem)
    run = run_online(problem, problem.fixed + pool, LOOKAHEAD, _SEED_STEPS_PER_OP)
    if run.is_feasible:
        yield positions(problem, run.schedule)


def program_order(problem: Problem) -> Positions:
    """Positions of the unplanned schedule."""
    return tuple((k,) for k in range(len(problem.ops)))


def positions(problem: Problem, schedule: Schedule) -> Positions:
    """Where each op runs: a repeat belongs to the next op that runs for the first time.

    The schedule must run first times in program order, as online policies do.
    """
    places: list[set[int]] = [set() for _ in problem.ops]
    current = 0
    for op in schedule:
        places[op].add(current)
        if op == current:
            current += 1
    return tuple(tuple(sorted(where)) for where in places)


def smallest(problem: Problem, effort: Effort | None = None) -> Planned:
    """Plans for the smallest pool that can be reached.

    Halves the interval between what the largest op needs for itself and the smallest
    pool reached so far, each time from the best plan and from the program's own order.
    """
    effort = effort or Effort()
    state = Retention(problem)
    search = Search(state, state.peak(), effort)
    best = search.reach(program_order(problem))
    low, pool = _least(problem), _FIRST_SHARE * best.peak
    moves = max(effort.moves // 2, min(8 * len(problem.ops), 2 * effort.moves))
    for _ in range(_ATTEMPTS):
        search.pool = max(int(pool), low)
        reached = best
        for start in (best.positions, program_order(problem)):
            search.moves_left = moves
            reached = search.reach(start)
            if reached.fits:
                break
        if reached.fits:
            best = reached
        else:
            low = search.pool
        if best.peak <= low * _CLOSE:
            break
        pool = math.sqrt(low * best.peak)
    search.pool = best.peak
    search.moves_left = moves // 2
    state.restore(best.positions)
    search.refine(effort)
    return search.result(fits=True)


def _least(problem: Problem) -> int:
    """Bytes that no schedule goes below: the values that one op reads and writes."""
    sizes = [
        0 if problem.producer[v] < 0 else value.size
        for v, value in enumerate(problem.values)
    ]
    return max(
        (
            sum(sizes[v] for v in {*op.inputs, *op.outputs})
            - sum(sizes[target] for target in {target for _, target in op.in_place})
            + op.workspace
            for op in problem.ops
        ),
        default=0,
    )
