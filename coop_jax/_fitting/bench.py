"""A step, its plans, and what each measured once compiled: what `solve` works with."""

import dataclasses
import time
from collections.abc import Callable

from .._measure import memory_use
from .._native.inplace import InPlace
from .._plan import Plan, fingerprint
from .._planning.planner import Effort, Planned, Positions
from .._planning.policies import PLANNERS
from .._planning.types import Problem
from .._program.origin import origin_of
from .._program.profile import Profile, named_buffers, profile
from .._program.timing import with_measured_costs
from .candidate import Candidate, Sought, called_flops, nearest
from .compile import FlatStep
from .describe import list_actions, list_arguments
from .emit import emit
from .progress import stage

# XLA:CPU compiles an operation in a quarter of the time, and planning takes less than
# compiling.
_MANY_OPS_ON_CPU = 1000


class Bench:
    """All that is known of one step with one set of shapes."""

    def __init__(
        self,
        step: FlatStep,
        policy: str = "coop",
        cost_model: str = "roofline",
        inplace: InPlace = False,
        what: str = "the step as written",
    ):
        self.step = step
        self.cost_model = cost_model
        self.policy = policy
        self.planner = PLANNERS[policy]
        self.candidates: list[Candidate] = []
        self.plan_seconds = 0.0
        self.compile_seconds = 0.0
        self.compiles = 0
        stage("compiling %s (%s equations)", what, len(step.program.equations))
        function = step.as_written()
        compiled, self.buffers = self._in_xla(
            lambda: step.compile_with_buffers(function)
        )
        self.baseline_seconds = self.compile_seconds
        self.unplanned = memory_use(compiled)
        self._sought = [Sought(self._timed(self._profiled))]
        order = self.problem.program_order
        self.baseline = Candidate(
            function,
            None if step.has_probes else compiled,
            self.unplanned,
            order,
            (),
            self.unplanned.temp,
            self.problem.cost(order),
            self.profile,
            step.operations(compiled),
        )
        self._has_choice = inplace == "auto" and step.can_call
        if inplace is True:
            self._plan_calls()
            self._sought = self._sought[-1:]
        self._sought_first = self._sought

    @property
    def profile(self) -> Profile:
        """What is planned now."""
        return self._sought[-1].profile

    @property
    def problem(self) -> Problem:
        return self.profile.problem

    def finish(self, candidate: Candidate) -> Candidate:
        """The candidate as a program to run; it may only have been probed."""
        if candidate.compiled is not None:
            return candidate
        stage("compiling the program to run")
        compiled = self._in_xla(lambda: self.step.compile(candidate.function))
        memory = memory_use(compiled)
        found = dataclasses.replace(candidate, compiled=compiled, memory=memory)
        if candidate is self.baseline:
            self.baseline, self.unplanned = found, memory
        else:
            self.candidates[self.candidates.index(candidate)] = found
        return found

    def describe(self, candidate: Candidate, budget: int | None) -> Plan:
        """The report on a candidate."""
        problem = candidate.profile.problem
        return Plan(
            budget=budget,
            unplanned=self.unplanned,
            measured=candidate.memory,
            predicted=candidate.predicted + candidate.memory.fixed,
            flops=candidate.arithmetic(self.step.program),
            time=candidate.cost / max(self.baseline.cost, 1e-30),
            actions=list_actions(
                candidate.profile, candidate.positions, candidate.schedule
            ),
            positions=candidate.positions,
            in_stages=candidate.in_stages,
            policy=self.policy,
            compiles=self.compiles,
            plan_seconds=self.plan_seconds,
            compile_seconds=self.compile_seconds,
            baseline_compile_seconds=self.baseline_seconds,
            equations=len(self.step.program.equations),
            fingerprint=fingerprint(
                problem, budget, candidate.positions, in_stages=candidate.in_stages
            ),
            floor=min(c.memory.total for c in (self.baseline, *self.candidates)),
            problem=problem,
            arguments=list_arguments(self.step, problem),
            origin=origin_of(self.step),
            baseline=named_buffers(self.buffers),
            has_calls=bool(candidate.positions and candidate.profile.calls),
        )

    def _plan_calls(self) -> bool:
        """From now on plans the step with in-place calls, if it has any."""
        self._has_choice = False
        if self.step.can_call:
            found = self._timed(lambda: self._profiled(inplace=True))
            self._sought += [Sought(found)] if found.calls else []
        return bool(self.profile.calls)

    def _profiled(self, inplace: bool = False) -> Profile:
        step, fixed = self.step, self.unplanned.fixed
        found = profile(
            step.program, self.buffers, fixed, step.platform, inplace=inplace
        )
        return with_measured_costs(found) if self.cost_model == "measured" else found

    def _plan(
        self, room: int, effort: Effort, starts: list[Positions] | None = None
    ) -> Planned | None:
        """The cheapest plan found whose packed block is within `room` bytes."""
        pool = room - self.profile.standing
        if pool < self._sought[-1].least_pool:
            return None
        if starts is None:
            starts = nearest(self.candidates, self.profile, room)
        ways_down = self._sought[-1].ways_down
        if self.profile.platform == "cpu":
            effort = dataclasses.replace(effort, many_ops=_MANY_OPS_ON_CPU)
        planned = self._timed(
            lambda: self.planner.plan(self.problem, pool, effort, starts, ways_down)
        )
        return planned if planned.fits else None

    def _compile(self, planned: Planned, in_stages: bool = False) -> Candidate:
        asked = planned.positions, in_stages
        for known in self.candidates:
            is_mine = known.profile is self.profile
            if is_mine and (known.positions, known.in_stages) == asked:
                return known
        stage("compiling plan %d", len(self.candidates) + 1)
        function = emit(self.profile, planned.positions, in_stages)
        compiled = self._in_xla(lambda: self.step.probe(function))
        counted = self.step.operations(compiled)
        called = called_flops(self.profile, planned.schedule)
        candidate = Candidate(
            function,
            None if self.step.has_probes else compiled,
            memory_use(compiled),
            planned.schedule,
            planned.positions,
            planned.size + self.profile.standing,
            planned.cost,
            self.profile,
            counted + called if counted else 0.0,
            in_stages,
        )
        self.candidates.append(candidate)
        return candidate

    def _fitting(self, budget: int) -> list[Candidate]:
        return [c for c in self.candidates if c.memory.total <= budget]

    def _in_xla[T](self, work: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = work()
        self.compile_seconds += time.perf_counter() - start
        self.compiles += 1
        return result

    def _timed[T](self, work: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = work()
        self.plan_seconds += time.perf_counter() - start
        return result
