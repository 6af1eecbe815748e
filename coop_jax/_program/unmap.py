"""Sees through a `jax.shard_map` around a step.

In the traced step that is a single equation. What it does on one device is a program
like any other, with sizes per device as they are, and collectives as equations. What is
computed outside of it, a key split before or an optimizer after, stays as it is.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.extend.core as jexc
from jax.sharding import PartitionSpec

from .cost import flops
from .mapped import Mapped, Whole
from .trace import Equation, Literal, Program, Variable, drop_dead, flatten


def unmapped(program: Program, merge: bool = True) -> Program:
    """The program of one device, if a `jax.shard_map` is in it; else the program.

    Args:
      program: the traced step.
      merge: False leaves equal equations apart.
    """
    equation = _map_in(program)
    if equation is None:
        return program
    params = equation.params
    body = jexc.ClosedJaxpr(  # pyright: ignore[reportPrivateImportUsage]
        params["jaxpr"], ()
    )
    found = flatten(body, [False] * len(equation.inputs), merge, program.rules)
    inside: dict[Variable, Variable] = {}
    spec_of: dict[Variable, Any] = {}
    captured = []
    for atom, ours, spec in zip(
        equation.inputs, found.arguments, params["in_specs"], strict=True
    ):
        if isinstance(atom, Literal):
            captured.append((ours, atom.val))
        else:
            inside[atom], spec_of[atom] = ours, spec
    captured += [(inside[v], value) for v, value in program.constants if v in inside]
    fixed = {*program.arguments, *(v for v, _ in program.constants)}
    made = tuple(v for v in inside if v not in fixed)
    before = replace(program, outputs=made)
    after = replace(
        program,
        arguments=(*program.arguments, *equation.outputs),
        equations=tuple(e for e in program.equations if e is not equation),
    )
    sources, avals, local = (*program.arguments, *made), list(found.avals), []
    for v in sources:
        if v not in inside:
            inside[v] = len(avals)
            avals.append(program.avals[v])
        local.append(inside[v])
    reads = tuple(k for k, v in enumerate(sources) if v in spec_of)
    mapped = Mapped(
        params["mesh"],
        reads,
        tuple(spec_of[sources[k]] for k in reads),
        tuple(params["out_specs"]),
        params["check_vma"],
        _whole(before) if made else None,
        None if program.outputs == equation.outputs else _whole(after),
    )
    return replace(
        found,
        arguments=tuple(local),
        constants=(*found.constants, *captured),
        avals=tuple(avals),
        donated=(*program.donated, *(False for _ in made)),
        mapped=mapped,
    )


def _map_in(program: Program) -> Equation | None:
    """The only `jax.shard_map` of a step, if it is over all axes and does the work."""
    maps = [e for e in program.equations if e.primitive.name == "shard_map"]
    if len(maps) != 1:
        return None
    (equation,) = maps
    params = equation.params
    outside = [e for e in program.equations if e is not equation]
    work = sum(flops(e, program.avals) for e in outside)
    constant = {v for v, _ in program.constants}
    inputs = [a for a in equation.inputs if not isinstance(a, Literal)]
    is_plain = (
        params["newly_manual_axes"] == frozenset(params["mesh"].axis_names)
        # What is outside may be computed before the map and after it.
        and not any(e.effects for e in outside)
        and work <= flops(equation, program.avals)
        and len(set(inputs)) == len(inputs)
        # What is captured must be the same on every device.
        and all(
            spec == PartitionSpec()
            for atom, spec in zip(equation.inputs, params["in_specs"], strict=True)
            if isinstance(atom, Literal) or atom in constant
        )
    )
    return equation if is_plain else None


def _whole(program: Program) -> Whole:
    """The program as a function, without what its outputs do not need."""
    needed = drop_dead(list(program.equations), program.outputs)
    short = replace(program, equations=tuple(needed))
    return lambda *values: short.evaluate(values)


def retraced(program: Program, run: Callable[..., list[Any]]) -> Program:
    """What `run` computes of the program's arguments, as a program."""
    avals = [program.avals[v] for v in program.arguments]
    if program.mapped is not None:
        traced = program.mapped.trace(run, avals)
        found = unmapped(flatten(traced, program.donated, False, program.rules), False)
        return replace(found, mapped=program.mapped)
    structs = [
        jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=getattr(a, "weak_type", False))
        for a in avals
    ]
    traced = jax.make_jaxpr(run)(*structs)
    return flatten(traced, program.donated, False, program.rules)
