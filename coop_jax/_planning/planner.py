"""Finds a cheap schedule whose values fit a pool, with the whole step in view.

    plan(problem, pool):
        reach     the pool from plans that are known; or else, in several ways, from the
                  program's own order, from online Coop's schedule (eviction windows in
                  an arena, partitioned, in place), and in strides to smaller pools:
                  relieve a schedule until it fits, trim what is not needed  (`search`)
        refine    the best: leave it and come back by another way     (`refine`)

This is Coop's economy (cost over staleness, NeurIPS 2023 section 3.3) with the future
in place of the past: the waiting time ahead instead of the staleness behind, and the
bytes actually in the way instead of a request. Work is counted in moves tried, not in
seconds, so that a plan is the same on every host; `time_limit` is a guard for the
extreme case.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from itertools import chain, islice

from .eviction import LOOKAHEAD
from .library import library
from .native_search import NativeSearch
from .online import run_online
from .planned import Effort as Effort
from .planned import Planned as Planned
from .planned import Positions as Positions
from .refine import LocalSearch
from .retention import Retention
from .types import Problem, Schedule

_SEED_STEPS_PER_OP = 4
_ATTEMPTS = 10
_FIRST_SHARE = 0.3
_STRIDE = 0.75
_SHORTEST = 0.98
_FURTHER_SHARES = (0.9, 0.97)
_WAYS_TO_THE_FLOOR = 4
_NOISY_WAYS = 12
_ENOUGH_WAYS = 6
_HOPELESS_WAYS = 4
_NEAR = 1.1
_LONG = 20_000
_NOISE = 0.3
_NEARLY_FREE = 1.0005


type AnySearch = NativeSearch | LocalSearch


def plan(
    problem: Problem,
    pool: int,
    effort: Effort | None = None,
    starts: Sequence[Positions] = (),
    *,
    is_packed: bool = False,
) -> Planned:
    """Plans `problem` so that it takes at most `pool` bytes.

    Args:
      problem: ops in program order with costs and sizes.
      pool: bytes for values (the budget less `problem.fixed`).
      effort: how long to refine.
      starts: plans for other pools to begin with; from scratch if none can be made to
        fit.
      is_packed: count what packing loses too (`buffer_assignment`), not just the
        bytes alive at once.

    Returns:
      The cheapest schedule found; with `fits=False`, none was within the pool and the
      schedule is only the last attempt's.
    """
    effort = effort or Effort()
    search = open_search(problem, pool, effort, is_packed)
    found = search.at(program_order(problem))
    for found in _attempts(search, starts, effort):
        if found.peak <= pool:
            search.moves_left = search.moves // 4
            found = search.refine(found, effort)
        if found.fits:
            break
    return found


def open_search(
    problem: Problem, pool: int, effort: Effort, is_packed: bool
) -> AnySearch:
    """A search by the native library, or by Python if that was not built."""
    if library() is None:
        return LocalSearch(Retention(problem), pool, effort, is_packed)
    return NativeSearch(problem, pool, effort, is_packed)


def _attempts(
    search: AnySearch, starts: Sequence[Positions], effort: Effort
) -> Iterator[Planned]:
    """Schedules to refine: the best from known plans, then the best from scratch."""
    if starts:
        yield _best(search.reach(start) for start in starts)
    found = _best(_refined(search, _ways(search), effort))
    if not found.fits:
        way = partial(_descend, search, search.pool)
        found = _best(chain([found], _refined(search, [way], effort)))
    yield found


def _refined(
    search: AnySearch, ways: Iterable[Callable[[], Planned]], effort: Effort
) -> Iterator[Planned]:
    """Where each of the ways leads, and a little refinement; fewer in long programs.

    Only a few if they all end far from the pool.
    """
    enough = min(_ENOUGH_WAYS, max(1, _LONG // max(len(search.problem.ops), 1)))
    quick = dataclasses.replace(effort, rounds=effort.rounds // 4)
    fitting, nearest = 0, math.inf
    least = search.problem.cost(search.problem.program_order)
    for turn, reach in enumerate(ways):
        if turn >= _HOPELESS_WAYS and nearest > search.pool * _NEAR:
            break
        search.moves_left = search.moves
        found = reach()
        nearest = min(nearest, found.peak)
        if found.peak <= search.pool:
            found = search.refine(found, quick)
        yield found
        fitting += found.fits
        is_nearly_free = found.fits and found.cost <= least * _NEARLY_FREE
        is_late = time.monotonic() > search.deadline
        if fitting >= (1 if is_late or is_nearly_free else enough):
            break


def _ways(search: AnySearch) -> Iterator[Callable[[], Planned]]:
    """From the seeds, and from the program's order again, a little at random."""
    for seed in _seeds(search.problem, search.pool):
        yield partial(search.reach, seed)
    for turn in range(_NOISY_WAYS):
        is_quick = turn % 2 == 1
        yield partial(search.reach, program_order(search.problem), _NOISE, is_quick)


def _best(found: Iterable[Planned]) -> Planned:
    return reduce(lambda best, next_: next_ if next_.beats(best) else best, found)


def _seeds(problem: Problem, pool: int) -> Iterator[Positions]:
    """The unplanned schedule, then online Coop with look-ahead if it gets through.

    Each of its evictions looks at the whole pool: too slow in long programs.
    """
    yield program_order(problem)
    if len(problem.ops) > _LONG:
        return
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


def smallest(
    problem: Problem,
    effort: Effort | None = None,
    known: Planned | None = None,
    *,
    is_packed: bool = False,
) -> Planned:
    """Plans for the smallest pool that can be reached.

    Args:
      problem: ops in program order with costs and sizes.
      effort: how long to refine.
      known: what `plan` came to where it did not fit, to go on from.
      is_packed: as for `plan`.
    """
    effort = effort or Effort()
    search = open_search(problem, problem.fixed, effort, is_packed)
    best = known or _descend(search, _least(problem))
    best = _deepen(search, dataclasses.replace(best, fits=True), effort)
    best = _go_further(search, best, effort)
    search.pool = best.size
    # What is left of a long way down is seldom the cheapest way to be there.
    ways = islice(_ways(search), _WAYS_TO_THE_FLOOR)
    best = _best(chain([best], _refined(search, ways, effort)))
    search.moves_left = search.moves
    return search.refine(best, effort)


def _deepen(search: AnySearch, best: Planned, effort: Effort) -> Planned:
    """Goes further down, with refinement where only packing is in the way."""
    quick = dataclasses.replace(effort, rounds=effort.rounds // 4)
    for _ in range(_ATTEMPTS):
        search.pool, search.moves_left = int(best.size * _SHORTEST), search.moves // 2
        reached = search.reach(best.positions)
        if reached.peak <= search.pool:
            reached = search.refine(reached, quick)
        if not reached.fits:
            break
        best = reached
    return best


def _go_further(search: AnySearch, best: Planned, effort: Effort) -> Planned:
    """Starts afresh for less: small steps from one schedule end in a corner."""
    for _ in range(_ATTEMPTS):
        for share in _FURTHER_SHARES:
            search.pool = int(best.size * share)
            fresh = _refined(search, _ways(search), effort)
            reached = next((found for found in fresh if found.fits), None)
            if reached is not None:
                break
        else:
            break
        best = _deepen(search, reached, effort)
    return best


def _descend(search: AnySearch, target: int) -> Planned:
    """The smallest schedule reached on the way down to `target` bytes.

    Goes down in strides, each from the last schedule or else from the program's own
    order; a stride that leads nowhere is halved.
    """
    problem = search.problem
    moves = max(search.moves // 2, min(8 * len(problem.ops), search.moves))
    order = program_order(problem)
    best, stride = search.at(order), _FIRST_SHARE
    tried: set[tuple[Positions, int, bool]] = set()
    for _ in range(_ATTEMPTS):
        search.pool = int(stride * best.size)
        reached = best
        for start, is_quick in ((best.positions, False), (order, False), (order, True)):
            way = (start, search.pool, is_quick)
            if way not in tried and reached.size >= best.size:
                tried.add(way)
                search.moves_left = moves
                reached = search.reach(start, is_quick=is_quick)
        stride = max(stride, _STRIDE) if reached.fits else math.sqrt(stride)
        best = min(best, reached, key=lambda planned: planned.size)
        if best.size <= target or stride > _SHORTEST:
            break
    search.pool, search.moves_left = target, moves
    if best.size > target:
        return dataclasses.replace(best, fits=False)
    return search.reach(best.positions)


def _least(problem: Problem) -> int:
    """Bytes that no schedule goes below: the values that one op reads and writes."""
    sizes = problem.pool_sizes
    return max(
        (
            sum(sizes[v] for v in {*op.inputs, *op.outputs})
            - sum(sizes[target] for target in {target for _, target in op.in_place})
            + op.workspace
            for op in problem.ops
        ),
        default=0,
    )
