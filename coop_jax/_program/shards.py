"""Bytes per device of a partitioned step, read from what XLA compiled.

A traced program knows whole arrays only; how XLA's partitioner splits a value in
between is seen in the bytes it gives it. Where an equation owns a buffer that is a
whole share of its result, that is the share; what owns none is taken to be split like
the largest thing it reads. Collectives show in the same buffers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .cost import nbytes
from .hlo import COLLECTIVES, MOVING, OwnedBuffer
from .trace import Equation, Literal, Program, Variable


def localized(program: Program, owned: Mapping[int, Sequence[OwnedBuffer]]) -> Program:
    """The program with bytes per device for every value.

    Args:
      program: with `partitions` devices, and bytes per device for its arguments.
      owned: buffers by equation.
    """
    if program.partitions == 1:
        return program
    sizes = dict(program.sizes)
    for k, equation in enumerate(program.equations):
        share = _inherited(program, sizes, equation)
        for v in equation.outputs:
            whole = nbytes(program.avals[v])
            seen = _shares(program.partitions, whole, owned.get(k, ()))
            seen += _stated(equation, program.avals[v])
            sizes[v] = max(whole // max(seen, default=share), 1) if whole else 0
    return replace(program, sizes=sizes)


def communicates(buffers: Iterable[OwnedBuffer]) -> bool:
    """Whether any of the buffers is written by a collective."""
    return any(buffer.opcode.startswith(COLLECTIVES) for buffer in buffers)


def is_moved(buffer: OwnedBuffer) -> bool:
    """Whether a collective that only moves bytes about writes the buffer."""
    return buffer.opcode.startswith(MOVING)


def _shares(partitions: int, whole: int, buffers: Iterable[OwnedBuffer]) -> list[int]:
    """Into how many parts buffers say that a value of `whole` bytes is split."""
    return [
        whole // buffer.size
        for buffer in buffers
        if buffer.size
        and whole % buffer.size == 0
        and partitions % (whole // buffer.size) == 0
    ]


def _inherited(
    program: Program, sizes: Mapping[Variable, int], equation: Equation
) -> int:
    """Into how many parts the largest input is split, of several the most."""
    inputs = [v for v in equation.inputs if not isinstance(v, Literal)]
    shares = [(0, 1)]
    for v in inputs:
        whole = nbytes(program.avals[v])
        shares.append((whole, max(1, whole // max(sizes.get(v, whole), 1))))
    return max(shares)[1]


def _stated(equation: Equation, aval: Any) -> list[int]:
    """Into how many parts a sharding constraint splits its result, if it says."""
    params = equation.params
    if equation.primitive.name != "sharding_constraint" or params["unconstrained_dims"]:
        return []
    try:
        shape = params["sharding"].shard_shape(aval.shape)
    except ValueError:
        return []  # the parts are not of one size
    part = nbytes(aval.update(shape=shape))
    return [nbytes(aval) // part] if part else []
