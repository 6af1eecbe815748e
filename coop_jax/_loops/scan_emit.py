"""Rewrites scan pairs: what is not kept between the scans is computed again.

The rewritten forward scan stacks the values that its choice keeps, the rewritten
backward scan computes the rest from those, from the operands of both scans and from
what was carried. Within a body no barrier is needed: the border between two loops keeps
a recomputation apart from its original.

With `chunk`, the forward scan runs in chunks and stacks nothing but what it carries
into each; the backward scan runs the forward scan of a chunk again, stacking its rows
for that chunk alone. Iterations left over after the last whole chunk keep their rows:
the backward scan begins with them. Rows of both scans are taken from and put into the
whole arrays, so that no chunk of the operands is ever copied.

A program is rewritten by tracing it anew, so the pipeline after it is unchanged.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .._program.pins import pinned
from .._program.trace import Atom, Equation, Literal, Program, Variable, read
from .._program.unmap import retraced
from .branches import branch_steps
from .loops import placed_like
from .scan_pairs import ScanPair, ScanParts
from .scan_plan import Keeping
from .scan_problem import BodyProblem
from .spreading import operand, spreads


@dataclass(frozen=True, slots=True, eq=False)
class Rewriting:
    """What becomes of one pair.

    Attributes:
      chunk: iterations between carries that are kept, or 0 to keep `keeping` for every
        iteration.
    """

    pair: ScanPair
    body: BodyProblem
    keeping: Keeping
    chunk: int = 0


def rewrite(
    program: Program,
    rewritings: Sequence[Rewriting],
    others: Mapping[int, Callable[..., list[Any]]] | None = None,
) -> Program:
    """The program with these pairs rewritten.

    Args:
      others: what runs in place of other equations: operands -> results.
    """
    emissions = [_Emission(program, r) for r in rewritings]
    replaced: dict[int, Callable[[Mapping[Variable, Any]], list[Any]]] = {}
    for emission in emissions:
        replaced[emission.pair.forward] = emission.forward
        replaced[emission.pair.backward] = emission.backward

    for k, function in (others or {}).items():
        replaced[k] = partial(_on_operands, program.equations[k], function)

    def run(*values: Any) -> list[Any]:
        env = dict(zip(program.arguments, values, strict=True))
        env |= dict(program.constants)
        for k, equation in enumerate(program.equations):
            if k in replaced:
                with equation.entered():
                    outputs = replaced[k](env)
            else:
                operands = [read(env, atom) for atom in equation.inputs]
                if equation.is_barrier:
                    outputs = lax.optimization_barrier(operands)
                else:
                    outputs = equation.bind(*operands)
            env.update(zip(equation.outputs, outputs, strict=True))
        return [read(env, atom) for atom in program.outputs]

    # What two loops fill must not begin as one array of zeros.
    found = pinned(retraced(program, run))
    sizes = {
        ours: program.sizes[theirs]
        for ours, theirs in zip(found.arguments, program.arguments, strict=True)
        if theirs in program.sizes
    }
    return replace(found, partitions=program.partitions, sizes=sizes)


def _on_operands(
    equation: Equation, function: Callable[..., list[Any]], env: Mapping[Variable, Any]
) -> list[Any]:
    return function(*(read(env, atom) for atom in equation.inputs))


@dataclass(frozen=True, slots=True)
class _Half:
    """One body of a rewritten pair: what it runs and needs.

    Attributes:
      steps: equations of the joint body in the order they run, those out of one branch
        together.
      outside: variables that others than the step that makes them read.
      needs: variables it reads and does not compute.
    """

    steps: tuple[tuple[int, ...], ...]
    outside: frozenset[Variable]
    needs: tuple[Variable, ...]


class _Emission:
    """Both scans of one rewriting."""

    def __init__(self, program: Program, rewriting: Rewriting) -> None:
        self.pair = pair = rewriting.pair
        self.chunk = rewriting.chunk
        self.joint = pair.joint.program
        self.apart = pair.joint.apart
        self.alias_of = rewriting.body.alias_of
        self.length = pair.length
        self.first = program.equations[pair.forward]
        self.second = program.equations[pair.backward]
        self.ours, self.theirs = ScanParts.of(self.first), ScanParts.of(self.second)
        outputs = [self._resolved(a) for a in self.joint.outputs]
        results = pair.joint.results
        self.residuals = set(pair.residuals)
        self.carried_out = [outputs[p] for p in self.ours.carried]
        self.rows_out = [
            outputs[p] for p in self.ours.stacked if p not in self.residuals
        ]
        self.carried_back = [outputs[results + p] for p in self.theirs.carried]
        self.rows_back = [outputs[results + p] for p in self.theirs.stacked]
        before, after = _halves(rewriting)
        self.back = self._half(after, [*self.carried_back, *self.rows_back])
        made = {v for k in before for v in self.joint.equations[k].outputs}
        self.carry_in = [self.joint.arguments[k] for k in self.ours.carry]
        self.kept = tuple(v for v in self.back.needs if v in made or v in self.carry_in)
        results_first = [*self.carried_out, *self.rows_out]
        self.step = self._half(before, [*results_first, *self.kept])
        self.step_alone = self._half(before, results_first)
        self.env: Mapping[Variable, Any] = {}
        self.spread = spreads(program)
        self.stacks: dict[Variable, Any] = {}
        self.left = self.length % self.chunk if self.chunk else 0
        self.starts: list[Any] = []
        self.last: list[Any] = []

    def _resolved(self, atom: Atom) -> Atom:
        return atom if isinstance(atom, Literal) else self.alias_of.get(atom, atom)

    def _half(self, order: Sequence[int], outputs: Sequence[Atom]) -> _Half:
        """Drops what the outputs do not need; finds what must come from outside."""
        wanted = {a for a in outputs if not isinstance(a, Literal)}
        kept = []
        for k in reversed(order):
            equation = self.joint.equations[k]
            if equation.effects or any(v in wanted for v in equation.outputs):
                kept.append(k)
                wanted.difference_update(equation.outputs)
                wanted.update(self._reads(k))
        constants = {v for v, _ in self.joint.constants}
        needs = tuple(sorted(wanted - constants))
        if not any(k in self.apart for k in kept):
            return _Half(tuple((k,) for k in kept[::-1]), frozenset(), needs)
        steps = branch_steps(kept[::-1], self.joint.equations, self.apart)
        return _Half(steps, self._outside(steps, outputs), needs)

    def _outside(
        self, steps: Sequence[Sequence[int]], outputs: Sequence[Atom]
    ) -> frozenset[Variable]:
        equations = self.joint.equations
        found = {a for a in outputs if not isinstance(a, Literal)}
        for step in steps:
            made = {v for k in step for v in equations[k].outputs}
            reads = {v for k in step for v in self._reads(k)}
            found |= reads - made
        return frozenset(found)

    def _reads(self, k: int) -> list[Variable]:
        reads = [self.alias_of.get(v, v) for v in self.joint.equations[k].variables]
        index = self.apart[k].index if k in self.apart else None
        return reads if index is None or isinstance(index, Literal) else [*reads, index]

    def _run(self, half: _Half, local: dict[Variable, Any]) -> dict[Variable, Any]:
        local = dict(self.joint.constants) | local
        for step in half.steps:
            equations = [self.joint.equations[k] for k in step]
            if step[0] in self.apart:
                made = [v for e in equations for v in e.outputs if v in half.outside]
                run = self.apart[step[0]].run
                outputs = run(equations, made, self.joint.avals, local)
            else:
                (equation,), made = equations, equations[0].outputs
                operands = [read(local, self._resolved(a)) for a in equation.inputs]
                outputs = equation.bind(*operands)
            local.update(zip(made, outputs, strict=True))
        return local

    # Operands

    def _init(self, equation: Equation, parts: ScanParts) -> list[Any]:
        return [read(self.env, equation.inputs[i]) for i in parts.carry]

    def _split(self, half: _Half) -> tuple[Callable[[], dict], dict]:
        """Constants and whole arrays of rows that a half needs, by variable.

        The constants are to be had inside its body.
        """
        consts: dict[Variable, Callable[[], Any]] = {}
        rows: dict[Variable, Any] = {}
        # What is carried, or kept, each half has from elsewhere.
        needs = set(half.needs).difference(self.carry_in, self.kept)
        for equation, parts, variables in (
            (self.first, self.ours, self.joint.arguments[: len(self.first.inputs)]),
            (self.second, self.theirs, self.pair.joint.operands),
        ):
            for i in (*parts.consts, *parts.xs):
                v, atom = variables[i], equation.inputs[i]
                if isinstance(v, Literal) or v not in needs:
                    continue
                if i in parts.xs and v not in consts:
                    rows.setdefault(v, read(self.env, atom))
                elif i in parts.consts:
                    consts.setdefault(v, operand(self.spread, self.env, atom))
        return lambda: {v: make() for v, make in consts.items()}, rows

    # The two scans

    def forward(self, env: Mapping[Variable, Any]) -> list[Any]:
        """Runs the forward scan; residuals that are not kept come out as None."""
        self.env = env
        init = self._init(self.first, self.ours)
        if self.chunk:
            carry, rows = self._forward_in_chunks(init)
        else:
            carry, (rows, kept) = self._forward_scan(self.step, init)
            self.stacks = dict(zip(self.kept, kept, strict=True))
        rows = iter(rows)
        stacked = [
            None if p in self.residuals else next(rows) for p in self.ours.stacked
        ]
        return [*carry, *stacked]

    def _forward_scan(
        self, half: _Half, init: list[Any], some: tuple[Any, int] | None = None
    ) -> tuple[list[Any], tuple[list[Any], list[Any]]]:
        """Iterations, stacking what `half` says: all, or so many from one on."""
        consts, rows = self._split(half)
        params = self.first.params
        first, count = some or (0, self.length)

        def body(carry: list[Any], x: Any) -> Any:
            slices = x if some is None else _rows_at(rows, self._index(first + x))
            local = dict(zip(self.carry_in, carry, strict=True)) | consts() | slices
            local = self._run(half, local)
            new = [read(local, a) for a in self.carried_out]
            out = [read(local, a) for a in self.rows_out]
            kept = [local[v] for v in self.kept] if half is self.step else []
            return new, (out, kept)

        if some is not None:
            return lax.scan(body, init, jnp.arange(count), unroll=1)
        return lax.scan(
            body,
            init,
            rows,
            length=self.length,
            reverse=params["reverse"],
            unroll=params["unroll"],
        )

    def _forward_in_chunks(self, init: list[Any]) -> tuple[list[Any], list[Any]]:
        def body(carry: list[Any], chunk: Any) -> Any:
            these = chunk * self.chunk, self.chunk
            after, (out, _) = self._forward_scan(self.step_alone, carry, these)
            return after, (carry, out)

        chunks = jnp.arange(self.length // self.chunk)
        carry, (self.starts, rows) = lax.scan(body, init, chunks)
        rows = [_joined(row) for row in rows]
        if self.left:
            those = self.length - self.left, self.left
            carry, (last, self.last) = self._forward_scan(self.step, carry, those)
            rows = [jnp.concatenate(parts) for parts in zip(rows, last, strict=True)]
        if self.first.params["reverse"]:
            rows = [jnp.flip(row, 0) for row in rows]
        return carry, rows

    def backward(self, env: Mapping[Variable, Any]) -> list[Any]:
        """Runs the backward scan."""
        self.env = env
        init = self._init(self.second, self.theirs)
        if self.chunk:
            return self._backward_in_chunks(init)
        consts, rows = self._split(self.back)
        rows |= {v: self.stacks[v] for v in self.kept}
        params = self.second.params

        def body(carry: list[Any], slices: Any) -> Any:
            local = self._backward_carry(carry) | consts() | slices
            local = self._run(self.back, local)
            new = [read(local, a) for a in self.carried_back]
            return new, [read(local, a) for a in self.rows_back]

        carry, out = lax.scan(
            body,
            init,
            rows,
            length=self.length,
            reverse=params["reverse"],
            unroll=params["unroll"],
        )
        return [*carry, *out]

    def _backward_in_chunks(self, init: list[Any]) -> list[Any]:
        avals = [self._aval(a) for a in self.rows_back]
        filled = [
            placed_like(a, jnp.zeros((self.length, *a.shape), a.dtype)) for a in avals
        ]
        chunks = jnp.arange(self.length // self.chunk)

        def body(state: Any, x: Any) -> Any:
            chunk, start = x
            these = chunk * self.chunk, self.chunk
            _, (_, kept) = self._forward_scan(self.step, start, these)
            return self._backward_rows(state, these, kept), None

        state = (init, filled)
        if self.left:
            those = self.length - self.left, self.left
            state = self._backward_rows(state, those, self.last)
        (carry, filled), _ = lax.scan(body, state, (chunks, self.starts), reverse=True)
        return [*carry, *filled]

    def _backward_rows(
        self, state: tuple[list, list], some: tuple[Any, int], kept: list[Any]
    ) -> Any:
        """Some iterations, from the rows that the forward scan kept for them."""
        consts, rows = self._split(self.back)
        first, count = some

        def row(state: Any, x: Any) -> Any:
            (carry, filled), (step, slices) = state, x
            at = self._index(first + step)
            local = self._backward_carry(carry) | consts() | slices
            local = self._run(self.back, local | _rows_at(rows, at))
            new = [read(local, a) for a in self.carried_back]
            out = [read(local, a) for a in self.rows_back]
            filled = [
                lax.dynamic_update_index_in_dim(whole, one, at, 0)
                for whole, one in zip(filled, out, strict=True)
            ]
            return (new, filled), None

        stacks = dict(zip(self.kept, kept, strict=True))
        state, _ = lax.scan(row, state, (jnp.arange(count), stacks), reverse=True)
        return state

    def _backward_carry(self, carry: list[Any]) -> dict[Variable, Any]:
        variables = [self.pair.joint.operands[i] for i in self.theirs.carry]
        return dict(zip(variables, carry, strict=True))  # type: ignore[arg-type]

    def _index(self, step: Any) -> Any:
        """Row that the forward scan's iteration number `step` works on."""
        return self.length - 1 - step if self.first.params["reverse"] else step

    def _aval(self, atom: Atom) -> Any:
        return atom.aval if isinstance(atom, Literal) else self.joint.avals[atom]


def _halves(rewriting: Rewriting) -> tuple[list[int], list[int]]:
    """Equations of both rewritten bodies in the order the plan runs them."""
    body, positions = rewriting.body, rewriting.keeping.positions
    steps = sorted((b, op) for op, places in enumerate(positions) for b in places)
    before, after = [], []
    for position, op in steps:
        k = body.equations[op]
        if k is not None:
            (before if position < body.body.seam else after).append(k)
    return before, after


def _rows_at(rows: Mapping[Variable, Any], at: Any) -> dict[Variable, Any]:
    return {v: lax.dynamic_index_in_dim(x, at, 0, False) for v, x in rows.items()}


def _joined(row: jax.Array) -> jax.Array:
    """Chunks of rows as one array of rows."""
    return row.reshape(-1, *row.shape[2:])
