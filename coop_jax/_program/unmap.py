"""Sees through a `jax.shard_map` around a whole step.

Such a step is a single equation. What it does on one device is a program like any
other, with sizes per device as they are, and collectives as equations.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.extend.core as jexc

from .mapped import Mapped
from .trace import Literal, Program, flatten


def unmapped(program: Program, merge: bool = True) -> Program:
    """The program of one device, if the step is mapped as a whole; else the program.

    Args:
      program: the traced step.
      merge: False leaves equal equations apart.
    """
    if len(program.equations) != 1:
        return program
    (equation,) = program.equations
    params = equation.params
    if equation.primitive.name != "shard_map" or program.constants:
        return program
    arguments, mesh = program.arguments, params["mesh"]
    inputs = [a for a in equation.inputs if not isinstance(a, Literal)]
    is_plain = (
        len(set(inputs)) == len(equation.inputs)
        and set(program.outputs) <= set(equation.outputs)
        and _manual_axes(params) == frozenset(mesh.axis_names)
    )
    if not is_plain:
        return program
    body = jexc.ClosedJaxpr(  # pyright: ignore[reportPrivateImportUsage]
        params["jaxpr"], ()
    )
    found = flatten(body, [False] * len(inputs), merge, program.rules)
    place = {v: k for k, v in enumerate(equation.inputs)}
    reads = tuple(k for k, v in enumerate(arguments) if v in place)
    avals = list(found.avals)
    local: list[int] = []
    for v in arguments:
        if v in place:
            local.append(found.arguments[place[v]])
        else:
            local.append(len(avals))
            avals.append(program.avals[v])
    results = [equation.outputs.index(v) for v in program.outputs]
    mapped = Mapped(
        mesh,
        reads,
        tuple(params["in_specs"][place[arguments[k]]] for k in reads),
        tuple(params["out_specs"][k] for k in results),
        params["check_vma"],
    )
    return replace(
        found,
        arguments=tuple(local),
        outputs=tuple(found.outputs[k] for k in results),
        avals=tuple(avals),
        donated=program.donated,
        mapped=mapped,
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


def _manual_axes(params: dict[str, Any]) -> frozenset[str]:
    return frozenset(params.get("newly_manual_axes", params.get("manual_axes", ())))
