"""Finds a cheap schedule whose values fit a pool, with the whole step in view.

    plan(problem, pool):
        seed      the program's own order, and online Coop with look-ahead: eviction
                  windows in an arena, partitioned, in place
        relieve   each until it fits, trim what is not needed      (`_search`)
        refine    the cheaper one

This is Coop's economy (cost over staleness, NeurIPS 2023 section 3.3) with the future
in place of the past: the waiting time ahead instead of the staleness behind, and the
bytes actually in the way instead of a request. Work is counted in moves tried, not in
seconds, so that a plan is the same on every host; `time_limit` is a guard for the
extreme case.
"""

from dataclasses import replace

from ._eviction import LOOKAHEAD
from ._online import run_online
from ._retention import Retention
from ._search import Effort as Effort
from ._search import Planned as Planned
from ._search import Search
from ._types import Problem, Schedule

_SEED_STEPS_PER_OP = 4
_FRESH_STARTS = 4
_FRESH_SHRINK = 0.96


def plan(problem: Problem, pool: int, effort: Effort | None = None) -> Planned:
    """Plans `problem` so that at most `pool` bytes are alive at once.

    Args:
      problem: ops in program order with costs and sizes.
      pool: bytes for values (the budget less `problem.fixed`).
      effort: how long to refine.

    Returns:
      The cheapest schedule found; with `fits=False`, none was within the pool and the
      schedule is only the last attempt's.
    """
    effort = effort or Effort()
    state = Retention(problem)
    search = Search(state, pool, effort)
    seeds = [state.snapshot(), *_lookahead_seed(problem, pool)]
    outcomes = []
    for seed in seeds:
        state.restore(seed)
        fits = search.relieve()
        if fits:
            search.trim()
        outcomes.append((not fits, state.cost, state.snapshot()))
    is_over, _, best = min(outcomes, key=lambda outcome: outcome[:2])
    state.restore(best)
    if not is_over:
        search.refine(effort)
    return search.result(not is_over)


def _lookahead_seed(problem: Problem, pool: int) -> list[tuple[tuple[int, ...], ...]]:
    """Positions by online Coop with look-ahead, if it gets through."""
    run = run_online(problem, problem.fixed + pool, LOOKAHEAD, _SEED_STEPS_PER_OP)
    return [positions(problem, run.schedule)] if run.is_feasible else []


def positions(problem: Problem, schedule: Schedule) -> tuple[tuple[int, ...], ...]:
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

    The pool shrinks step by step, each plan starting from the last one. Where that
    ends, planning from scratch may get further; the best plan is then refined.
    """
    effort = effort or Effort()
    state = Retention(problem)
    search = Search(state, state.peak(), replace(effort, moves=effort.moves // 3))
    best, best_peak = state.snapshot(), state.peak()
    shrink = 0.8
    while shrink < 0.99 and best_peak > 0:
        search.pool = int(best_peak * shrink)
        if search.relieve():
            search.trim()
            best, best_peak = state.snapshot(), state.peak()
        else:
            state.restore(best)
            shrink = shrink**0.5
    state.restore(best)
    reached = search.result(fits=True)
    quick = replace(effort, rounds=0, moves=effort.moves // 8)
    pool = reached.peak
    for _ in range(_FRESH_STARTS):
        pool = int(min(pool, reached.peak) * _FRESH_SHRINK)
        fresh = plan(problem, pool, quick)
        reached = fresh if fresh.fits else reached
    again = plan(problem, reached.peak, replace(effort, moves=effort.moves // 3))
    return again if again.fits else reached
