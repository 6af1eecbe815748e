"""Slices taken by an index, where a program takes many alike, on GPU.

XLA:GPU compiles the place of a slice into the kernel that copies it, so the steps of an
unrolled recurrence, each of which reads a slice of the input, are as many kernels, each
compiled twice. They are one where the place comes from behind a barrier. A slice of
whole rows stays as it is: a product reads it where it lies. Not so random keys: each is
a slice of the array that another was split into.
"""

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .._loops.loops import placed_like
from .._program.fusing import SLICES, VIEWS
from .._program.profile import Profile
from .._program.trace import Equation
from .keys import are_keys

_FEWEST = 8

type Kind = tuple[Any, tuple[int, ...]]
"""Type of what is sliced, and the shape of a slice."""


def with_slices_by_index(profile: Profile) -> Profile:
    """The profile with slices of which there are many alike taken by an index.

    To be called where the program is traced. Where several devices hold parts of an
    array, it is as it was: they would send each other all of it.
    """
    program = profile.program
    if profile.platform != "gpu" or program.partitions > 1:
        return profile
    alike: dict[Kind, list[int]] = defaultdict(list)
    for k in _copied(profile):
        equation = program.equations[k]
        kind = program.avals[equation.variables[0]], _sizes(equation, program.avals)
        alike[kind] += [k] * len(equation.outputs)
    places = {
        k: _places(program.equations[k], aval, sizes)
        for (aval, sizes), chosen in alike.items()
        if len(chosen) >= _FEWEST
        for k in dict.fromkeys(chosen)
    }
    if not places:
        return profile
    equations = list(program.equations)
    for k, starts in lax.optimization_barrier(places).items():
        sizes = _sizes(equations[k], program.avals)
        shapes = [program.avals[v].shape for v in equations[k].outputs]
        taken = functools.partial(_take, starts, sizes, shapes)
        equations[k] = replace(equations[k], instead=taken)
    laid = replace(program, equations=tuple(equations))
    return replace(profile, program=laid)


def _places(
    equation: Equation, aval: Any, sizes: tuple[int, ...]
) -> list[list[jax.Array]]:
    """Where each slice starts, along the axes of which it is a part."""
    cut = _cut_axes(aval.shape, sizes)
    starts = equation.params.get("start_indices")
    found = [[start] for start in range(len(equation.outputs))]
    if starts is not None:
        found = [[starts[axis] for axis in cut]]
    return [[placed_like(aval, jnp.int32(start)) for start in each] for each in found]


def _take(
    places: Sequence[Sequence[jax.Array]],
    sizes: tuple[int, ...],
    shapes: Sequence[tuple[int, ...]],
    array: jax.Array,
) -> list[jax.Array]:
    found = []
    for place, shape in zip(places, shapes, strict=True):
        starts: list[Any] = [jnp.int32(0)] * array.ndim
        for axis, start in zip(_cut_axes(array.shape, sizes), place, strict=True):
            starts[axis] = start
        taken = lax.dynamic_slice(array, starts, sizes, allow_negative_indices=False)
        found.append(taken.reshape(shape))
    return found


def _copied(profile: Profile) -> list[int]:
    """The slices that are all that is computed in an op, and are a kernel."""
    program, found = profile.program, dict[int, None]()
    for unit in profile.units:
        computed = (*unit.inlined, unit.root)
        names = {program.equations[k].primitive.name for k in computed}
        if names <= VIEWS | SLICES:
            found |= dict.fromkeys(
                k for k in computed if _is_kernel(program.equations[k], program.avals)
            )
    return list(found)


def _is_kernel(equation: Equation, avals: Sequence[Any]) -> bool:
    """Whether an equation is a slice of an array that XLA copies."""
    is_slice = equation.primitive.name in SLICES and bool(equation.variables)
    if not is_slice or equation.instead is not None:
        return False
    sliced, sizes = avals[equation.variables[0]], _sizes(equation, avals)
    steps = equation.params.get("strides") or ()
    cut = _cut_axes(sliced.shape, sizes)
    is_of_rows = not cut or all(size == 1 for size in sizes[: cut[-1]])
    is_copied = not is_of_rows or (bool(cut) and are_keys(sliced))
    # A few slices of one array are one kernel.
    is_one = 1 < len(equation.outputs) < _FEWEST
    return is_copied and not is_one and set(steps) <= {1}


def _cut_axes(shape: tuple[int, ...], sizes: tuple[int, ...]) -> list[int]:
    return [axis for axis, size in enumerate(sizes) if size != shape[axis]]


def _sizes(equation: Equation, avals: Sequence[Any]) -> tuple[int, ...]:
    """Sizes of a slice, or of each of those that an array is unstacked into."""
    params = equation.params
    if "axis" in params:
        shape = avals[equation.variables[0]].shape
        return tuple(1 if k == params["axis"] else n for k, n in enumerate(shape))
    ends = zip(params["start_indices"], params["limit_indices"], strict=True)
    return tuple(end - start for start, end in ends)
