"""Sees through the `jax.shard_map`s of a step.

In the traced step each is a single equation. What they do on one device is a program
like any other, with sizes per device as they are, and collectives as equations. There
are two where one was differentiated: the second reads residuals of the first. What is
computed outside, a key split before or an optimizer after, stays as it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.extend import source_info_util
from jax.sharding import PartitionSpec

from .cost import flops
from .flatten import Builder, flatten
from .mapped import Mapped, Whole
from .trace import Atom, Equation, Literal, Program, Variable, drop_dead

_REPLICATED = PartitionSpec()


def unmapped(program: Program, merge: bool = True) -> Program:
    """The program of one device, if `jax.shard_map`s do the work; else the program.

    Args:
      program: the traced step.
      merge: False leaves equal equations apart.
    """
    maps = [e for e in program.equations if e.primitive.name == "shard_map"]
    outside = [e for e in program.equations if e.primitive.name != "shard_map"]
    if not maps or not _do_the_work(program, maps, outside):
        return program
    try:
        inside = _Inside(program, maps, merge)
    except _CannotJoin:
        return program
    made = tuple(v for v in inside.sources if v not in program.arguments)
    before = replace(program, equations=_needed(outside, made), outputs=made)
    after = replace(program, equations=_needed(outside, program.outputs))
    read = {v for e in after.equations for v in e.variables}
    read |= {a for a in program.outputs if not isinstance(a, Literal)}
    results = tuple(v for e in maps for v in e.outputs if v in read)
    after = replace(after, arguments=(*program.arguments, *results))
    sources = (*program.arguments, *made)
    reads = tuple(k for k, v in enumerate(sources) if v in inside.sources)
    mapped = Mapped(
        maps[0].params["mesh"],
        reads,
        tuple(inside.spec_of[sources[k]] for k in reads),
        tuple(inside.spec_of[v] for v in results),
        maps[0].params["check_vma"],
        _whole(before) if made else None,
        None if program.outputs == results else _whole(after),
    )
    return inside.program(sources, results, mapped)


class _CannotJoin(Exception):
    """What connects the maps is not one array per device."""


class _Inside:
    """What several maps do on one device, one after the other.

    Attributes:
      sources: whole arrays that the maps read, in the order they are first read.
      spec_of: how each of these, and of the maps' results, is split.
    """

    def __init__(self, program: Program, maps: list[Equation], merge: bool) -> None:
        self._whole = program
        self._builder = Builder(merge, program.rules)
        self._local: dict[Variable, Atom] = {}
        self._constant = dict(program.constants)
        self.sources: dict[Variable, None] = {}
        self.spec_of: dict[Variable, Any] = {}
        self._of_maps: set[Variable] = set()
        wanted = {v for e in maps[1:] for v in e.variables}
        between = set(map(id, _between(program, maps, wanted)))
        for equation in program.equations:
            if equation in maps:
                self._inline(equation)
            elif id(equation) in between:
                self._push(equation)

    def program(
        self, sources: Sequence[Variable], results: Sequence[Variable], mapped: Mapped
    ) -> Program:
        """All of it, of the sources; those that no map reads are never read."""
        whole, builder = self._whole, self._builder
        for v in sources:
            if v not in self._local:
                self._local[v] = builder.new(whole.avals[v])
        outputs = tuple(self._local[v] for v in results)
        missing = len(sources) - len(whole.arguments)
        return Program(
            tuple(self._local[v] for v in sources),  # type: ignore[arg-type]
            tuple(builder.constants),
            tuple(drop_dead(builder.equations, outputs)),
            outputs,
            tuple(builder.avals),
            (*whole.donated, *(False for _ in range(missing))),
            rules=whole.rules,
            mapped=mapped,
        )

    def _inline(self, equation: Equation) -> None:
        params = equation.params
        body = params["jaxpr"]
        arguments = [
            self._argument(atom, invar.aval, spec)
            for atom, invar, spec in zip(
                equation.inputs, body.invars, params["in_specs"], strict=True
            )
        ]
        stack = source_info_util.new_name_stack()
        results = self._builder.inline(body, (), arguments, stack, None)
        self._local |= zip(equation.outputs, results, strict=True)
        self.spec_of |= zip(equation.outputs, params["out_specs"], strict=True)
        self._of_maps |= set(equation.outputs)

    def _argument(self, atom: Atom, aval: Any, spec: Any) -> Atom:
        if isinstance(atom, Literal) or atom in self._constant:
            # What is captured must be the same on every device.
            _join(spec == _REPLICATED)
            is_literal = isinstance(atom, Literal)
            return atom if is_literal else self._builder.constant(self._constant[atom])
        if atom not in self._local:
            _join(atom not in self._of_maps)
            self._local[atom] = self._builder.new(aval)
            self.sources[atom] = None
            self.spec_of[atom] = spec
        ours = self._local[atom]
        own = ours.aval if isinstance(ours, Literal) else self._builder.avals[ours]
        _join(self.spec_of[atom] == spec and str(own) == str(aval))
        return ours

    def _push(self, equation: Equation) -> None:
        """Takes in what is computed between two maps, of what no device has alone."""
        inputs = []
        for atom in equation.inputs:
            if not isinstance(atom, Literal):
                _join(self.spec_of.get(atom) == _REPLICATED)
                atom = self._local[atom]
            inputs.append(atom)
        outputs = tuple(
            self._builder.new(self._whole.avals[v]) for v in equation.outputs
        )
        taken = replace(equation, inputs=tuple(inputs), outputs=outputs)
        self._builder.equations.append(taken)
        self._local |= zip(equation.outputs, outputs, strict=True)
        self.spec_of |= dict.fromkeys(equation.outputs, _REPLICATED)


def _join(can: bool) -> None:
    if not can:
        raise _CannotJoin


def _do_the_work(
    program: Program, maps: list[Equation], outside: list[Equation]
) -> bool:
    """Whether maps over all axes of one mesh do most of the arithmetic."""
    mesh, checks = maps[0].params["mesh"], maps[0].params["check_vma"]
    mapped, beside = (
        sum(flops(e, program.avals) for e in some) for some in (maps, outside)
    )
    return (
        all(
            e.params["mesh"] == mesh
            and e.params["check_vma"] == checks
            and e.params["newly_manual_axes"] == frozenset(mesh.axis_names)
            for e in maps
        )
        # What is outside may be computed before the maps and after them.
        and not any(e.effects for e in outside)
        and mapped >= beside
    )


def _between(
    program: Program, maps: list[Equation], wanted: set[Variable]
) -> list[Equation]:
    """Equations that maps need, and that need results of maps."""
    made = {v for e in maps for v in e.outputs}
    late = []
    for equation in program.equations:
        if equation not in maps and made.intersection(equation.variables):
            made |= set(equation.outputs)
            late.append(equation)
    found = []
    for equation in reversed(late):
        if wanted.intersection(equation.outputs):
            wanted = wanted | set(equation.variables)
            found.append(equation)
    return found[::-1]


def _needed(equations: list[Equation], outputs: Sequence[Atom]) -> tuple[Equation, ...]:
    return tuple(drop_dead(equations, outputs))


def _whole(program: Program) -> Whole:
    return lambda *values: program.evaluate(values)


def retraced(program: Program, run: Callable[..., list[Any]]) -> Program:
    """What `run` computes of the program's arguments, as a program."""
    avals = [program.avals[v] for v in program.arguments]
    if program.mapped is not None:
        traced = program.mapped.trace(run, avals)
        found = unmapped(flatten(traced, program.donated, False, program.rules), False)
        return replace(found, mapped=program.mapped)
    # The sharding is part of the type where axes of the mesh are explicit.
    structs = [
        jax.ShapeDtypeStruct(
            a.shape,
            a.dtype,
            sharding=a.sharding if any(a.sharding.spec) else None,
            weak_type=getattr(a, "weak_type", False),
        )
        for a in avals
    ]
    traced = jax.make_jaxpr(run)(*structs)
    return flatten(traced, program.donated, False, program.rules)
