"""Takes the dearest branch of a `cond` apart: its values are planned one by one.

Whole, a `cond` in a scanned body is kept or run again as a whole: a layer that is
skipped now and then offers its scan nothing between all of its residuals and none. So
where one branch does nearly all of the arithmetic, its equations take the place of the
`cond` in the joint body, and the results of the `cond` become *exits*: what the branch
computed, or what the others compute from the operands. The plan is for the branch, and
so for the worst case. When the bodies are written again, all equations of a branch that
one body runs become one `cond` once more (`branch_steps`, `Apart.run`); what other
branches have no value for is zero in them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .._program.cost import program_flops
from .._program.flatten import flatten
from .._program.repeating import is_recomputable
from .._program.trace import Atom, Equation, Literal, Program, Variable, drop_dead, read
from .loops import placed_like

_FEW = 0.1
"""Share of the arithmetic of the dearest branch that all others may do."""


@dataclass(frozen=True, slots=True, eq=False)
class Apart:
    """A `cond` whose dearest branch was taken apart.

    Attributes:
      index: which branch runs.
      operands: of the branches.
      branches: as programs.
      dearest: number of the one that was taken apart.
      exits: results of the `cond`, and where each is among the branches' outputs.
      values: per result, what the dearest branch makes it.
    """

    index: Atom
    operands: tuple[Atom, ...]
    branches: tuple[Program, ...]
    dearest: int
    exits: Mapping[Variable, int]
    values: tuple[Atom, ...]

    def run(
        self,
        equations: Sequence[Equation],
        wanted: Sequence[Variable],
        avals: Sequence[Any],
        local: Mapping[Variable, Any],
    ) -> list[Any]:
        """Runs some of the equations where the branch is taken; returns `wanted`."""

        def taken(values: Mapping[Variable, Any]) -> list[Any]:
            inside = dict(values)
            for equation in equations:
                if equation.outputs[0] in self.exits:
                    value = self.values[self.exits[equation.outputs[0]]]
                    outputs = [_as(read(inside, value), avals[equation.outputs[0]])]
                else:
                    operands = [read(inside, a) for a in equation.inputs]
                    outputs = equation.bind(*operands)
                inside.update(zip(equation.outputs, outputs, strict=True))
            return [placed_like(avals[v], inside[v]) for v in wanted]

        def not_taken(branch: Program, values: Mapping[Variable, Any]) -> list[Any]:
            places = [self.exits[v] for v in wanted if v in self.exits]
            # What these results do not need may not be there.
            operands = [
                a.val if isinstance(a, Literal) else values.get(a)
                for a in self.operands
            ]
            results = iter(_only(branch, places).evaluate(operands))
            found = [
                _as(next(results), avals[v]) if v in self.exits else _zeros(avals[v])
                for v in wanted
            ]
            return [
                placed_like(avals[v], x) for v, x in zip(wanted, found, strict=True)
            ]

        made = {v for equation in equations for v in equation.outputs}
        reads = {v for equation in equations for v in equation.variables}
        names = sorted(reads - made)

        def function(b: int) -> Callable[..., list[Any]]:
            def run(*values: Any) -> list[Any]:
                known = dict(zip(names, values, strict=True))
                if b == self.dearest:
                    return taken(known)
                return not_taken(self.branches[b], known)

            return run

        functions = [function(b) for b in range(len(self.branches))]
        operands = [local[v] for v in names]
        return lax.switch(read(local, self.index), functions, *operands)


def take_apart(
    program: Program, boundary: int
) -> tuple[Program, int, dict[int, Apart]]:
    """Takes apart what can be of the equations before `boundary`.

    Nothing where `jax.checkpoint` put a barrier.

    Returns:
      The program, its boundary, and for each equation out of a branch its `Apart`.
    """
    if any(equation.is_barrier for equation in program.equations):
        return program, boundary, {}
    late = {v for e in program.equations[boundary:] for v in e.variables}
    avals, constants = list(program.avals), list(program.constants)
    equations: list[Equation] = []
    apart: dict[int, Apart] = {}
    first = boundary
    for k, equation in enumerate(program.equations):
        if k == boundary:
            first = len(equations)
        branches = None
        if k < boundary and late.intersection(equation.outputs):
            branches = _branches(equation, program)
        if branches is None:
            equations.append(equation)
            continue
        found, inlined = _inlined(equation, branches, avals, constants)
        apart |= {len(equations) + i: found for i in range(len(inlined))}
        equations += inlined
    if boundary == len(program.equations):
        first = len(equations)
    changed = replace(
        program,
        equations=tuple(equations),
        avals=tuple(avals),
        constants=tuple(constants),
    )
    return changed, first, apart


def _branches(equation: Equation, program: Program) -> tuple[Program, ...] | None:
    """The branches of a `cond`, dearest known, if it is to be taken apart.

    What may not run again stays whole: another branch may be why. So do those for one
    platform each, of which JAX lowers one alone.
    """
    if equation.primitive.name != "cond" or equation.params.get("branches_platforms"):
        return None
    if not is_recomputable(equation, program.rules.recompute_collectives):
        return None
    branches = tuple(
        flatten(closed, (False,) * len(closed.jaxpr.invars), rules=program.rules)
        for closed in equation.params["branches"]
    )
    costs = sorted(map(program_flops, branches))
    dearest = max(branches, key=program_flops)
    if any(e.is_barrier or e.is_pinned for e in dearest.equations):
        return None
    return branches if sum(costs[:-1]) <= _FEW * costs[-1] else None


def _inlined(
    equation: Equation,
    branches: tuple[Program, ...],
    avals: list[Any],
    constants: list[tuple[Variable, Any]],
) -> tuple[Apart, list[Equation]]:
    """The dearest branch's equations and the exits, in new variables."""
    dearest = max(range(len(branches)), key=lambda b: program_flops(branches[b]))
    branch = branches[dearest]
    index, *operands = equation.inputs
    renamed: dict[Variable, Atom] = dict(zip(branch.arguments, operands, strict=True))

    def new(v: Variable) -> Variable:
        avals.append(branch.avals[v])
        renamed[v] = len(avals) - 1
        return len(avals) - 1

    constants += [(new(v), value) for v, value in branch.constants]

    def rename(atom: Atom) -> Atom:
        return atom if isinstance(atom, Literal) else renamed[atom]

    inlined = [
        replace(
            inner,
            inputs=tuple(map(rename, inner.inputs)),
            outputs=tuple(map(new, inner.outputs)),
            scope=equation.scope + inner.scope,
        )
        for inner in branch.equations
    ]
    values = tuple(map(rename, branch.outputs))
    exits = {v: i for i, v in enumerate(equation.outputs)}
    apart = Apart(index, tuple(operands), branches, dearest, exits, values)
    inlined += [
        replace(
            equation,
            primitive=lax.select_n_p,
            params={},
            inputs=(values[i], index, *_operands(apart, i)),
            outputs=(v,),
        )
        for v, i in exits.items()
    ]
    return apart, inlined


def _operands(apart: Apart, place: int) -> list[Atom]:
    """Operands from which the branches not taken apart make a result."""
    needed = set()
    for b, branch in enumerate(apart.branches):
        if b != apart.dearest:
            part = _only(branch, [place])
            reads = {v for e in part.equations for v in e.variables}
            reads |= {a for a in part.outputs if not isinstance(a, Literal)}
            needed |= {i for i, v in enumerate(branch.arguments) if v in reads}
    return [apart.operands[i] for i in sorted(needed)]


def _only(branch: Program, places: Sequence[int]) -> Program:
    """The branch for some of its results."""
    outputs = [branch.outputs[place] for place in places]
    equations = tuple(drop_dead(list(branch.equations), outputs))
    return replace(branch, outputs=tuple(outputs), equations=equations)


def branch_steps(
    order: Sequence[int], equations: Sequence[Equation], apart: Mapping[int, Apart]
) -> tuple[tuple[int, ...], ...]:
    """The order in steps: an equation, or all those out of one branch.

    A step comes as soon as what it reads is there.
    """
    steps: dict[Any, list[int]] = {}
    for k in order:
        steps.setdefault(apart.get(k, k), []).append(k)
    missing = {v for k in order for v in equations[k].outputs}

    def is_ready(step: Sequence[int]) -> bool:
        made = {v for k in step for v in equations[k].outputs}
        reads = {v for k in step for v in equations[k].variables}
        return not missing & (reads - made)

    waiting, sorted_steps = list(steps.values()), []
    while waiting:
        step = next(filter(is_ready, waiting))
        missing -= {v for k in step for v in equations[k].outputs}
        waiting.remove(step)
        sorted_steps.append(tuple(step))
    return tuple(sorted_steps)


def _as(value: Any, aval: Any) -> Any:
    """A literal as an array."""
    return value if hasattr(value, "dtype") else jnp.asarray(value, aval.dtype)


def _zeros(aval: Any) -> Any:
    if not jnp.issubdtype(aval.dtype, jax.dtypes.extended):
        return jnp.zeros(aval.shape, aval.dtype)
    key: Any = jax.ShapeDtypeStruct(aval.shape, aval.dtype)
    data = jax.eval_shape(jax.random.key_data, key)
    zeros = jnp.zeros(data.shape, data.dtype)
    return jax.random.wrap_key_data(zeros, impl=jax.random.key_impl(key))
