"""Sees through a `jax.shard_map` around a whole step.

Such a step is a single equation. What it does on one device is a program like any
other, with sizes per device as they are, and collectives as equations.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.extend.core as jexc
from jax.sharding import PartitionSpec

from .mapped import Mapped
from .trace import Atom, Literal, Program, Variable, flatten


def unmapped(program: Program, merge: bool = True) -> Program:
    """The program of one device, if the step is mapped as a whole; else the program.

    Args:
      program: the traced step.
      merge: False leaves equal equations apart.
    """
    if not _is_mapped_whole(program):
        return program
    (equation,) = program.equations
    params = equation.params
    body = jexc.ClosedJaxpr(  # pyright: ignore[reportPrivateImportUsage]
        params["jaxpr"], ()
    )
    found = flatten(body, [False] * len(equation.inputs), merge, program.rules)
    ends = (*equation.inputs, *equation.outputs)
    inside: dict[Variable, Atom] = {}
    spec_of: dict[Variable, Any] = {}
    captured = []
    for atom, ours, spec in zip(
        ends,
        (*found.arguments, *found.outputs),
        (*params["in_specs"], *params["out_specs"]),
        strict=True,
    ):
        if isinstance(atom, Literal):
            captured.append((ours, atom.val))
        else:
            inside[atom], spec_of[atom] = ours, spec
    avals, local = list(found.avals), []
    for v in program.arguments:
        if v not in inside:
            inside[v] = len(avals)
            avals.append(program.avals[v])
        local.append(inside[v])
    captured += [(inside[v], value) for v, value in program.constants if v in inside]
    reads = tuple(k for k, v in enumerate(program.arguments) if v in spec_of)
    mapped = Mapped(
        params["mesh"],
        reads,
        tuple(spec_of[program.arguments[k]] for k in reads),
        tuple(
            PartitionSpec() if isinstance(a, Literal) else spec_of[a]
            for a in program.outputs
        ),
        params["check_vma"],
    )
    return replace(
        found,
        arguments=tuple(local),
        constants=(*found.constants, *captured),
        outputs=tuple(
            a if isinstance(a, Literal) else inside[a] for a in program.outputs
        ),
        avals=tuple(avals),
        donated=program.donated,
        mapped=mapped,
    )


def _is_mapped_whole(program: Program) -> bool:
    """Whether the step is one `jax.shard_map` over its mesh, and nothing beside it."""
    if [e.primitive.name for e in program.equations] != ["shard_map"]:
        return False
    (equation,) = program.equations
    params = equation.params
    constant = {v for v, _ in program.constants}
    inputs = [a for a in equation.inputs if not isinstance(a, Literal)]
    known = {*inputs, *equation.outputs}
    return (
        params["newly_manual_axes"] == frozenset(params["mesh"].axis_names)
        and len(set(inputs)) == len(inputs)
        and all(isinstance(a, Literal) or a in known for a in program.outputs)
        # What is captured must be the same on every device.
        and all(
            spec == PartitionSpec()
            for atom, spec in zip(equation.inputs, params["in_specs"], strict=True)
            if isinstance(atom, Literal) or atom in constant
        )
    )


def retraced(program: Program, run: Callable[..., list[Any]]) -> Program:
    """What `run` computes of the program's arguments, as a program."""
    avals = [program.avals[v] for v in program.arguments]
    if program.mapped is not None:
        traced = program.mapped.trace(run, avals)
    else:
        structs = [
            jax.ShapeDtypeStruct(
                a.shape, a.dtype, weak_type=getattr(a, "weak_type", False)
            )
            for a in avals
        ]
        traced = jax.make_jaxpr(run)(*structs)
    return unmapped(flatten(traced, program.donated, False, program.rules), False)
