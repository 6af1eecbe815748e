"""All programs compiled for a step with scan pairs, and which of them is best.

Each rewriting of a step is planned by a `Workbench` of its own; here their programs are
compared.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from .._fitting.candidate import Candidate
from .._fitting.compile import FlatStep
from .._fitting.solve import Workbench
from .._program.cost import program_flops
from .body_plans import flops_with, with_bodies
from .loop_plan import Variant
from .loop_report import BodyPlan
from .loop_rewriting import Rewritten
from .loop_sites import Site, rewritten

_EQUAL = 1e-3
"""Share of the arithmetic below which two programs do as much."""


class LoopPrograms:
    """What was made of one step so far.

    Args:
      plain: the workbench of the step as written.
      written: bytes that its scan pairs stack.
      compiled: the workbench of another step, given what to call that in the log.
    """

    def __init__(
        self,
        plain: Workbench,
        written: int,
        compiled: Callable[[FlatStep, str], Workbench],
    ):
        self.plain = plain
        self.written = written
        self.rewritten: list[Rewritten] = []
        self._compiled = compiled

    def rewrite(self, sites: Sequence[Site], variants: Sequence[Variant]) -> Rewritten:
        """The step with these variants of its pairs, compiled if it was not yet."""
        plans = tuple(map(Site.loop_plan, sites, variants))
        for known in self.rewritten:
            if known.plans == plans and not known.bodies:
                return known
        step, bench = self.plain.step, self.plain
        if plans:
            program = rewritten(step.program, plans, step.platform)
            step = replace(step, program=program)
            bench = self._compiled(step, "the step with its loops rewritten")
        return self._add(Rewritten(tuple(variants), plans, (), bench))

    def with_bodies(self, base: Rewritten, bodies: Sequence[BodyPlan]) -> Rewritten:
        """The rewritten step with these bodies planned, compiled if it was not yet."""
        for known in self.rewritten:
            if known.plans == base.plans and known.bodies == tuple(bodies):
                return known
        step = base.bench.step
        program = with_bodies(step.program, bodies, step.platform)
        step = replace(step, program=program)
        bench = self._compiled(step, "the step with bodies of loops planned")
        return self._add(Rewritten(base.variants, base.plans, tuple(bodies), bench))

    def _add(self, found: Rewritten) -> Rewritten:
        self.rewritten.append(found)
        return found

    @property
    def benches(self) -> list[Workbench]:
        """Of the step as written, and of each of its rewritings."""
        return list(dict.fromkeys([self.plain, *(r.bench for r in self.rewritten)]))

    @property
    def candidates(self) -> list[Candidate]:
        """All programs, the rewritings as they are among them."""
        return [c for b in self.benches for c in (b.baseline, *b.candidates)]

    def fitting(self, budget: int) -> list[Candidate]:
        """Those that measure at most `budget` bytes."""
        return [c for c in self.candidates if c.memory.total <= budget]

    def best(self, budget: int) -> Candidate | None:
        """The cheapest that measures at most `budget` bytes.

        What keeps more between its scans and does less arithmetic is preferred to what
        saves modelled time, for the same reason as in `scan_policies`.
        """
        known = [(c, self._kept(c), self.arithmetic(c)) for c in self.fitting(budget)]
        undominated = [
            candidate
            for candidate, kept, flops in known
            if not any(k > kept and f < (1 - _EQUAL) * flops for _, k, f in known)
        ]
        return min(undominated, key=self._rank, default=None)

    def bench_of(self, candidate: Candidate) -> Workbench:
        """The workbench that made it."""
        return next(
            bench
            for bench in self.benches
            if candidate is bench.baseline or candidate in bench.candidates
        )

    def rewriting_of(self, candidate: Candidate) -> Rewritten | None:
        """The rewriting that it is of, if of any."""
        bench = self.bench_of(candidate)
        return next((r for r in self.rewritten if r.bench is bench), None)

    def cost(self, candidate: Candidate) -> float:
        """Seconds by the cost model, comparable between rewritings."""
        bench, rewritten = self.bench_of(candidate), self.rewriting_of(candidate)
        extra = rewritten.cost if rewritten else 0.0
        return self.plain.baseline.cost + extra + (candidate.cost - bench.baseline.cost)

    def arithmetic(self, candidate: Candidate) -> float:
        """Flops over those of the step as written."""
        own = self._flops(self.rewriting_of(candidate))
        own /= max(program_flops(self.plain.step.program), 1.0)
        return own * candidate.arithmetic(self.bench_of(candidate).step.program)

    def _flops(self, rewritten: Rewritten | None) -> float:
        """Flops of a rewritten step, its straight line as written."""
        step = self.plain.step
        if rewritten is None:
            return program_flops(step.program)
        bench = next(
            r.bench
            for r in self.rewritten
            if r.plans == rewritten.plans and not r.bodies
        )
        return flops_with(bench.step.program, rewritten.bodies, step.platform)

    def _kept(self, candidate: Candidate) -> int:
        """Bytes kept between scans."""
        rewritten = self.rewriting_of(candidate)
        if rewritten is None or not rewritten.variants:
            return self.written
        return sum(v.size for v in rewritten.variants)

    def _rank(self, candidate: Candidate) -> tuple[float, bool, int]:
        """Cheaper first; of equals, loops that XLA may order as it likes, but on CPU.

        There an order of XLA's own took twice as long, with the same arithmetic.
        """
        rewritten = self.rewriting_of(candidate)
        is_tied = bool(rewritten and rewritten.bodies)
        is_last = is_tied != (self.plain.step.platform == "cpu")
        return self.cost(candidate), is_last, candidate.memory.total
