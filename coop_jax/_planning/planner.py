"""Finds a cheap schedule whose values fit a pool, with the whole step in view.

    plan(problem, pool):
        reach     the pool in several ways: from plans that are known, from what minimum
                  cuts keep across the fullest place (`cuts`), the program's own order,
                  online Coop's schedule (eviction windows in an arena, partitioned, in
                  place) or, if few get there, from segments that run again
                  (`segment_plans`) and in strides to smaller pools, also with noise
                  (`descent`): relieve a schedule until it fits, trim what is not
                  needed (`search`; several at once: `crew`)
        leave     room beside the fullest place, for the smallest pool, in several ways,
                  and go on down from each: it packs better (`margins`)
        refine    the best few: leave and come back by another way, and take back at
                  last what packing allows    (`refine`)

This is Coop's economy (cost over staleness, NeurIPS 2023 section 3.3) with the future
in place of the past: the waiting time ahead instead of the staleness behind, and the
bytes actually in the way instead of a request. Work is counted in moves tried, not in
seconds, so that a plan is the same on every host; `time_limit` is a guard for the
extreme case.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import chain, islice, product

from .crew import AnySearch, Crew, Start, Way
from .cuts import cut_plans
from .descent import OUT_OF_REACH, WayDown, deepen, descend, roomy
from .eviction import LOOKAHEAD
from .online import run_online
from .planned import LONG, little
from .planned import Effort as Effort
from .planned import Planned as Planned
from .planned import Positions as Positions
from .planned import program_order as program_order
from .segment_plans import segment_plans
from .types import Problem, Schedule

_SEED_STEPS_PER_OP = 4
_WAYS_TO_THE_FLOOR = 3
_NOISY_WAYS = 12
_NOISY_WAYS_DOWN = 8
# Ways down with noise to a pool, and to the smallest, which is gone on from.
_NOISY_DESCENTS, _NOISY_TO_THE_FLOOR = 4, 1
_ENOUGH_WAYS = 6
# After so many ways, all ending further above the pool than by this factor, there is
# no hope; on the way down each pool is only a try.
_HOPELESS = (4, 1.1)
_HOPELESS_DOWN = (3, OUT_OF_REACH)
_HOPELESS_AFRESH = (1, 1.1)
_FAR_BEHIND = 1.1
_NOISE = 0.3
_NEARLY_FREE = 1.0005
# Where fewer ways fit, packing is in the way: strides, which pack, may come cheaper.
_FEW = 3
# Shares of what has not piled up; the second from where the first led.
_MARGINS = (0.4, 0.6)
_AS_SMALL = 1.005
# A way down that ends so far above another goes no further from there either.
_BEHIND = 1.1
# So much larger than the smallest, a cheaper plan is worth starting from.
_NEARBY = 1.1
# The last refinement: of how many schedules, rounds and moves over the usual, and how
# many are tightened then.
_FINALISTS, _THOROUGH, _LAST_MOVES, _TIGHTENED = 4, 16, 4, 2

type WaysDown = dict[int, WayDown]
"""By the seed of their noise; without any, 0."""


def plan(
    problem: Problem,
    pool: int,
    effort: Effort | None = None,
    starts: Sequence[Positions] = (),
    ways_down: WaysDown | None = None,
    *,
    is_packed: bool = False,
) -> Planned:
    """Plans `problem` so that it takes at most `pool` bytes.

    Args:
      problem: ops in program order with costs and sizes.
      pool: bytes for values (the budget less `problem.fixed`).
      effort: how long to refine.
      starts: plans for other pools, to begin with beside the program's order.
      ways_down: those gone before, of this problem; new ones are put there.
      is_packed: count what packing loses too (`buffer_assignment`), not just the
        bytes alive at once.

    Returns:
      The cheapest schedule found; with `fits=False`, none was within the pool, and it
      is the smallest.
    """
    effort = effort or Effort()
    with Crew(problem, pool, effort, is_packed) as crew:
        guides = [] if _is_long(problem) else list(cut_plans(problem, pool))
        known = [*starts, *guides]
        ways = chain(map(Way, known), _ways(problem, pool))
        enough = _enough_ways(problem) + len(guides)
        reached = list(_followed(crew, pool, ways, effort, enough, len(known)))
        fitting = sum(one.fits for one in reached[len(starts) :])
        best = _best(reached)
        is_cheap = best.fits and _is_nearly_free(problem, best)
        if not is_cheap and fitting < (1 if _is_long(problem) else _FEW):
            under_way = _ways_to_less(crew, pool, effort, ways_down, _NOISY_DESCENTS)
            by_segments = _by_segments(crew, pool, effort)
            reached += [*by_segments, *(way.result() for way in under_way)]
        best = _best(reached)
        if best.peak <= pool:
            best = _best((best, *_refined(crew, best, reached, effort)))
    return best


def _by_segments(crew: Crew, pool: int, effort: Effort) -> Iterable[Planned]:
    """What plans that run segments again come to, meanwhile; none in long programs."""
    is_late = time.monotonic() > crew.lead.deadline
    if is_late or _is_long(crew.lead.problem):
        return []
    plans = segment_plans(crew.lead.problem, pool)
    return crew.send(map(Way, plans), pool, little(effort))


def _refined(
    crew: Crew, best: Planned, reached: Iterable[Planned], effort: Effort
) -> list[Planned]:
    """What the best and the next cheapest come to with much refinement.

    Not in long programs, where that would take too long.
    """
    lead = crew.lead
    if _is_long(lead.problem):
        lead.moves_left = lead.moves // 4
        return [lead.refine(best, effort)]
    many = effort.many_ops
    ops = max(len(lead.problem.ops), many)
    rounds = _THOROUGH * effort.rounds * many // ops
    thorough = dataclasses.replace(effort, rounds=rounds)

    def refine(start: Planned, search: AnySearch) -> Planned:
        search.begin(lead.pool)
        if not start.fits:
            # Else how much may be alive would be what an earlier way left it at.
            start = search.reach(start.positions)
        search.moves_left = _LAST_MOVES * search.moves * many // ops
        return search.refine(start, thorough)

    def tighten(found: Planned, search: AnySearch) -> Planned:
        search.begin(lead.pool)
        search.moves_left = search.moves * many // ops
        return search.tightened(found)

    fitting = sorted((one for one in reached if one.fits), key=lambda one: one.cost)
    different = {one.positions: one for one in (best, *fitting)}.values()
    chosen = islice(different, min(_FINALISTS, _enough_ways(lead.problem)))
    under_way = [crew.meanwhile(functools.partial(refine, one)) for one in chosen]
    refined = [each.result() for each in under_way]
    cheapest = sorted((one for one in refined if one.fits), key=lambda one: one.cost)
    last = cheapest[:_TIGHTENED]
    under_way = [crew.meanwhile(functools.partial(tighten, one)) for one in last]
    return [*refined, *(each.result() for each in under_way)]


def _followed(
    crew: Crew,
    pool: int,
    ways: Iterable[Way],
    effort: Effort,
    enough: int,
    known: int = 0,
    hopeless: tuple[int, float] = _HOPELESS,
) -> Iterator[Planned]:
    """Where the ways lead, one or more, until `enough` fit.

    Only a few if they all end far from the pool, but for the first `known` ones, which
    begin near it.
    """
    few, near = hopeless
    fitting, nearest = 0, math.inf
    for turn, found in enumerate(_sent(crew, ways, pool, little(effort)), 1):
        yield found
        fitting += found.fits
        nearest = min(nearest, found.size) if turn > known else nearest
        is_cheap = found.fits and _is_nearly_free(crew.lead.problem, found)
        is_late = time.monotonic() > crew.lead.deadline
        is_hopeless = turn - known >= few and nearest > pool * near
        if is_hopeless or fitting >= (1 if is_late or is_cheap else enough):
            break


def _sent(
    crew: Crew, ways: Iterable[Way], pool: int, polish: Effort
) -> Iterator[Planned]:
    """Where the ways lead.

    In most programs gaps are best taken either one by one or by their estimates: after
    one noisy way of each kind, a kind that ended far behind the other is left out.
    """
    ways, first = iter(ways), []
    for way in ways:
        first.append(way)
        if way.noise and way.is_quick:
            break
    reached: dict[bool, int] = {}
    for way, found in crew.follow(first, pool, polish):
        if way.noise:
            reached[way.is_quick] = found.size
        yield found
    most = min(reached.values(), default=0) * _FAR_BEHIND
    rest = (way for way in ways if reached.get(way.is_quick, 0) <= most)
    for _, found in crew.follow(rest, pool, polish, waits=False):
        yield found


def _enough_ways(problem: Problem) -> int:
    return min(_ENOUGH_WAYS, max(1, LONG // max(len(problem.ops), 1)))


def _is_nearly_free(problem: Problem, found: Planned) -> bool:
    return found.cost <= problem.cost(problem.program_order) * _NEARLY_FREE


def _is_long(problem: Problem) -> bool:
    return len(problem.ops) > LONG


def _ways(problem: Problem, pool: int) -> Iterator[Way]:
    """From the seeds, and from the program's order again, a little at random."""
    yield from map(Way, _seeds(problem, pool))
    yield from _noisy_ways(problem, _NOISY_WAYS)


def _ways_down(problem: Problem) -> Iterator[Way]:
    """From the program's order: online Coop does not get through so far down."""
    yield Way(program_order(problem))
    yield from _noisy_ways(problem, _NOISY_WAYS_DOWN)


def _noisy_ways(problem: Problem, count: int) -> Iterator[Way]:
    for turn in range(count):
        is_quick = turn % 2 == 1
        yield Way(program_order(problem), _NOISE, is_quick, seed=turn + 1)


def _best(found: Iterable[Planned]) -> Planned:
    return functools.reduce(
        lambda best, next_: next_ if next_.beats(best) else best, found
    )


def _seeds(problem: Problem, pool: int) -> Iterator[Start]:
    """The unplanned schedule, then online Coop with look-ahead if it gets through.

    Each of its evictions looks at the whole pool: too slow in long programs.
    """
    yield program_order(problem)
    if not _is_long(problem):
        yield lambda: _online(problem, pool)


def _online(problem: Problem, pool: int) -> Positions | None:
    run = run_online(problem, problem.fixed + pool, LOOKAHEAD, _SEED_STEPS_PER_OP)
    return positions(problem, run.schedule) if run.is_feasible else None


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
    ways_down: WaysDown | None = None,
    *,
    is_packed: bool = False,
) -> Planned:
    """Plans for the smallest pool that can be reached.

    Args:
      problem: ops in program order with costs and sizes.
      effort: how long to refine.
      ways_down: as for `plan`.
      is_packed: as for `plan`.
    """
    effort = effort or Effort()
    with Crew(problem, problem.fixed, effort, is_packed) as crew:
        search = crew.lead
        found = _further(crew, _reach_in_vain(crew, effort, ways_down), effort)
        least = min(planned.size for planned in found)
        near = [planned for planned in found if planned.size <= least * _AS_SMALL]
        best = min(near, key=lambda planned: planned.cost)
        # What is left of a long way down is seldom the cheapest way to be there.
        ways = islice(_ways_down(problem), _WAYS_TO_THE_FLOOR)
        enough = _enough_ways(problem)
        afresh = _followed(
            crew, best.size, ways, effort, enough, hopeless=_HOPELESS_AFRESH
        )
        by_segments = _by_segments(crew, best.size, effort)
        best = _best(chain([best], afresh, by_segments))
        search.begin(best.size)
        best = search.refine(best, effort)
        return dataclasses.replace(best, nearby=_nearby(best, found))


def _nearby(best: Planned, found: Iterable[Planned]) -> tuple[Positions, ...]:
    """Where plans for a little more may start from, cheapest first."""
    cheaper = (f for f in found if f.size <= best.size * _NEARBY and f.cost < best.cost)
    return tuple(f.positions for f in sorted(cheaper, key=lambda f: f.cost))


def _reach_in_vain(
    crew: Crew, effort: Effort, ways_down: WaysDown | None
) -> list[Planned]:
    """The smallest of fresh starts for a pool out of reach and of ways down.

    Those with noise apart: from what is smallest it does not always go furthest down.
    """
    problem = crew.lead.problem
    pool = problem.least_pool
    under_way = _ways_to_less(crew, pool, effort, ways_down, _NOISY_TO_THE_FLOOR)
    ways = [] if _is_long(problem) else _ways_down(problem)
    found = list(_followed(crew, pool, ways, effort, 1, hopeless=_HOPELESS_DOWN))
    quiet, *noisy = (way.result() for way in under_way)
    starts = [_best(ways) for ways in ([*found, quiet], noisy) if ways]
    least = min(start.size for start in starts)
    return [start for start in starts if start.size <= least * _BEHIND]


def _further(crew: Crew, starts: list[Planned], effort: Effort) -> list[Planned]:
    """Schedules further down than each start, the last ones from the best of those."""

    def go_on(start: Planned, search: AnySearch) -> Planned:
        search.begin(start.size)
        return deepen(search, dataclasses.replace(start, fits=True), effort)

    @functools.cache
    def leave_room(best: Planned, share: float) -> Future[Planned]:
        return crew.meanwhile(lambda search: roomy(search, best, share, effort))

    under_way = [crew.meanwhile(functools.partial(go_on, start)) for start in starts]
    found = [[way.result()] for way in under_way]
    shares = () if _is_long(crew.lead.problem) else _MARGINS
    for turn, share in enumerate(shares):
        best = [min(each, key=lambda planned: planned.size) for each in found]
        # Who is idle goes ahead: where this leads nowhere, the next begins here too.
        ahead = shares[turn:] if len(best) < crew.at_once else [share]
        for one in product(best, ahead):
            leave_room(*one)
        for each, one in zip(found, best, strict=True):
            each.append(leave_room(one, share).result())
    return [*chain(*found)]


def _ways_to_less(
    crew: Crew, pool: int, effort: Effort, ways_down: WaysDown | None, noisy: int
) -> list[Future[Planned]]:
    """Ways down to a pool under way: as scores say, and so many with noise.

    None but those that were gone before, if any of them came there.
    """
    ways_down = {} if ways_down is None else ways_down

    def down(seed: int, search: AnySearch) -> Planned:
        way = ways_down.get(seed) or WayDown(_NOISE if seed else 0.0, seed)
        found, ways_down[seed] = descend(search, pool, way)
        return search.refine(found, little(effort)) if found.peak <= pool else found

    seeds = list(range(1 if _is_long(crew.lead.problem) else 1 + noisy))
    if any(way.comes_to(pool) for way in ways_down.values()):
        seeds = sorted(ways_down)
    return [crew.meanwhile(functools.partial(down, seed)) for seed in seeds]
