"""Plans inside the body of a loop or branch whose working set is the peak.

A body's operands are given, its results taken away. What it may use is what the step
has room for while it runs, less all that is alive around it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from .._fitting.emit import emit
from .._planning.packed_size import packed_size
from .._planning.planner import Effort, Positions, plan, smallest
from .._planning.types import Problem
from .._planning.validate import live_bytes
from .._program.cost import program_flops
from .._program.hlo import OwnedBuffer
from .._program.profile import Profile, profile
from .._program.regions import (
    by_place,
    has_branches,
    inside_of,
    is_region,
    named,
)
from .._program.scopes import Place
from .._program.trace import Equation, Program
from .._program.workspace import covered
from .bodies import Body, iterations, run_with
from .loop_report import BodyPlan
from .random_bits import with_own_counters
from .scan_emit import rewrite

_MARGIN = 0.01


def plan_bodies(
    found: Profile,
    buffers: Sequence[OwnedBuffer],
    temp: int,
    room: int,
    platform: str,
    effort: Effort,
) -> list[BodyPlan]:
    """Plans the bodies of the loops that are over the room, as far as they go.

    Args:
      found: profile of the step.
      buffers: what XLA assigned to it, evaluated by `evaluate`.
      temp: bytes of temporaries it took.
      room: bytes of temporaries it may take.
      effort: of the search.
    """
    surplus = max(0, temp - _packed(found.problem))
    allowed = room - surplus - int(room * _MARGIN)
    planner = _BodyPlanner(by_place(buffers), platform, effort)
    planner.plan_loops(found, (), 1, allowed)
    return planner.plans


def tie_bodies(
    found: Profile,
    buffers: Sequence[OwnedBuffer],
    temp: int,
    room: int,
    platform: str,
) -> list[BodyPlan]:
    """Holds the bodies of loops that are over the room to their own order.

    XLA is free to start all that a body computes anew before it needs it; in order, a
    body takes less at no cost.
    """
    surplus = max(0, temp - _packed(found.problem))
    return _tied(found, by_place(buffers), (), room - surplus, platform)


def saved_by_ties(found: Profile, ties: Sequence[BodyPlan]) -> int:
    """Bytes that a step is thought to take less with these bodies tied."""
    taken: dict[int, int] = {}
    for body in ties:
        op = body.place[0]
        taken[op] = max(taken.get(op, 0), body.size)
    ops = [
        replace(op, workspace=taken[unit.root], pieces=())
        if taken.get(unit.root, op.workspace) < op.workspace
        else op
        for op, unit in zip(found.problem.ops, found.units, strict=True)
    ]
    tied = replace(found.problem, ops=tuple(ops))
    return max(0, _packed(found.problem) - _packed(tied))


def is_within(plans: Sequence[BodyPlan], ties: Sequence[BodyPlan]) -> bool:
    """Whether every body is only held to its order, as some of `ties` are."""
    held = {tie.place: tie.positions for tie in ties}
    return all(held.get(body.place) == body.positions for body in plans)


def _tied(
    found: Profile,
    buffers: Mapping[Place, Sequence[OwnedBuffer]],
    around: Place,
    allowed: int,
    platform: str,
) -> list[BodyPlan]:
    plans: list[BodyPlan] = []
    alive = live_bytes(found.problem, found.problem.program_order)
    for op, unit in enumerate(found.units):
        equation = found.program.equations[unit.root]
        if alive[op] <= allowed or not is_region(equation):
            continue
        at = (*around, unit.root)
        for place, body in inside_of(found.program, equation, at):
            own = named(buffers, place)
            inside = _profile(body, own, platform)
            written = _written(equation, found.problem.ops[op].workspace, own)
            if written:
                problem = inside.problem
                plans.append(_in_order(equation, place, problem, written, own))
                # What is held around it beside its working set is in its operands.
                plans += _tied(inside, buffers, place, 0, platform)
    return plans


def with_bodies(program: Program, plans: Sequence[BodyPlan], platform: str) -> Program:
    """The program with the bodies of loops in planned order."""
    if not plans:
        return program
    return rewrite(program, [], _planned(program, plans, platform))


def flops_with(program: Program, plans: Sequence[BodyPlan], platform: str) -> float:
    """Flops of a program with the bodies of loops in planned order.

    What is computed inside each operation that reads it counts once, as in the body as
    written: XLA computes that in each of them either way.
    """
    again = [body for body in plans if body.recomputed]
    if not again:
        return program_flops(program)
    once = [replace(body, positions=_once(body.positions)) for body in again]
    added = with_bodies(program, again, platform), with_bodies(program, once, platform)
    more = program_flops(added[0]) - program_flops(added[1])
    return program_flops(program) + more


def _once(positions: Positions) -> Positions:
    """Each operation in its place in the body as written."""
    return tuple((k,) for k in range(len(positions)))


def _planned(
    program: Program, plans: Sequence[BodyPlan], platform: str
) -> dict[int, Callable[..., list[Any]]]:
    """What runs in place of a program's loops and branches, by equation."""
    functions = {}
    for k in {p.place[0] for p in plans}:
        equation = program.equations[k]
        bodies = []
        for place, body in inside_of(program, equation, (k,)):
            depth = len(place)
            own = [
                replace(p, place=p.place[depth:])
                for p in plans
                if p.place[:depth] == place
            ]
            bodies.append(_planned_body(body, own, platform))
        functions[k] = partial(run_with, equation, bodies)
    return functions


def _planned_body(body: Program, plans: Sequence[BodyPlan], platform: str) -> Body:
    own = next((p for p in plans if not p.place), None)
    found = None if own is None else _profile(body, own.buffers, platform)
    body = body if found is None else found.program
    equations = list(body.equations)
    deeper = _planned(body, [p for p in plans if p.place], platform)
    for at, function in deeper.items():
        equations[at] = replace(equations[at], instead=function)
    moved = with_own_counters(replace(body, equations=tuple(equations)))
    if own is None or found is None:
        return partial(_run, moved)
    return emit(replace(found, program=moved), own.positions)


def _run(program: Program, *values: Any) -> list[Any]:
    return program.evaluate(values)


class _BodyPlanner:
    """Goes down into the loops that take too many bytes."""

    def __init__(
        self,
        buffers: Mapping[Place, Sequence[OwnedBuffer]],
        platform: str,
        effort: Effort,
    ) -> None:
        self.plans: list[BodyPlan] = []
        self._buffers = buffers
        self._platform = platform
        self._effort = effort

    def plan_loops(
        self, found: Profile, around: Place, times: int, allowed: int
    ) -> Problem:
        """Plans loops over the allowed bytes; returns the problem with what they leave.

        Args:
          found: profile of the program that the loops are in.
          around: its place.
          times: how often it runs.
          allowed: bytes it may take.
        """
        problem = found.problem
        alive = live_bytes(problem, problem.program_order)
        ops = list(problem.ops)
        for op, unit in enumerate(found.units):
            equation = found.program.equations[unit.root]
            over = alive[op] - allowed
            if over > 0 and is_region(equation) and ops[op].workspace:
                place = (*around, unit.root)
                reached = self._plan_region(
                    found.program, equation, place, times, ops[op].workspace, over
                )
                ops[op] = replace(ops[op], workspace=reached, pieces=())
        return replace(problem, ops=tuple(ops))

    def _plan_region(
        self,
        program: Program,
        equation: Equation,
        place: Place,
        times: int,
        written: int,
        over: int,
    ) -> int:
        """Plans bodies that XLA gave `written` bytes; returns those of the largest."""
        room, reached = max(1, written - over), 0
        times *= iterations(equation)
        for at, body in inside_of(program, equation, place):
            own = named(self._buffers, at)
            size = _written(equation, written, own)
            if size > room:
                size = self._plan_body(equation, at, body, own, times, size, room)
            reached = max(reached, size)
        return min(reached, written)

    def _plan_body(
        self,
        equation: Equation,
        place: Place,
        body: Program,
        own: tuple[OwnedBuffer, ...],
        times: int,
        written: int,
        room: int,
    ) -> int:
        """Plans a body that XLA gave `written` bytes for `room`; returns those reached.

        Held to its order it may already take less.
        """
        found = _profile(body, own, self._platform)
        room += found.relieved
        problem = self.plan_loops(found, place, times, room)
        in_order = _in_order(equation, place, problem, written, own)
        chosen = in_order
        if in_order.size > room:
            planned = plan(problem, room, self._effort, is_packed=True)
            if not planned.fits:
                planned = smallest(problem, self._effort, is_packed=True)
            if planned.size < in_order.size:
                extra = planned.cost - problem.cost(problem.program_order)
                chosen = replace(
                    in_order,
                    size=planned.size,
                    recomputed=sum(len(runs) > 1 for runs in planned.positions),
                    positions=planned.positions,
                    cost=times * extra,
                )
        if chosen is not in_order or in_order.size < written + found.relieved:
            self.plans.append(chosen)
        return chosen.size


def _written(equation: Equation, workspace: int, own: Sequence[OwnedBuffer]) -> int:
    """Bytes that XLA gave one body, of all that it gave the loop or branch."""
    if not has_branches(equation):
        return workspace
    return min(workspace, covered([b for b in own if b.is_temporary]))


def _in_order(
    equation: Equation,
    place: Place,
    problem: Problem,
    written: int,
    buffers: tuple[OwnedBuffer, ...],
) -> BodyPlan:
    """The plan of a body that runs its operations in order, each once.

    Args:
      equation: the loop.
      place: of the loop.
      problem: of the body.
      written: bytes that XLA gave the body as written.
      buffers: what XLA gave its equations.
    """
    return BodyPlan(
        place,
        equation.location,
        iterations(equation),
        _packed(problem),
        written,
        0,
        tuple((k,) for k in problem.program_order),
        0.0,
        buffers,
    )


def _packed(problem: Problem) -> int:
    """Bytes of the program as written, which has no watershed."""
    return packed_size(problem, problem.program_order)


def _profile(body: Program, buffers: Sequence[OwnedBuffer], platform: str) -> Profile:
    """Its buffers are packed among those around the loop: no watershed of its own."""
    found = profile(body, buffers, 0, platform)
    return replace(found, problem=replace(found.problem, has_watershed=False))
