"""Where a program has scan pairs, loops around them included, and its rewriting.

A pair may be inside another loop: gradients accumulated over micro-batches, say. What
such a pair holds is alive while that loop runs. The place of a pair is the number of
its forward scan among the equations of the body it is in, after the numbers of the
loops around it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from .._errors import PlanError
from .._program.cost import RATES, DeviceRates, nbytes
from .._program.flatten import flatten
from .._program.pins import pinned
from .._program.repeating import names_inside
from .._program.trace import Equation, Program
from .bodies import Body, run_with
from .loop_plan import PairChoices, Variant
from .loop_report import LoopPlan
from .scan_emit import Rewriting, rewrite
from .scan_pairs import ScanPair, ScanParts, find_pairs, stacked_bytes
from .scan_plan import Keeping
from .scan_problem import BodyProblem, body_problem

_CHECKPOINT = "remat2"

type Place = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """A pair of a program and what it may become.

    Attributes:
      equations: first and last equation of the whole program over which the pair's
        residuals are alive.
      written: bytes of the residuals as written.
      has_checkpoint: whether `jax.checkpoint` computes some of them again.
    """

    place: Place
    pair: ScanPair
    body: BodyProblem
    choices: PairChoices
    equations: tuple[int, int]
    written: int
    name: str
    has_checkpoint: bool

    def loop_plan(self, variant: Variant) -> LoopPlan:
        """The variant as data."""
        positions = variant.keeping.positions
        return LoopPlan(
            self.place,
            self.name,
            self.pair.length,
            variant.chunk,
            variant.keeping.row,
            variant.size,
            self.written,
            sum(len(runs) - 1 for runs in positions),
            positions,
        )


def find_sites(
    program: Program, platform: str, once: frozenset[Place] = frozenset()
) -> list[Site]:
    """All scan pairs of a program, outer loops first.

    Args:
      once: places where devices communicate. What a loop with such a place computes
        again is cheap: which of its products communicate depends on XLA's partitioner.
    """
    rates = RATES.get(platform, RATES["gpu"])
    return _sites(program, rates, (), 1, once)


def rewritten(program: Program, plans: Sequence[LoopPlan], platform: str) -> Program:
    """The program with its pairs as these plans say.

    Raises:
      PlanError: the plans are for other loops.
    """
    if not plans:
        return program
    sites = {site.place: site for site in find_sites(program, platform)}
    rewritings: dict[Place, Rewriting] = {}
    for plan in plans:
        site = sites.get(plan.place)
        if site is None or len(site.body.equations) != len(plan.positions):
            raise PlanError(
                "this plan cannot be used for this step",
                [f"It has no scan over {plan.length} layers at {plan.name}."],
            )
        keeping = Keeping(plan.positions, plan.row, 0.0)
        rewritings[plan.place] = Rewriting(site.pair, site.body, keeping, plan.chunk)
    return _rewritten(program, rewritings)


def with_ruled_loops(program: Program, platform: str) -> Program:
    """The program with the user's rules in its scan pairs, before any plan.

    They stack nothing that must not be kept, and where `jax.checkpoint` in a body is
    overridden, they are as without it.
    """
    rules = program.rules
    if not (rules.recompute_names or rules.override_checkpoint):
        return program
    plans = [
        site.loop_plan(site.choices.variants[0])
        for site in find_sites(program, platform)
        if site.body.body.never_kept
        or (rules.override_checkpoint and site.has_checkpoint)
    ]
    return rewritten(program, plans, platform)


def _sites(
    program: Program,
    rates: DeviceRates,
    around: Place,
    times: int,
    once: frozenset[Place],
) -> list[Site]:
    pairs = find_pairs(program)
    found = [_site(program, pair, rates, around, times, once) for pair in pairs]
    taken = {k for pair in pairs for k in (pair.forward, pair.backward)}
    for k, equation in enumerate(program.equations):
        if equation.primitive.name != "scan" or k in taken:
            continue
        body = _inside(program, equation)
        inside = _sites(
            body, rates, (*around, k), times * equation.params["length"], once
        )
        found += [replace(site, equations=(k, k)) for site in inside]
    return found


def _site(
    program: Program,
    pair: ScanPair,
    rates: DeviceRates,
    around: Place,
    times: int,
    once: frozenset[Place],
) -> Site:
    place = (*around, pair.forward)
    is_cheap_only = any(at[: len(place)] == place for at in once)
    body = body_problem(pair, program, rates, is_cheap_only)
    forward, backward = (
        program.equations[pair.forward],
        program.equations[pair.backward],
    )
    joint = pair.joint.program
    operands = joint.arguments
    carry = sum(nbytes(joint.avals[operands[k]]) for k in ScanParts.of(forward).carry)
    choices = PairChoices(
        body.body,
        pair.length,
        carry,
        forward=sum(op.cost for op in body.body.problem.ops[: body.body.seam]),
        can_chunk=forward.params["reverse"] != backward.params["reverse"]
        and body.can_repeat_forward,
        times=times,
    )
    return Site(
        place,
        pair,
        body,
        choices,
        (pair.forward, pair.backward),
        stacked_bytes(pair, program),
        forward.location,
        _CHECKPOINT in names_inside(backward),
    )


def _inside(program: Program, equation: Equation) -> Program:
    """The body of a loop of the program."""
    closed = equation.params["jaxpr"]
    donated = (False,) * len(closed.jaxpr.invars)
    body = pinned(flatten(closed, donated, rules=program.rules))
    return replace(body, partitions=program.partitions)


def _rewritten(program: Program, rewritings: Mapping[Place, Rewriting]) -> Program:
    here = [r for place, r in rewritings.items() if len(place) == 1]
    inside: dict[int, dict[Place, Rewriting]] = {}
    for place, rewriting in rewritings.items():
        if len(place) > 1:
            inside.setdefault(place[0], {})[place[1:]] = rewriting
    bodies = {
        k: _rewritten(_inside(program, program.equations[k]), deeper)
        for k, deeper in inside.items()
    }
    loops = {
        k: partial(run_with, program.equations[k], [_on_flat(body)])
        for k, body in bodies.items()
    }
    return rewrite(program, here, loops)


def _on_flat(body: Program) -> Body:
    return lambda *values: body.evaluate(values)
