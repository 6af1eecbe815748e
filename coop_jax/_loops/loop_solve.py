"""Closes the loop for steps with scan pairs: rewrite the pairs, then plan the rest.

    profile    the step as written; done if it fits
    choose     variants of the pairs whose predicted bytes fit
    rewrite    compile the rewritten step as it is: that is its profile too
               over the budget: plan its straight-line part; failing that,
               choose again, aiming lower by what XLA was over
               well under it, or would be in its own order: choose again, aiming higher
    floor      the smallest variants, and the smallest plan of what is left

A rewritten step is a program like any other, so each has a `Workbench` of its own. Of a
step without pairs, loops that alone take more than there is room for (over
micro-batches) are planned inside; the rest is left to its `Workbench`.
"""

import contextlib
import dataclasses
import time
from collections.abc import Iterator

from .._errors import BudgetError
from .._fitting.candidate import Candidate
from .._fitting.compile import FlatStep
from .._fitting.progress import stage
from .._fitting.solve import Workbench
from .._measure import MemoryUse
from .._native.inplace import InPlace
from .._plan import Plan, fingerprint
from .._planning.packed_size import packed_size
from .._planning.planner import Effort
from .._program.origin import origin_of
from .._program.regions import communicating, is_over_inside, most_outside
from .._program.scopes import Place
from .body_plans import is_within, plan_bodies, saved_by_ties, tie_bodies
from .loop_plan import Variant
from .loop_programs import LoopPrograms
from .loop_report import BodyPlan
from .loop_rewriting import Rewritten
from .loop_room import LoopRoom, slope
from .loop_sites import Site, find_sites

_MOST_COMPILES = 5
_MORE_COMPILES = 3
_WORTH_LOOSENING = 0.03
_MOST_PUSHES = 4
_MOST_LOOSENINGS = 3
_FAR_OVER = 1.1


class LoopWorkbench:
    """All that is known of one step, with its scan pairs in view."""

    def __init__(
        self,
        step: FlatStep,
        policy: str = "coop",
        cost_model: str = "roofline",
        inplace: InPlace = False,
    ):
        self.step = step
        self.policy = policy
        self.cost_model = cost_model
        self.inplace: InPlace = inplace
        self.plain = Workbench(step, policy, cost_model, inplace)
        # The online policies are published for straight lines, and stay that.
        self.sites = self._find_sites() if policy == "coop" else []
        self._room = LoopRoom(self.plain.profile, self.unplanned.temp, self.sites)
        written = sum(site.written for site in self.sites)
        self.programs = LoopPrograms(self.plain, written, self._bench)
        self._seconds_inside = 0.0

    @property
    def unplanned(self) -> MemoryUse:
        """Bytes of the step as written."""
        return self.plain.unplanned

    @property
    def baseline(self) -> Candidate:
        """The step as written."""
        return self.plain.baseline

    @property
    def compiles(self) -> int:
        """Programs compiled so far."""
        return sum(bench.compiles for bench in self.programs.benches)

    @property
    def compile_seconds(self) -> float:
        """Wall time in XLA so far."""
        return sum(bench.compile_seconds for bench in self.programs.benches)

    @property
    def plan_seconds(self) -> float:
        """Wall time planning so far."""
        return sum(b.plan_seconds for b in self.programs.benches) + self._seconds_inside

    @property
    def baseline_seconds(self) -> float:
        """Wall time in XLA for the step as written."""
        return self.plain.baseline_seconds

    def fit(self, budget: int, effort: Effort) -> Candidate:
        """The cheapest program found that measures at most `budget` bytes.

        Raises:
          BudgetError: nothing that small was reached.
        """
        room = budget - self.unplanned.fixed
        if self.unplanned.total <= budget:
            return self.plain.fit(budget, effort)
        if not self._is_held_inside(room):
            try:
                return self.plain.fit(budget, effort)
            except BudgetError:
                if not self._is_held_inside(0):
                    raise
        if room > 0:
            approach = self._approach if self.sites else self._approach_inside
            approach(room, effort)
            if not self.programs.fitting(budget):
                self._plan_smallest(budget, effort)
        if not self.programs.fitting(budget):
            self.floor(effort)
        if (found := self.best(budget)) is None:
            raise self.infeasible(budget, effort)
        return found

    def floor(self, effort: Effort) -> Candidate:
        """The program with the fewest bytes that was reached."""
        if not self._is_held_inside(0):
            return self.plain.floor(effort)
        self._smallest(effort).bench.floor(effort)
        return self.smallest

    def near_floor(self, effort: Effort) -> Candidate:
        """The least bytes times cost within 5 % of the fewest bytes."""
        return self.programs.bench_of(self.floor(effort)).near_floor(effort)

    def finish(self, candidate: Candidate) -> Candidate:
        """The candidate as a program to run; it may only have been probed."""
        return self.programs.bench_of(candidate).finish(candidate)

    def describe(self, candidate: Candidate, budget: int | None) -> Plan:
        """The report on a candidate."""
        bench = self.programs.bench_of(candidate)
        plan = bench.describe(candidate, budget)
        rewritten = self.programs.rewriting_of(candidate)
        loops, bodies = (rewritten.plans, rewritten.bodies) if rewritten else ((), ())
        digest = fingerprint(
            plan.problem, budget, plan.positions, loops, bodies, plan.in_stages
        )
        return dataclasses.replace(
            plan,
            unplanned=self.unplanned,
            flops=self.programs.arithmetic(candidate),
            time=self.programs.cost(candidate) / max(self.baseline.cost, 1e-30),
            compiles=self.compiles,
            plan_seconds=self.plan_seconds,
            compile_seconds=self.compile_seconds,
            baseline_compile_seconds=self.baseline_seconds,
            equations=len(self.step.program.equations),
            loops=loops,
            bodies=bodies,
            fingerprint=digest,
            floor=self.smallest.memory.total,
            origin=origin_of(self.step),
        )

    @property
    def smallest(self) -> Candidate:
        """The smallest program compiled so far."""
        return min(self.programs.candidates, key=lambda c: c.memory.total)

    def best(self, budget: int) -> Candidate | None:
        """The cheapest program compiled so far that measures at most `budget` bytes."""
        return self.programs.best(budget)

    def _approach(self, room: int, effort: Effort) -> None:
        aim, margin, looser = room, 0, _MOST_LOOSENINGS
        most, tried = self.compiles + _MOST_COMPILES, set[Rewritten]()
        fitted = missed = None
        is_loosened = False
        # The smallest variants are dear: before those, others are tried for longer.
        while self.compiles < most + (_MORE_COMPILES if fitted is None else 0):
            rewritten = self.programs.rewrite(self.sites, self._choose(aim))
            if rewritten in tried:
                return
            tried.add(rewritten)
            temp = rewritten.bench.unplanned.temp
            # What was loosened too far is rather chosen again than brought down.
            if not is_loosened or self._in_order(rewritten) < _FAR_OVER * room:
                temp = self._squeeze(rewritten, room, effort)
            predicted = self._room.predict(rewritten.variants)
            is_loosened = temp <= room
            if temp > room:
                missed = predicted, temp
                over = int((temp - room) * slope(fitted, missed))
                aim = min(aim, predicted) - over - margin
                margin += room // 200
                looser = min(looser, 1)
            elif looser and (spare := self._spare(rewritten, temp, room)):
                if rewritten.cost <= 1e-3 * self.baseline.cost:
                    return
                looser, fitted = looser - 1, (predicted, temp)
                aim = predicted + int(0.97 * spare * slope(fitted, missed))
            else:
                return

    def _spare(self, rewritten: Rewritten, temp: int, room: int) -> int:
        """Bytes that may be kept beside `temp`, none if they are too few to matter.

        What XLA takes for an order of its own is to spare too: once more is kept than
        fits in that order, bodies are held to theirs.
        """
        worth = _WORTH_LOOSENING * room
        if temp == rewritten.bench.unplanned.temp:
            in_order = self._in_order(rewritten)
            aim = self._room.predict(rewritten.variants) + room - in_order
            is_worth = in_order < temp and room - in_order > worth
            if is_worth and tuple(self._choose(aim)) != rewritten.variants:
                tied = self.programs.with_bodies(rewritten, self._ties(rewritten, 0))
                temp = min(temp, tied.bench.unplanned.temp)
        return room - temp if room - temp > worth else 0

    def _ties(self, rewritten: Rewritten, room: int) -> list[BodyPlan]:
        bench = rewritten.bench
        temp, platform = bench.unplanned.temp, self.step.platform
        return tie_bodies(bench.profile, bench.buffers, temp, room, platform)

    def _in_order(self, rewritten: Rewritten) -> int:
        """Bytes thought to be taken with all bodies held to their order."""
        bench, ties = rewritten.bench, self._ties(rewritten, 0)
        return bench.unplanned.temp - saved_by_ties(bench.profile, ties)

    def _approach_inside(self, room: int, effort: Effort) -> None:
        """Plans the bodies of loops, aiming lower by what XLA was over."""
        written, aim, push = self.programs.rewrite(self.sites, []), room, 1
        most = self.compiles + _MOST_COMPILES
        while self.compiles < most and aim > 0:
            bodies = self._plan_bodies(written, self.unplanned.temp, aim, effort)
            if not bodies:
                return
            bench = self.programs.with_bodies(written, bodies).bench
            temp = self._least_in_order(bench, room, effort)
            if temp <= room:
                return
            if most_outside(bench.profile) > room:
                with contextlib.suppress(BudgetError):
                    bench.fit(room + self.unplanned.fixed, effort)
                return
            # What a body holds is in large pieces: a small step may change nothing.
            aim -= push * (temp - room + room // 200)
            push *= 2

    def _least_in_order(self, bench: Workbench, room: int, effort: Effort) -> int:
        """Bytes of temporaries of a step as it is, or held to its order if that fits.

        XLA may run what comes before a loop in an order that takes more than the loop.
        """
        problem, temp = bench.problem, bench.unplanned.temp
        if temp <= room:
            return temp
        packed = packed_size(problem, problem.program_order)
        if packed + bench.profile.standing > room:
            return temp
        found = bench.try_once(room + self.unplanned.fixed, effort)
        return min(temp, found.memory.temp) if found else temp

    def _is_held_inside(self, room: int) -> bool:
        """Whether there are pairs, or a loop that alone takes more than the room."""
        held = self.policy == "coop" and is_over_inside(self.plain.profile, room)
        return bool(self.sites) or held

    def _squeeze(self, rewritten: Rewritten, room: int, effort: Effort) -> int:
        """Brings a rewritten step within the room without keeping less between scans.

        Holding the bodies of loops to their order is free. Recomputing inside them, and
        in the straight line, is done if it is cheaper than keeping less.

        Returns:
          Bytes of temporaries reached.
        """
        temp = rewritten.bench.unplanned.temp
        if temp <= room:
            return temp
        base, over, aim = rewritten, temp - room, room
        if ties := self._ties(base, room):
            tied = self.programs.with_bodies(base, ties)
            over = tied.bench.unplanned.temp - room
            # By what a body takes more than is thought in its order, plans aim lower.
            saved = saved_by_ties(base.bench.profile, ties)
            aim -= max(0, over - (temp - saved - room))
            if over < temp - room:
                rewritten, temp = tied, tied.bench.unplanned.temp
        known, reached, push = ties, temp, 1
        if most_outside(rewritten.bench.profile) > room:
            temp = self._in_line(rewritten, temp, room, effort)
        for _ in range(_MOST_PUSHES):
            if temp <= room or aim <= 0:
                break
            bodies = self._plan_bodies(base, reached, aim, effort)
            inside = sum(body.cost for body in bodies)
            less = self._cost_of_less(base, temp - room)
            what = "over by %d bytes: loops inside cost %.3g s, keeping less %.3g s"
            stage(what, temp - room, inside, less)
            if inside > less:
                break
            if bodies != known and not is_within(bodies, ties):
                known, planned = bodies, self.programs.with_bodies(base, bodies)
                over = planned.bench.unplanned.temp - room
                if over < temp - room:
                    rewritten, temp = planned, planned.bench.unplanned.temp
            # The plan was thought to fit: the next aims lower by what it is over, and
            # more: a body holds large pieces.
            aim -= push * over
            push *= 2
        return self._in_line(rewritten, temp, room, effort) if temp > room else temp

    def _in_line(
        self, rewritten: Rewritten, temp: int, room: int, effort: Effort
    ) -> int:
        """Bytes of temporaries with the straight line planned, if that is worth it."""
        bench = rewritten.bench
        found = bench.try_once(room + self.unplanned.fixed, effort)
        less = self._cost_of_less(rewritten, temp - room)
        is_cheaper = found and found.cost - bench.baseline.cost <= less
        return min(temp, found.memory.temp) if found and is_cheaper else temp

    def _plan_smallest(self, budget: int, effort: Effort) -> None:
        """Plans the straight line of the smallest rewriting."""
        rewritten = self._smallest(effort)
        if rewritten.bench.unplanned.total > budget:
            with contextlib.suppress(BudgetError):
                rewritten.bench.fit(budget, effort)

    def _smallest(self, effort: Effort) -> Rewritten:
        """The smallest variants with bodies planned as far as they go."""
        rewritten = self.programs.rewrite(self.sites, self._room.smallest())
        bench = rewritten.bench
        temp = bench.unplanned.temp
        bodies = self._plan_bodies(rewritten, temp, most_outside(bench.profile), effort)
        if bodies:
            planned = self.programs.with_bodies(rewritten, bodies)
            if planned.bench.unplanned.temp < rewritten.bench.unplanned.temp:
                return planned
        return rewritten

    def _plan_bodies(
        self, rewritten: Rewritten, temp: int, room: int, effort: Effort
    ) -> list[BodyPlan]:
        bench, platform = rewritten.bench, self.step.platform
        with self._counted():
            return plan_bodies(
                bench.profile, bench.buffers, temp, room, platform, effort
            )

    def _choose(self, room: int) -> list[Variant]:
        with self._counted():
            return self._room.choose(room)

    def _cost_of_less(self, rewritten: Rewritten, over: int) -> float:
        with self._counted():
            return self._room.cost_of_less(rewritten.variants, over)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Counts as time spent planning."""
        start = time.perf_counter()
        yield
        self._seconds_inside += time.perf_counter() - start

    def _bench(self, step: FlatStep, what: str) -> Workbench:
        return Workbench(step, self.policy, self.cost_model, self.inplace, what)

    def _find_sites(self) -> list[Site]:
        """The pairs of the step, none if they stack next to nothing."""
        program, once = self.step.program, frozenset[Place]()
        if program.partitions > 1 and not program.rules.recompute_collectives:
            once = communicating(self.plain.buffers)
        found = find_sites(program, self.step.platform, once)
        written = sum(site.written for site in found)
        return found if written > self.unplanned.temp // 100 else []

    def infeasible(self, budget: int, effort: Effort) -> BudgetError:
        floor = self.floor(effort)
        known = self.programs.rewriting_of(floor)
        inside = known is not None and bool(known.plans or known.bodies)
        error = self.programs.bench_of(floor).infeasible(budget, effort, inside)
        error.plan = self.describe(floor, budget)
        return error
