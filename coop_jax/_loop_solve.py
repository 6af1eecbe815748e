"""Closes the loop for steps with scan pairs: rewrite the pairs, then plan the rest.

    profile    the step as written; done if it fits
    choose     variants of the pairs whose predicted bytes fit
    rewrite    compile the rewritten step as it is: that is its profile too
               over the budget: plan its straight-line part; failing that,
               choose again, aiming lower by what XLA was over
               well under it: choose again once, aiming higher
    floor      the smallest variants, and the smallest plan of what is left

A rewritten step is a program like any other, so each has a `Workbench` of its own. A
step without pairs is left to its `Workbench`.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ._compile import FlatStep
from ._cost import program_flops
from ._errors import BudgetError
from ._inplace import InPlace
from ._loop_plan import Variant, choose
from ._loop_sites import Site, find_sites, rewritten
from ._measure import MemoryUse
from ._origin import origin_of
from ._plan import LoopPlan, Plan, fingerprint
from ._planner import Effort
from ._solve import Candidate, Workbench
from ._validate import live_bytes

_MOST_REWRITES = 3
_WORTH_LOOSENING = 0.03


@dataclass(frozen=True, slots=True, eq=False)
class Rewritten:
    """A rewritten step: its variants and its workbench."""

    variants: tuple[Variant, ...]
    plans: tuple[LoopPlan, ...]
    bench: Workbench


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
        self.sites = find_sites(step.program, step.platform) if policy == "coop" else []
        units = self.plain.profile.units
        self._op_of = {unit.root: op for op, unit in enumerate(units)}
        self.rewritten: list[Rewritten] = []

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
        return sum(bench.compiles for bench in self._benches())

    @property
    def compile_seconds(self) -> float:
        """Wall time in XLA so far."""
        return sum(bench.compile_seconds for bench in self._benches())

    @property
    def plan_seconds(self) -> float:
        """Wall time planning so far."""
        return sum(bench.plan_seconds for bench in self._benches())

    @property
    def baseline_seconds(self) -> float:
        """Wall time in XLA for the step as written."""
        return self.plain.baseline_seconds

    # The three questions

    def fit(self, budget: int, effort: Effort) -> Candidate:
        """The cheapest program found that measures at most `budget` bytes.

        Raises:
          BudgetError: nothing that small was reached.
        """
        if self.unplanned.total <= budget or not self.sites:
            return self.plain.fit(budget, effort)
        room = budget - self.unplanned.fixed
        if room > 0:
            self._approach(room, budget, effort)
            if not self._fitting(budget):
                self._plan_smallest(budget, effort)
        fitting = self._fitting(budget)
        if not fitting:
            self.floor(effort)
            fitting = self._fitting(budget)
        if not fitting:
            raise self._infeasible(budget, effort)
        return min(fitting, key=lambda c: (self._cost(c), c.memory.total))

    def floor(self, effort: Effort) -> Candidate:
        """The program with the fewest bytes that was reached."""
        if not self.sites:
            return self.plain.floor(effort)
        smallest = choose([site.choices for site in self.sites], lambda sizes: False)
        self._rewrite(smallest).bench.floor(effort)
        return min(self._candidates(), key=lambda c: c.memory.total)

    def describe(self, candidate: Candidate, budget: int | None) -> Plan:
        """The report on a candidate."""
        bench = self._bench_of(candidate)
        plan = bench.describe(candidate, budget)
        loops = next((r.plans for r in self.rewritten if r.bench is bench), ())
        written = max(program_flops(self.step.program), 1.0)
        own = program_flops(bench.step.program) / written
        return dataclasses.replace(
            plan,
            unplanned=self.unplanned,
            flops=plan.flops * own,
            time=self._cost(candidate) / max(self.baseline.cost, 1e-30),
            compiles=self.compiles,
            plan_seconds=self.plan_seconds,
            compile_seconds=self.compile_seconds,
            baseline_compile_seconds=self.baseline_seconds,
            equations=len(self.step.program.equations),
            loops=loops,
            fingerprint=fingerprint(plan.problem, budget, plan.positions, loops),
            floor=min(c.memory.total for c in self._candidates()),
            origin=origin_of(self.step),
        )

    # The loop

    def _approach(self, room: int, budget: int, effort: Effort) -> None:
        aim, has_loosened = room, False
        for _ in range(_MOST_REWRITES):
            variants = self._choose(aim)
            known = len(self.rewritten)
            rewritten = self._rewrite(variants)
            if len(self.rewritten) == known:
                return
            over = rewritten.bench.unplanned.temp - room
            if over > 0:
                if self._try_rest(rewritten.bench, budget, effort):
                    return
                aim -= over + room // 200
            elif -over > _WORTH_LOOSENING * room and not has_loosened:
                if sum(v.cost for v in variants) <= 1e-3 * self.baseline.cost:
                    return
                has_loosened = True
                aim += int(-over * 0.9)
            else:
                return

    def _try_rest(self, bench: Workbench, budget: int, effort: Effort) -> bool:
        """Plans the straight-line part; once, not down to its floor."""
        candidate = bench.try_once(budget, effort)
        return candidate is not None and candidate.memory.total <= budget

    def _plan_smallest(self, budget: int, effort: Effort) -> None:
        """Plans the straight-line part of the smallest rewriting known."""
        smallest = choose([site.choices for site in self.sites], lambda sizes: False)
        try:
            self._rewrite(smallest).bench.fit(budget, effort)
        except BudgetError:
            return

    def _choose(self, room: int) -> list[Variant]:
        return choose(
            [site.choices for site in self.sites],
            lambda sizes: self._predict(sizes) <= room,
        )

    def _predict(self, sizes: Sequence[int]) -> int:
        """Bytes of temporaries if the pairs hold these bytes, by what XLA measured."""
        problem = self.plain.problem
        alive = np.array(live_bytes(problem, problem.program_order), np.int64)
        surplus = self.unplanned.temp - int(alive.max())
        for site, size in zip(self.sites, sizes, strict=True):
            first, last = (self._op_of[k] for k in site.equations)
            alive[first : last + 1] += size - site.written
        return int(alive.max()) + surplus

    def _rewrite(self, variants: Sequence[Variant]) -> Rewritten:
        key = [(v.keeping.positions, v.chunk) for v in variants]
        for known in self.rewritten:
            if [(v.keeping.positions, v.chunk) for v in known.variants] == key:
                return known
        plans = tuple(map(Site.loop_plan, self.sites, variants))
        program = rewritten(self.step.program, plans, self.step.platform)
        step = dataclasses.replace(self.step, program=program)
        bench = Workbench(step, self.policy, self.cost_model, self.inplace)
        found = Rewritten(tuple(variants), plans, bench)
        self.rewritten.append(found)
        return found

    # Candidates

    def _benches(self) -> list[Workbench]:
        return [self.plain, *(r.bench for r in self.rewritten)]

    def _candidates(self) -> list[Candidate]:
        return [c for b in self._benches() for c in (b.baseline, *b.candidates)]

    def _fitting(self, budget: int) -> list[Candidate]:
        return [c for c in self._candidates() if c.memory.total <= budget]

    def _bench_of(self, candidate: Candidate) -> Workbench:
        return next(
            bench
            for bench in self._benches()
            if candidate is bench.baseline or candidate in bench.candidates
        )

    def _cost(self, candidate: Candidate) -> float:
        """Seconds by the cost model, comparable between rewritings."""
        bench = self._bench_of(candidate)
        variants = self._variants_of(candidate)
        return (
            self.baseline.cost
            + sum(variant.cost for variant in variants)
            + (candidate.cost - bench.baseline.cost)
        )

    def _variants_of(self, candidate: Candidate) -> tuple[Variant, ...]:
        bench = self._bench_of(candidate)
        return next((r.variants for r in self.rewritten if r.bench is bench), ())

    def _infeasible(self, budget: int, effort: Effort) -> BudgetError:
        floor = self.floor(effort)
        return self._bench_of(floor).infeasible(budget, effort)
