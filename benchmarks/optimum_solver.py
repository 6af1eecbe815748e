"""Proves how cheap a schedule can be: bounds by HiGHS on `benchmarks.retention_model`.

    prove(problem, pool, cutoff):
        relax    linear program, peak rows added where its solution breaks them
        fix      what the relaxation prices above the cutoff is not run
        branch   mixed integer program, peak rows added until its schedule fits

Every step only leaves rows out, so that the bound holds wherever time runs out.

HiGHS through SciPy was chosen over OR-tools CP-SAT: on a profiled transformer layer
(165 ops, 24,000 columns, 0.6 of the peak) both proved the optimum to 0.1 %, HiGHS in
60 s on one core and CP-SAT with four workers and the planner's plan as a hint in 135 s
on two, and SciPy comes with jax.
"""

import dataclasses
import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.optimize

from coop_jax._planning.types import OpId, Problem, Schedule
from coop_jax._planning.validate import live_bytes

from .retention_model import RetentionModel

_RELATIVE_GAP = 1e-3
_MOST_RELAXATIONS = 6
_MARGIN = 1e-6


@dataclass(frozen=True, slots=True)
class Proof:
    """What is known of the cheapest schedule within a pool.

    Attributes:
      bound: seconds below which no schedule of the class costs; infinite if none fits.
      schedule: a schedule of the class that fits, where one was found.
      cost: its seconds; infinite without one.
      seconds: the proof took.
    """

    bound: float
    schedule: Schedule | None
    cost: float
    seconds: float

    @property
    def is_optimal(self) -> bool:
        """Whether the schedule found costs the bound, to 0.1 %."""
        return self.cost <= self.bound * (1 + 2 * _RELATIVE_GAP)


def prove(
    problem: Problem,
    pool: int,
    cutoff: float = math.inf,
    time_limit: float = 60.0,
    in_place: Collection[OpId] | None = None,
    negligible: float = 0.0,
) -> Proof:
    """Bounds the cost of schedules of `problem` whose live bytes are within `pool`.

    Args:
      problem: ops in program order; some hundred at most.
      pool: bytes for values.
      cutoff: seconds of a schedule that is known; columns that only dearer ones use are
        left out. (As a row of the program, the cutoff made HiGHS much slower.)
      time_limit: seconds for the whole proof, model building and one linear program
        aside.
      in_place: ops whose first run stays at its own position, by default the spine.
      negligible: values of less than this share of the pool are taken for nothing.
    """
    once = problem.once  # in every schedule
    costs = dataclasses.replace(problem, once=0.0)
    model = RetentionModel(costs, pool, in_place, int(negligible * pool))
    search = _Proving(model, cutoff - once, time.monotonic() + time_limit)
    start = time.monotonic()
    if search.relax():
        search.fix()
        search.branch()
    seconds = time.monotonic() - start
    return Proof(search.bound + once, search.found, search.cost + once, seconds)


class _Proving:
    def __init__(self, model: RetentionModel, cutoff: float, deadline: float) -> None:
        self.model = model
        self.deadline = deadline
        self.problem = problem = model.problem
        self.unit = problem.cost(problem.program_order) or 1.0
        self.cutoff = cutoff / self.unit
        self.found: Schedule | None = None
        self.cost = math.inf
        self.bound = problem.cost(problem.program_order)  # every op runs
        self._prices = np.zeros(0)

    def relax(self) -> bool:
        """The linear program, with peak rows; False if there is nothing left to do."""
        for _ in range(_MOST_RELAXATIONS):
            model = self.model
            result = scipy.optimize.linprog(
                self._costs(),
                A_ub=model.rows.matrix(len(model.cost)),
                b_ub=model.rows.bounds,
                bounds=np.array([model.lower, model.upper]).T,
                method="highs-ipm",
                options={"time_limit": max(5.0, self._seconds_left())},
            )
            if result.status == 2:
                self.bound = math.inf
            if result.status != 0:
                return False
            self._raise_bound(result.fun)
            self._prices = result.lower.marginals
            is_late = self._seconds_left() < 0
            if is_late or not model.add_peak_rows(model.broken_pairs(result.x)):
                return True
        return True

    def fix(self) -> None:
        """A column whose price alone lifts the relaxation over the cutoff stays 0."""
        slack = self.cutoff - self.bound / self.unit + _MARGIN
        for column in np.flatnonzero(self._prices > slack).tolist():
            if self.model.lower[column] == 0.0:
                self.model.upper[column] = 0.0

    def branch(self) -> None:
        """The integer program; its schedule may break peak rows, which are added."""
        while (seconds := self._seconds_left()) > 0:
            model = self.model
            rows = _at_most(model.rows.matrix(len(model.cost)), model.rows.bounds)
            result = scipy.optimize.milp(
                self._costs(),
                integrality=np.array(model.is_integer, int),
                bounds=_between(model.lower, model.upper),
                constraints=rows,
                options={"time_limit": seconds, "mip_rel_gap": _RELATIVE_GAP},
            )
            if result.status == 2:
                # Something was fixed for being dearer than the cutoff.
                self._raise_bound(self.cutoff)
                return
            self._raise_bound(result.mip_dual_bound)
            if result.x is None or self._accept(result.x):
                return
            if not model.add_peak_rows(model.broken_pairs(result.x)):
                return

    def _costs(self) -> np.ndarray:
        return np.array(self.model.cost) / self.unit

    def _raise_bound(self, value: float | None) -> None:
        if value is not None:
            self.bound = max(self.bound, value * self.unit)

    def _accept(self, solution: np.ndarray) -> bool:
        schedule = self.model.schedule(solution)
        is_within = (
            max(live_bytes(self.problem, schedule), default=0) <= self.model.pool
        )
        cost = self.problem.cost(schedule)
        if is_within and cost < self.cost:
            self.found, self.cost = schedule, cost
        return is_within

    def _seconds_left(self) -> float:
        return self.deadline - time.monotonic()


def _at_most(matrix: Any, bounds: Sequence[float]) -> scipy.optimize.LinearConstraint:
    upper: Any = np.array(bounds)  # the stubs know of scalars only
    return scipy.optimize.LinearConstraint(matrix, ub=upper)


def _between(lower: Sequence[float], upper: Sequence[float]) -> scipy.optimize.Bounds:
    limits: Any = np.array([lower, upper])
    return scipy.optimize.Bounds(*limits)
