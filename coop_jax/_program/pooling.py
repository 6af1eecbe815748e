"""Gradients of max and min pooling, window by window.

XLA expands a `select-and-scatter` into a search that carries one int32 array of the
operand's size per axis, and a scatter. XLA:CPU writes those arrays out: made from
constants alone, they live from the start of the step to its end, four times the operand
in each pool, and the scatter goes element by element. The same gradient is a handful of
elementwise operations on slices, which fuse: for each window the number of the element
that was chosen, a byte, then each element's share of what the windows that chose it
pass back.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .cost import nbytes
from .hlo import OwnedBuffer
from .trace import Atom, Equation, Literal, Program

_MOST = 64
"""Elements of a window that are told apart by slices; larger ones are XLA's."""

_FEW = 9
"""Elements of windows that do not overlap, up to which a share for each is cheaper than
all of them by their numbers."""


def pool_gradients(program: Program) -> frozenset[int]:
    """The equations that are gradients of pooling with small windows."""
    return frozenset(
        k for k, each in enumerate(program.equations) if _is_pool_gradient(each)
    )


def by_windows(program: Program, chosen: frozenset[int]) -> Program:
    """The program with these equations computed window by window."""
    if not chosen:
        return program
    equations = list(program.equations)
    for k in chosen:
        instead = functools.partial(_outputs, equations[k].params)
        equations[k] = replace(equations[k], instead=instead)
    return replace(program, equations=tuple(equations))


def is_by_windows(equation: Equation) -> bool:
    """Whether it is a gradient of pooling, computed window by window."""
    return equation.instead is not None and _is_pool_gradient(equation)


def is_padded(equation: Equation) -> bool:
    """Whether a gradient of pooling, by windows, pads its operand first."""
    return any(low or high for low, high in equation.params["padding"])


def buffers_by_windows(
    program: Program, k: int, owned: Sequence[OwnedBuffer]
) -> list[OwnedBuffer]:
    """What equation `k` takes, computed window by window.

    Args:
      program: it is in.
      k: a gradient of pooling.
      owned: what XLA assigned to it.

    Returns:
      The result, where XLA gave it bytes of its own, and what is needed beside it: a
      byte per window, and what is around the operand, whose padded copy is gone when
      the result is written.
    """
    equation = program.equations[k]
    result = program.avals[equation.outputs[0]]
    size = program.sizes.get(equation.outputs[0], nbytes(result))
    results = [b for b in owned if b.origin == "equation" and b.size == size]
    padded = math.prod(
        low + extent + high
        for extent, (low, high) in zip(
            result.shape, equation.params["padding"], strict=True
        )
    )
    windows = math.prod(_aval(program, equation.inputs[0]).shape)
    whole = windows + result.dtype.itemsize * (padded - result.size)
    beside = OwnedBuffer(
        f"windows of {k}",
        "fusion",
        whole * size // max(nbytes(result), 1),
        allocation=-1 - k,
        offset=0,
        is_temporary=True,
        origin="reader",
    )
    return [*results[:1], beside]


def _aval(program: Program, atom: Atom) -> Any:
    return atom.aval if isinstance(atom, Literal) else program.avals[atom]


def pool_gradient(
    source: jax.Array,
    operand: jax.Array,
    *,
    select_prim: Any,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
) -> jax.Array:
    """What pooling passes back to its operand: XLA's SelectAndScatter.

    Of equal elements the first of a window is chosen. What is around the operand counts
    as the least value there is (the largest, for min pooling), as JAX has it on CPU and
    GPU.

    Args:
      source: gradient of the pooled array, one element per window.
      operand: what was pooled.
      select_prim: `ge` for max pooling, `le` for min pooling.
      window_dimensions: elements of a window along each axis.
      window_strides: from window to window along each axis.
      padding: elements around the operand, before and after, along each axis.

    Returns:
      An array of the operand's shape.
    """
    if source.size == 0:
        return jnp.zeros(operand.shape, source.dtype)
    around = _identity(operand.dtype, is_max=select_prim.name == "ge")
    padded = lax.pad(operand, around, [(low, high, 0) for low, high in padding])
    windows = _Windows(padded.shape, source.shape, tuple(window_strides))
    places = list(itertools.product(*map(range, window_dimensions)))
    best = windows.element(padded, places[0])
    chosen = jnp.zeros(source.shape, jnp.uint8)
    for k, place in enumerate(places[1:], start=1):
        element = windows.element(padded, place)
        is_kept = select_prim.bind(best, element)
        best = jnp.where(is_kept, best, element)
        chosen = jnp.where(is_kept, chosen, jnp.uint8(k))
    # Written once: fused into every share, the search would run as many times.
    chosen = lax.optimization_barrier(chosen)
    none = jnp.zeros((), source.dtype)
    is_apart = all(
        n <= m for n, m in zip(window_dimensions, window_strides, strict=True)
    )
    if is_apart and len(places) > _FEW:
        shares = jnp.where(
            windows.tiled(chosen) == windows.numbers(window_dimensions),
            windows.tiled(source),
            none,
        )
        return windows.unpadded(shares, padding)
    shares = [
        windows.spread(jnp.where(chosen == k, source, none), place, padding)
        for k, place in enumerate(places)
    ]
    return functools.reduce(lax.add, shares)


@dataclass(frozen=True, slots=True)
class _Windows:
    """How windows lie over a padded operand; all numbers are by axis.

    Attributes:
      extents: the padded operand's.
      counts: windows.
      strides: from window to window.
    """

    extents: tuple[int, ...]
    counts: tuple[int, ...]
    strides: tuple[int, ...]

    def element(self, padded: jax.Array, place: Sequence[int]) -> jax.Array:
        """The element at this place of every window."""
        return lax.slice(padded, place, self._ends(place), self.strides)

    def spread(
        self,
        windows: jax.Array,
        place: Sequence[int],
        padding: Sequence[tuple[int, int]],
    ) -> jax.Array:
        """What windows have for the element at this place, where it lies."""
        around = [
            (start - low, extent - end - high, stride - 1)
            for start, extent, end, stride, (low, high) in zip(
                place,
                self.extents,
                self._ends(place),
                self.strides,
                padding,
                strict=True,
            )
        ]
        return lax.pad(windows, jnp.zeros((), windows.dtype), around)

    def tiled(self, windows: jax.Array) -> jax.Array:
        """What each window has, once for every element from it to the next."""
        paired = [
            n for pair in zip(self.counts, self.strides, strict=True) for n in pair
        ]
        kept = tuple(range(0, 2 * len(self.counts), 2))
        blocks = lax.broadcast_in_dim(windows, paired, kept)
        return blocks.reshape(
            [n * m for n, m in zip(paired[::2], paired[1::2], strict=True)]
        )

    def numbers(self, dimensions: Sequence[int]) -> jax.Array:
        """Per element of the tiles, its place in its window, or none between two."""
        shape = [n * m for n, m in zip(self.counts, self.strides, strict=True)]
        number, between = jnp.zeros(shape, jnp.int32), False
        for axis, (size, stride) in enumerate(
            zip(dimensions, self.strides, strict=True)
        ):
            at = lax.broadcasted_iota(jnp.int32, shape, axis) % stride
            number, between = number * size + at, between | (at >= size)
        return jnp.where(between, _MOST, number)

    def unpadded(
        self, tiles: jax.Array, padding: Sequence[tuple[int, int]]
    ) -> jax.Array:
        """The tiles, cut or filled with zeros to the operand without its padding."""
        around = [
            (-low, extent - size - high, 0)
            for extent, size, (low, high) in zip(
                self.extents, tiles.shape, padding, strict=True
            )
        ]
        return lax.pad(tiles, jnp.zeros((), tiles.dtype), around)

    def _ends(self, place: Sequence[int]) -> list[int]:
        return [
            start + (count - 1) * stride + 1
            for start, count, stride in zip(
                place, self.counts, self.strides, strict=True
            )
        ]


def _identity(dtype: Any, is_max: bool) -> np.ndarray:
    """What never takes the place of another element."""
    if not jnp.issubdtype(dtype, jnp.inexact):
        bounds = jnp.iinfo(dtype)
        return np.array(bounds.min if is_max else bounds.max, dtype)
    infinite = np.array(-np.inf if is_max else np.inf).astype(dtype)
    if np.isinf(infinite):
        return infinite
    finite = jnp.finfo(dtype)
    return np.array(finite.min if is_max else finite.max, dtype)


def _is_pool_gradient(equation: Equation) -> bool:
    return (
        equation.primitive.name == "select_and_scatter_add"
        and math.prod(equation.params["window_dimensions"]) <= _MOST
    )


def _outputs(params: dict[str, Any], source: Any, operand: Any) -> list[Any]:
    return [pool_gradient(source, operand, **params)]
