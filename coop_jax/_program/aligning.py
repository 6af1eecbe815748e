"""Products of 16-bit floats in the sizes that XLA:GPU computes them in.

For cuBLAS XLA pads the operands of such a product to multiples of 8 elements, and takes
a slice of what it gives (`xla/service/gpu/transforms/cublas_pad_for_gemms.cc`). In a
step as written both are part of other kernels. Behind a barrier they are copies, of
logits over 50,257 words say. Here the program itself pads, and what is held is padded.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.extend.core as jexc
import jax.numpy as jnp
import numpy as np
from jax.extend.core import primitives

from .trace import Atom, Equation, Literal, Program, Variable, drop_dead

_MULTIPLE = 8
_LARGE = 1024
"""What is padded is held for less than a hundredth more."""

type Extra = tuple[int, ...]
"""Per dimension, elements to add."""


def aligned(program: Program) -> Program:
    """The program with its large products of 16-bit floats padded as XLA:GPU does."""
    aligner = _Aligner(program)
    return aligner.run() if any(map(aligner.extras, program.equations)) else program


class _Aligner:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.avals = list(program.avals)
        self.equations: list[Equation] = []
        self.producer = {v: e for e in program.equations for v in e.outputs}
        self.readers: dict[Variable, list[Equation]] = {}
        for equation in program.equations:
            for v in dict.fromkeys(equation.variables):
                self.readers.setdefault(v, []).append(equation)
        self.padded: dict[tuple[Variable, Extra], Variable] = {}
        self.turning: dict[Variable, tuple[Variable, Extra]] = {}

    def run(self) -> Program:
        for equation in self.program.equations:
            if self.turning.keys() & set(equation.variables):
                self._turn(equation)
            elif extras := self.extras(equation):
                self._multiply(equation, *extras)
            else:
                self.equations.append(equation)
        outputs = self.program.outputs
        return replace(
            self.program,
            equations=tuple(drop_dead(self.equations, outputs)),
            avals=tuple(self.avals),
        )

    def extras(self, equation: Equation) -> tuple[Extra, Extra] | None:
        """What is to be added to each operand of a product; None if nothing is."""
        if equation.primitive.name != "dot_general" or len(equation.variables) < 2:
            return None
        avals = [self.avals[v] for v in equation.variables]
        if any(
            not jnp.issubdtype(a.dtype, jnp.floating) or a.dtype.itemsize != 2
            for a in avals
        ):
            return None
        summed, batch = equation.params["dimension_numbers"]
        left, right = (
            _extra(aval.shape, *dims)
            for aval, *dims in zip(avals, summed, batch, strict=True)
        )
        return (left, right) if any(left) or any(right) else None

    def _multiply(self, equation: Equation, left: Extra, right: Extra) -> None:
        """The product of what is padded, and the part of it that is asked for."""
        x, y = equation.variables
        operands = self._pad(equation, x, left), self._pad(equation, y, right)
        summed, batch = equation.params["dimension_numbers"]
        free = (
            extra[d]
            for extra, *taken in zip((left, right), summed, batch, strict=True)
            for d in _free(len(extra), *taken)
        )
        extra = (*(0 for _ in batch[0]), *free)
        self._cut(replace(equation, inputs=operands), extra)

    def _turn(self, equation: Equation) -> None:
        """A transpose of a product, cut after it: XLA makes one of the two."""
        whole, extra = self.turning[equation.variables[0]]
        turned = tuple(extra[d] for d in equation.params["permutation"])
        self._cut(replace(equation, inputs=(whole,)), turned)

    def _cut(self, equation: Equation, extra: Extra) -> None:
        """Runs an equation whose result is `extra` larger, and then cuts that."""
        (output,) = equation.outputs
        if not any(extra):
            self.equations.append(equation)
            return
        whole = self._new(output, extra)
        self.equations.append(replace(equation, outputs=(whole,)))
        readers = [e.primitive.name for e in self.readers.get(output, ())]
        if readers == ["transpose"] and output not in self.program.outputs:
            self.turning[output] = whole, extra
            return
        shape = self.avals[output].shape
        params = {
            "start_indices": (0,) * len(shape),
            "limit_indices": shape,
            "strides": None,
        }
        self._append(equation, primitives.slice_p, params, (whole,), output)

    def _pad(self, equation: Equation, v: Variable, extra: Extra) -> Variable:
        """A variable padded for the equation; what was transposed is padded before."""
        if not any(extra):
            return v
        if (v, extra) not in self.padded:
            found = self._new(v, extra)
            source = self.producer.get(v)
            if source is not None and self._can_pad_before(source):
                order = source.params["permutation"]
                before = tuple(extra[order.index(d)] for d in range(len(order)))
                inner = self._pad(source, source.variables[0], before)
                turned = replace(source, inputs=(inner,), outputs=(found,))
                self.equations.append(turned)
            else:
                zero = np.zeros((), self.avals[v].dtype)
                literal = Literal(zero, jax.typeof(zero))
                params = {"padding_config": tuple((0, k, 0) for k in extra)}
                self._append(equation, primitives.pad_p, params, (v, literal), found)
            self.padded[v, extra] = found
        return self.padded[v, extra]

    def _can_pad_before(self, equation: Equation) -> bool:
        is_transpose = equation.primitive.name == "transpose"
        # Of what is cut behind its transpose there is nothing before.
        return is_transpose and self.turning.keys().isdisjoint(equation.variables)

    def _new(self, like: Variable, extra: Extra) -> Variable:
        aval = self.avals[like]
        shape = tuple(map(sum, zip(aval.shape, extra, strict=True)))
        self.avals.append(aval.update(shape=shape))
        return len(self.avals) - 1

    def _append(
        self,
        equation: Equation,
        primitive: jexc.Primitive,
        params: dict[str, Any],
        inputs: tuple[Atom, ...],
        output: Variable,
    ) -> None:
        """Adds an equation where `equation` is, by the user's names."""
        self.equations.append(
            replace(
                equation,
                primitive=primitive,
                params=params,
                inputs=inputs,
                outputs=(output,),
                is_pinned=False,
            )
        )


def _extra(shape: Sequence[int], summed: Sequence[int], batch: Sequence[int]) -> Extra:
    """What XLA adds to an operand. Of several dimensions it makes one: left alone."""
    found = [0] * len(shape)
    for dims in (tuple(summed), _free(len(shape), summed, batch)):
        if len(dims) == 1 and shape[dims[0]] >= _LARGE:
            found[dims[0]] = -shape[dims[0]] % _MULTIPLE
    return tuple(found)


def _free(rank: int, summed: Sequence[int], batch: Sequence[int]) -> tuple[int, ...]:
    return tuple(d for d in range(rank) if d not in {*summed, *batch})
