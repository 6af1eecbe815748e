"""The planners a user can choose from, by name. Imports no JAX.

`"coop"` holds the whole step in view. `"coop-online"`, `"dtr"` and `"dte"` are the
published online policies: same arena, same emission, so that they compare.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ._eviction import COOP, DTE, DTR, Policy
from ._online import run_online
from ._planner import Effort, Planned, Positions, plan, positions, smallest
from ._retention import Retention
from ._types import Problem

_FINENESS = 0.02


@dataclass(frozen=True, slots=True)
class Planner:
    """One way to plan.

    Attributes:
      plan: (problem, pool in bytes, effort, plans to start from) -> the cheapest
        schedule it finds.
      smallest: (problem, effort) -> a schedule for the smallest pool it reaches.
    """

    plan: Callable[[Problem, int, Effort, Sequence[Positions]], Planned]
    smallest: Callable[[Problem, Effort], Planned]


def _online(policy: Policy) -> Planner:
    def plan_online(
        problem: Problem, pool: int, effort: Effort, starts: Sequence[Positions] = ()
    ) -> Planned:
        run = run_online(problem, problem.fixed + pool, policy)
        state = Retention(problem)
        if run.is_feasible:
            state.restore(positions(problem, run.schedule))
        return Planned(
            state.schedule(),
            state.snapshot(),
            state.peak(),
            state.cost,
            run.is_feasible,
        )

    def smallest_online(problem: Problem, effort: Effort) -> Planned:
        """Online policies are not monotone: the smallest of a falling series."""
        state = Retention(problem)
        best = plan_online(problem, pool := 2 * state.peak(), effort)
        while pool > 0:
            pool = int(pool * (1 - _FINENESS))
            planned = plan_online(problem, pool, effort)
            if planned.fits:
                best = planned
            elif pool < best.peak // 2:
                break
        return best

    return Planner(plan_online, smallest_online)


PLANNERS = {
    "coop": Planner(plan, smallest),
    "coop-online": _online(COOP),
    "dtr": _online(DTR),
    "dte": _online(DTE),
}
"""Planner by the name that `coop_jax.remat(..., policy=...)` takes."""
