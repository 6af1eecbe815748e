"""Plans inside the body of a loop whose working set is the peak.

A body is a program of its own: its operands are given, its results taken away, and what
XLA gives its equations is read from the profile of the whole step, where every equation
of a body has a name scope too. What the body may use is what the step has room for
while the loop runs, less all that is alive around it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import jax
from jax import lax

from .._fitting.emit import emit
from .._loops.loop_report import BodyPlan
from .._loops.loops import scan_with
from .._loops.scan_emit import rewrite
from .._planning.buffer_assignment import assign, schedule_buffers
from .._planning.planner import Effort, plan, smallest
from .._planning.types import Problem
from .._planning.validate import live_bytes
from .hlo import OwnedBuffer
from .pins import pinned
from .profile import Profile, profile, scope
from .rules import Rules
from .shards import communicates
from .trace import Equation, Program, flatten, read

type Place = tuple[int, ...]
"""Numbers of equations: of the loop, after those of the loops around it."""

_NAMED = re.compile(r"coop_(?:eqn|row)_(\d+)")
_MARGIN = 0.01


def is_region(equation: Equation) -> bool:
    """Whether the equation is a loop that can be planned inside."""
    return equation.primitive.name == "scan" and not equation.effects


@lru_cache(maxsize=256)
def body_of(equation: Equation, rules: Rules) -> Program:
    """The body of a loop as a program."""
    closed = equation.params["jaxpr"]
    donated = (False,) * len(closed.jaxpr.invars)
    return pinned(flatten(closed, donated, merge=False, rules=rules))


def _inside(program: Program, equation: Equation) -> Program:
    """The body of a loop of the program, on as many devices."""
    return replace(body_of(equation, program.rules), partitions=program.partitions)


def evaluate(program: Program, values: Sequence[Any], name: str = "eqn") -> list[Any]:
    """Runs a program with a name scope for each equation, in bodies of loops too."""
    env = dict(zip(program.arguments, values, strict=True)) | dict(program.constants)
    for k, equation in enumerate(program.equations):
        with jax.named_scope(f"coop_{name}_{k}"):
            operands = [read(env, atom) for atom in equation.inputs]
            if equation.is_barrier:
                outputs = lax.optimization_barrier(operands)
            elif is_region(equation) and equation.instead is None:
                body = partial(_evaluate_row, body_of(equation, program.rules))
                with equation.entered():
                    outputs = scan_with(equation, operands, body)
            else:
                outputs = equation.bind(*operands)
        env.update(zip(equation.outputs, outputs, strict=True))
    return [read(env, atom) for atom in program.outputs]


def _evaluate_row(program: Program, *values: Any) -> list[Any]:
    return evaluate(program, values, "row")


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
    planner = _BodyPlanner(_by_place(buffers), platform, effort)
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
    return _tied(found, _by_place(buffers), (), room - surplus, platform)


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
        place = (*around, unit.root)
        own = _named(buffers, place)
        inside = profile(_inside(found.program, equation), own, 0, platform)
        written = found.problem.ops[op].workspace
        plans.append(_in_order(equation, place, inside.problem, written, own))
        # What the outer loop holds beside its working set is in its operands.
        plans += _tied(inside, buffers, place, 0, platform)
    return plans


def with_bodies(program: Program, plans: Sequence[BodyPlan], platform: str) -> Program:
    """The program with the bodies of loops in planned order."""
    if not plans:
        return program
    return rewrite(program, [], _bodies(program, plans, platform))


def _bodies(
    program: Program, plans: Sequence[BodyPlan], platform: str
) -> dict[int, Callable[..., list[Any]]]:
    """What the bodies of a program's loops become, by equation."""
    functions = {}
    for k in {p.place[0] for p in plans}:
        own = next((p for p in plans if p.place == (k,)), None)
        inside = [replace(p, place=p.place[1:]) for p in plans if p.place[0] == k]
        body = _inside(program, program.equations[k])
        found = None if own is None else profile(body, own.buffers, 0, platform)
        body = body if found is None else found.program
        deeper = _bodies(body, [p for p in inside if p.place], platform)
        equations = list(body.equations)
        for at, function in deeper.items():
            loop = equations[at]
            equations[at] = replace(loop, instead=partial(_loop, loop, function))
        moved = replace(body, equations=tuple(equations))
        if own is None or found is None:
            functions[k] = partial(_run, moved)
        else:
            functions[k] = emit(replace(found, program=moved), own.positions)
    return functions


def _run(program: Program, *values: Any) -> list[Any]:
    return program.evaluate(values)


def _loop(equation: Equation, body: Callable[..., list[Any]], *values: Any) -> list:
    return scan_with(equation, values, body)


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
                written = ops[op].workspace
                room = max(1, written - over)
                reached = self._plan_body(
                    found.program, equation, place, times, written, room
                )
                reached = min(reached, written)
                ops[op] = replace(ops[op], workspace=reached)
        return replace(problem, ops=tuple(ops))

    def _plan_body(
        self,
        program: Program,
        equation: Equation,
        place: Place,
        times: int,
        written: int,
        room: int,
    ) -> int:
        """Plans a body that XLA gave `written` bytes for `room`; returns those reached.

        Held to its order it may already take less.
        """
        times *= equation.params["length"]
        own = _named(self._buffers, place)
        found = profile(_inside(program, equation), own, 0, self._platform)
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
        equation.params["length"],
        _packed(problem),
        written,
        0,
        tuple((k,) for k in problem.program_order),
        0.0,
        buffers,
    )


def is_over_inside(found: Profile, room: int) -> bool:
    """Whether some loop takes more than the room alone, whatever is around it."""
    problem, equations = found.problem, found.program.equations
    for op, unit in zip(problem.ops, found.units, strict=True):
        carried = {out for _, out in op.in_place}
        around = {*op.inputs, *op.outputs} - carried
        taken = op.workspace + sum(problem.values[v].size for v in around)
        if is_region(equations[unit.root]) and op.workspace and taken > room:
            return True
    return False


def most_outside(found: Profile) -> int:
    """Most bytes alive outside of loops: no less is needed inside them."""
    alive = live_bytes(found.problem, found.problem.program_order)
    equations = found.program.equations
    outside = [
        size
        for size, unit in zip(alive, found.units, strict=True)
        if not is_region(equations[unit.root])
    ]
    return max(outside, default=1)


def _by_place(
    buffers: Sequence[OwnedBuffer],
) -> dict[Place, list[OwnedBuffer]]:
    """Buffers by the loops they are in and, last, their equation."""
    found: dict[Place, list[OwnedBuffer]] = {}
    for buffer in buffers:
        place = tuple(map(int, _NAMED.findall(buffer.op_name)))
        found.setdefault(place, []).append(buffer)
    return found


def communicating(buffers: Sequence[OwnedBuffer]) -> frozenset[Place]:
    """Places of the equations in which devices communicate."""
    places = _by_place(buffers)
    return frozenset(place for place, own in places.items() if communicates(own))


def _named(
    buffers: Mapping[Place, Sequence[OwnedBuffer]], place: Place
) -> tuple[OwnedBuffer, ...]:
    """Buffers inside a loop, named by the equation of its body they belong to."""
    depth = len(place)
    return tuple(
        replace(buffer, op_name=scope(at[depth]))
        for at, inside in buffers.items()
        if len(at) > depth and at[:depth] == place
        for buffer in inside
    )


def _packed(problem: Problem) -> int:
    found = schedule_buffers(problem, problem.program_order)
    return assign(found, problem.alignment).peak
