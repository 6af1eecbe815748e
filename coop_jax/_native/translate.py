"""Translates a chain of equations into a program for the in-place call.

A program walks an iteration space, usually that of the chain's result; every value of
the chain is addressed by a *map*: per dimension of the space, a stride into the value's
row-major order. Broadcasts are strides of zero, reshapes keep the map, and a reduction
adds up over the *row*, the dimensions that its result does not depend on. The
translation starts from the result and asks for each operand with the map it is read by;
a dimension that a reshape tears apart is split and the translation starts over.

The format is written down in `xla_ffi/program.h`. bfloat16 and float16 compute in
float32 and are rounded where the chain converts, as XLA does with excess precision.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from .._program.cost import nbytes
from .._program.trace import Atom, Equation, Literal, Variable
from .._program.units import Graph
from .program_encoding import encode
from .program_words import (
    F32,
    F64,
    FLOATING_ONLY,
    MOST_INSTRUCTIONS,
    MOST_OPERANDS,
    OF_PREDICATES,
    OPCODES,
    PRED,
    InplaceProgram,
    Map,
    Split,
    Unsupported,
    kind_of,
    row_major,
)
from .translate_rules import RULES

_MOST_SPLITS = 8
_SMALL_SHARE = 16


def translate(
    graph: Graph, root: int, members: Collection[int]
) -> InplaceProgram | None:
    """The program of a chain, or None if it cannot be expressed.

    Args:
      graph: of the step.
      root: the equation with the chain's result, its only output.
      members: equations of the chain, the root among them.
    """
    (result,) = graph.equations[root].outputs
    dimensions = list(graph.program.avals[result].shape)
    for _ in range(_MOST_SPLITS):
        translation = Translation(graph, result, frozenset(members), dimensions)
        try:
            return translation.run()
        except Split as split:
            d, inner = split.dimension, split.inner
            dimensions[d : d + 1] = [dimensions[d] // inner, inner]
        except Unsupported:
            return None
    return None


def is_translatable(equation: Equation) -> bool:
    """Whether programs can have this equation at all."""
    return equation.primitive.name in RULES and len(equation.outputs) == 1


class Translation:
    """One attempt, over fixed dimensions."""

    def __init__(
        self,
        graph: Graph,
        result: Variable,
        members: frozenset[int],
        dimensions: Sequence[int],
    ) -> None:
        self.graph = graph
        self.result = result
        self.members = members
        self.dimensions = tuple(dimensions)
        self.row: tuple[int, ...] | None = None
        self.instructions: list[tuple[int, int, Any, Any, Any]] = []
        self.operands: dict[tuple[Variable, Map, bool], int] = {}
        self.outside: set[int] = set()
        self.known: dict[tuple[Variable, Map], int] = {}

    def aval(self, atom: Atom) -> Any:
        if isinstance(atom, Literal):
            return atom.aval
        return self.graph.program.avals[self.graph.resolve(atom)]

    # Values

    def run(self) -> InplaceProgram:
        aval = self.aval(self.result)
        place = row_major(self.dimensions)
        last = self.value(self.result, place)
        if last != len(self.instructions) - 1 or aval.size == 0:
            raise Unsupported
        return encode(self, place)

    def value(self, atom: Atom, place: Map) -> int:
        """The instruction that computes `atom` where `place` says."""
        if isinstance(atom, Literal):
            return self._literal(atom)
        v = self.graph.resolve(atom)
        if self.aval(v).shape == ():
            place = (0,) * len(self.dimensions)
        if (v, place) not in self.known:
            self.known[v, place] = self._new_value(v, place)
        return self.known[v, place]

    def _new_value(self, v: Variable, place: Map) -> int:
        k = self.graph.producer.get(v)
        if k is None or k not in self.members:
            return self._load(v, place)
        before = (
            len(self.instructions), dict(self.operands), set(self.outside),
            dict(self.known), self.row,
        )  # fmt: skip
        equation = self.graph.equations[k]
        try:
            if not is_translatable(equation):
                raise Unsupported
            return RULES[equation.primitive.name](self, equation, place)
        except Unsupported:
            aval = self.aval(v)
            if v == self.result or (
                nbytes(aval) * _SMALL_SHARE > nbytes(self.aval(self.result))
            ):
                raise
            count, self.operands, self.outside, self.known, self.row = before
            del self.instructions[count:]
            self.compute_outside(k)
            return self._load(v, place)

    def compute_outside(self, k: int) -> None:
        if k in self.outside:
            return
        self.outside.add(k)
        for v in self.graph.reads(k):
            source = self.graph.producer.get(v)
            if source is not None and source in self.members:
                self.compute_outside(source)

    def elements(self, equation: Equation, place: Map) -> list[int]:
        """The operands of an elementwise equation; sizes of one are spread."""
        wide = self.aval(equation.outputs[0]).shape
        return [self._spread(atom, wide, place) for atom in equation.inputs]

    def _spread(self, atom: Atom, wide: tuple[int, ...], place: Map) -> int:
        shape = self.aval(atom).shape
        if isinstance(atom, Literal) or shape in ((), wide):
            return self.value(atom, place)
        steps = self.coordinates(place, wide)
        return self.value(atom, self.along(shape, wide, range(len(shape)), steps))

    def emit(self, opcode: str, kind: int, a: Any = 0, b: Any = 0, c: Any = 0) -> int:
        if kind not in (F32, F64) and opcode in FLOATING_ONLY:
            raise Unsupported
        if kind == PRED and opcode not in OF_PREDICATES:
            raise Unsupported
        self.instructions.append((OPCODES[opcode], kind, a, b, c))
        if len(self.instructions) > MOST_INSTRUCTIONS:
            raise Unsupported
        return len(self.instructions) - 1

    def _load(self, v: Variable, place: Map) -> int:
        kind = kind_of(self.aval(v).dtype)
        return self.emit("load", kind, self.operand(v, place))

    def operand(self, v: Variable, place: Map, is_key: bool = False) -> int:
        key = (v, place, is_key)
        if len(self.operands) >= MOST_OPERANDS and key not in self.operands:
            raise Unsupported
        return self.operands.setdefault(key, len(self.operands))

    def _literal(self, literal: Literal) -> int:
        value = np.asarray(literal.val, literal.aval.dtype)
        if value.shape != ():
            raise Unsupported
        kind = kind_of(value.dtype)
        if kind == F64:
            word = int(value.view(np.int64))
        elif kind == F32:
            word = int(value.astype(np.float32).view(np.uint32))
        else:
            word = int(value) & 0xFFFFFFFF
        return self.emit("literal", kind, word)

    # Maps

    def coordinates(self, place: Map, shape: Sequence[int]) -> list[list[int]]:
        """Per dimension of `shape`, the strides along it of the space's dimensions."""
        strides = row_major(shape)
        steps = [[0] * len(self.dimensions) for _ in shape]
        for d, (size, stride) in enumerate(zip(self.dimensions, place, strict=True)):
            if stride == 0 or size == 1:
                continue
            axis = next(
                k for k, n in enumerate(shape) if n > 1 and strides[k] <= stride
            )
            reach = strides[axis] * shape[axis]
            if stride % strides[axis]:
                raise Unsupported
            if size * stride > reach:
                if reach % stride or size % (reach // stride):
                    raise Unsupported
                raise Split(d, reach // stride)
            steps[axis][d] = stride // strides[axis]
        return steps

    def along(
        self,
        shape: Sequence[int],
        wide: Sequence[int],
        axes: Sequence[int],
        steps: Sequence[Sequence[int]],
    ) -> Map:
        """The map into `shape`, whose dimensions are the `axes` of `wide` or one."""
        still = [0] * len(self.dimensions)
        chosen = [
            steps[axis] if size == wide[axis] else still
            for size, axis in zip(shape, axes, strict=True)
        ]
        return self.gather(shape, chosen)

    def gather(self, shape: Sequence[int], steps: Sequence[Sequence[int]]) -> Map:
        """The map into `shape` with these strides along its dimensions."""
        strides = row_major(shape)
        return tuple(
            sum(stride * step[d] for stride, step in zip(strides, steps, strict=True))
            for d in range(len(self.dimensions))
        )

    def row_of(self, place: Map, size: int) -> tuple[int, ...]:
        """The dimensions to reduce over, for a result at `place`."""
        free = tuple(
            d for d, n in enumerate(self.dimensions) if place[d] == 0 and n > 1
        )
        row = free if self.row is None else self.row
        is_one = set(row) <= set(free)
        if not is_one or math.prod(self.dimensions[d] for d in row) != size:
            raise Unsupported
        self.row = row
        return row
