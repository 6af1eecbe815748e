"""Loops and branches that can be planned inside, and what XLA gave their bodies.

A body is a program of its own. What XLA gives its equations is read from the profile of
the whole step, where every equation of a body has a name scope too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import jax
from jax import lax

from .._loops.bodies import Body, bodies_of, run_with
from .._planning.validate import live_bytes
from .flatten import flatten
from .hlo import OwnedBuffer
from .pins import pinned
from .profile import Profile
from .rules import Rules
from .scopes import Place, is_inside, place_of, scope
from .shards import communicates
from .trace import Equation, Program, read


def is_region(equation: Equation) -> bool:
    """Whether the equation has bodies that can be planned inside."""
    return equation.instead is None and bool(bodies_of(equation))


def has_branches(equation: Equation) -> bool:
    return equation.primitive.name == "cond"


@lru_cache(maxsize=256)
def _programs(equation: Equation, rules: Rules) -> tuple[Program, ...]:
    """The bodies of a loop or branch as programs.

    What `jax.checkpoint` computes again is merged with its first time to override it.
    """
    merge = rules.override_checkpoint
    return tuple(
        pinned(flatten(closed, (False,) * len(closed.jaxpr.invars), merge, rules))
        for closed in bodies_of(equation)
    )


def inside_of(
    program: Program, equation: Equation, place: Place
) -> list[tuple[Place, Program]]:
    """Bodies of the loop or branch at a place, with theirs, on as many devices."""
    return [
        (
            (*place, b) if has_branches(equation) else place,
            replace(body, partitions=program.partitions),
        )
        for b, body in enumerate(_programs(equation, program.rules))
    ]


def evaluate(program: Program, values: Sequence[Any], name: str = "eqn") -> list[Any]:
    """Runs a program with a name scope for each equation, in bodies of loops too."""
    env = dict(zip(program.arguments, values, strict=True)) | dict(program.constants)
    for k, equation in enumerate(program.equations):
        with jax.named_scope(f"coop_{name}_{k}"):
            operands = [read(env, atom) for atom in equation.inputs]
            if equation.is_barrier:
                outputs = lax.optimization_barrier(operands)
            elif is_region(equation):
                bodies = _named_bodies(equation, program.rules)
                with equation.entered():
                    outputs = run_with(equation, bodies, *operands)
            else:
                outputs = equation.bind(*operands)
        env.update(zip(equation.outputs, outputs, strict=True))
    return [read(env, atom) for atom in program.outputs]


def _named_bodies(equation: Equation, rules: Rules) -> list[Body]:
    programs = _programs(equation, rules)
    if not has_branches(equation):
        return [partial(_evaluate_row, program) for program in programs]
    return [partial(_evaluate_branch, b, p) for b, p in enumerate(programs)]


def _evaluate_row(program: Program, *values: Any) -> list[Any]:
    return evaluate(program, values, "row")


def _evaluate_branch(number: int, program: Program, *values: Any) -> list[Any]:
    with jax.named_scope(f"coop_branch_{number}"):
        return evaluate(program, values, "row")


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


def by_place(
    buffers: Sequence[OwnedBuffer],
) -> dict[Place, list[OwnedBuffer]]:
    """Buffers by the loops they are in and, last, their equation."""
    found: dict[Place, list[OwnedBuffer]] = {}
    for buffer in buffers:
        found.setdefault(place_of(buffer.op_name), []).append(buffer)
    return found


def communicating(buffers: Sequence[OwnedBuffer]) -> frozenset[Place]:
    """Places of the equations in which devices communicate."""
    places = by_place(buffers)
    return frozenset(place for place, own in places.items() if communicates(own))


def named(
    buffers: Mapping[Place, Sequence[OwnedBuffer]], place: Place
) -> tuple[OwnedBuffer, ...]:
    """Buffers inside a loop, named by the equation of its body they belong to."""

    def within(name: str) -> str:
        """The name in the body of what has a name in the step; "" for all around it."""
        at = place_of(name)
        return scope(at[len(place)]) if is_inside(at, place) else ""

    return tuple(
        replace(
            buffer,
            op_name=within(buffer.op_name),
            turned_for=within(buffer.turned_for),
            read_inside=tuple(map(within, buffer.read_inside)),
            read_elsewhere=tuple(map(within, buffer.read_elsewhere)),
        )
        for at, inside in buffers.items()
        if is_inside(at, place)
        for buffer in inside
    )
