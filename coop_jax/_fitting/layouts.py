"""Which arrays of a plan lie row by row, and which as XLA likes."""

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from .._program.trace import Program


def turned(program: Program) -> set[tuple[int, ...]]:
    """Shapes of arrays whose layouts are for XLA to choose.

    Convolutions have layouts of their own, and a transpose is free where what it reads
    already lies as it is to be.
    """
    names = {"conv_general_dilated", "transpose"}
    arrays = {
        v
        for each in program.equations
        if each.primitive.name in names
        for v in (*each.variables, *each.outputs)
    }
    return {program.avals[v].shape for v in arrays}


def row_major(array: jax.Array) -> jax.Array:
    """The array, whose layout XLA may not choose.

    Else an updated weight stays in the order of its gradient up to the end of the step,
    and a transpose is copied on both sides of a barrier.
    """
    if array.ndim < 2 or jnp.issubdtype(array.dtype, jax.dtypes.extended):
        return array
    return with_layout_constraint(array, Layout(tuple(range(array.ndim))))
