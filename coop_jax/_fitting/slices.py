"""Slices taken by an index, where a program takes many alike, on GPU.

XLA:GPU compiles the place of a slice into the kernel that copies it, so the steps of an
unrolled recurrence, each of which reads a slice of the input, are as many kernels, each
compiled twice. They are one where the place comes from behind a barrier. A slice of
whole rows stays as it is: a product reads it where it lies.
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
from .._program.fusing import VIEWS
from .._program.profile import Profile
from .._program.trace import Equation

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
        kind = program.avals[equation.variables[0]], _sizes(equation)
        alike[kind].append(k)
    places = {
        k: _place(program.equations[k], aval, sizes)
        for (aval, sizes), chosen in alike.items()
        if len(chosen) >= _FEWEST
        for k in chosen
    }
    if not places:
        return profile
    equations = list(program.equations)
    for k, place in lax.optimization_barrier(places).items():
        taken = functools.partial(_take, place, _sizes(equations[k]))
        equations[k] = replace(equations[k], instead=taken)
    laid = replace(program, equations=tuple(equations))
    return replace(profile, program=laid)


def _place(equation: Equation, aval: Any, sizes: tuple[int, ...]) -> list[jax.Array]:
    """Where a slice starts, along the axes of which it is a part."""
    starts = equation.params["start_indices"]
    cut = _cut_axes(aval.shape, sizes)
    return [placed_like(aval, jnp.int32(starts[axis])) for axis in cut]


def _take(
    place: Sequence[jax.Array], sizes: tuple[int, ...], array: jax.Array
) -> list[jax.Array]:
    starts: list[Any] = [jnp.int32(0)] * array.ndim
    for axis, start in zip(_cut_axes(array.shape, sizes), place, strict=True):
        starts[axis] = start
    return [lax.dynamic_slice(array, starts, sizes, allow_negative_indices=False)]


def _copied(profile: Profile) -> list[int]:
    """The slices that are all that is computed in an op, and are a kernel."""
    program, found = profile.program, dict[int, None]()
    for unit in profile.units:
        computed = (*unit.inlined, unit.root)
        names = {program.equations[k].primitive.name for k in computed}
        if names <= VIEWS | {"slice"}:
            found |= dict.fromkeys(
                k for k in computed if _is_kernel(program.equations[k], program.avals)
            )
    return list(found)


def _is_kernel(equation: Equation, avals: Sequence[Any]) -> bool:
    """Whether an equation is a slice of an array that XLA copies."""
    if equation.primitive.name != "slice" or not equation.variables:
        return False
    shape, sizes = avals[equation.variables[0]].shape, _sizes(equation)
    steps = equation.params["strides"] or ()
    cut = _cut_axes(shape, sizes)
    is_of_rows = not cut or all(size == 1 for size in sizes[: cut[-1]])
    return equation.instead is None and not is_of_rows and set(steps) <= {1}


def _cut_axes(shape: tuple[int, ...], sizes: tuple[int, ...]) -> list[int]:
    return [axis for axis, size in enumerate(sizes) if size != shape[axis]]


def _sizes(equation: Equation) -> tuple[int, ...]:
    ends = zip(
        equation.params["start_indices"], equation.params["limit_indices"], strict=True
    )
    return tuple(end - start for start, end in ends)
