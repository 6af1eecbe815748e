"""The planners a user can choose from, by name. Imports no JAX.

`"coop"` holds the whole step in view. `"coop-online"`, `"dtr"` and `"dte"` are the
published online policies: same arena, same emission, so that they compare.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from .buffer_assignment import packed
from .deadlines import Lifetimes
from .eviction import COOP, DTE, DTR, Policy
from .online import OnlineRun, run_online
from .planner import (
    Effort,
    Planned,
    Positions,
    WaysDown,
    plan,
    positions,
    smallest,
)
from .retention import Retention
from .types import Problem, ValueId

_FINENESS = 0.02
_MOST_PACKINGS = 6


@dataclass(frozen=True, slots=True)
class Planner:
    """One way to plan.

    Attributes:
      plan: (problem, pool in bytes, effort, plans to start from, ways down that were
        gone before) -> the cheapest schedule it finds whose values, packed, are within
        the pool.
      smallest: (problem, effort, ways down that were gone before) -> a schedule for
        the smallest pool it reaches.
    """

    plan: Callable[[Problem, int, Effort, Sequence[Positions], WaysDown], Planned]
    smallest: Callable[[Problem, Effort, WaysDown], Planned]


def _online(policy: Policy) -> Planner:
    def run_once(problem: Problem, pool: int) -> Planned:
        run = _run(problem, problem.fixed + pool, policy)
        state = Retention(problem)
        if run.is_feasible:
            state.restore(positions(problem, run.schedule))
        schedule = state.schedule()
        size = packed(problem, schedule).peak
        return Planned(
            schedule,
            state.snapshot(),
            state.peak(),
            size,
            state.cost,
            run.is_feasible,
        )

    def plan_online(
        problem: Problem,
        pool: int,
        effort: Effort,
        starts: Sequence[Positions] = (),
        ways_down: WaysDown | None = None,
    ) -> Planned:
        """XLA packs otherwise than the arena: looks for what to ask the arena for."""
        tried: list[Planned] = []
        room, low, high = pool, 0, None
        for _ in range(_MOST_PACKINGS):
            tried.append(found := run_once(problem, room))
            if found.fits and found.size > pool:
                high = room
                room = max(room - (found.size - pool), (low + high) // 2)
                continue
            if high is None:
                break
            low, room = room, (room + high) // 2
        within = [found for found in tried if found.fits and found.size <= pool]
        if not within:
            return dataclasses.replace(tried[-1], fits=False)
        return min(within, key=lambda found: found.cost)

    def smallest_online(
        problem: Problem, effort: Effort, ways_down: WaysDown | None = None
    ) -> Planned:
        """Online policies are not monotone: the smallest of a falling series."""
        state = Retention(problem)
        best = run_once(problem, pool := 2 * state.peak())
        while pool > 0:
            pool = int(pool * (1 - _FINENESS))
            found = run_once(problem, pool)
            if found.fits and found.size < best.size:
                best = found
            elif not found.fits and pool < best.peak // 2:
                break
        return best

    return Planner(plan_online, smallest_online)


def _run(problem: Problem, budget: int, policy: Policy) -> OnlineRun:
    """With gradients kept, as in eager frameworks, or else as far as that is needed.

    A gradient may be read once more, by the update, long after all that it could be
    computed from again is gone; when it is evicted, no policy sees that coming.
    """
    kept = Lifetimes(kept=_after_products(problem))
    run = run_online(problem, budget, policy, lifetimes=kept)
    return run if run.is_feasible else run_online(problem, budget, policy)


def _after_products(problem: Problem) -> frozenset[ValueId]:
    """Values from which no matrix product or convolution is computed any more."""
    before: set[ValueId] = set()
    for op in reversed(problem.ops):
        if op.is_expensive or not before.isdisjoint(op.outputs):
            before.update(op.inputs)
    return frozenset(range(len(problem.values))) - before


PLANNERS = {
    "coop": Planner(partial(plan, is_packed=True), partial(smallest, is_packed=True)),
    "coop-online": _online(COOP),
    "dtr": _online(DTR),
    "dte": _online(DTE),
}
"""Planner by the name that `coop_jax.remat(..., policy=...)` takes."""
