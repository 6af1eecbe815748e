"""Random bits of loop bodies, drawn without what XLA would take out of the loop.

`jax.random.bits` enciphers the number of each element. XLA computes the numbers, which
depend on nothing, once before the loop and keeps them through it: 8 bytes for each
element of a dropout mask. Here they begin at a zero that passes a barrier beside the
key, of which XLA cannot know that it is the same in every iteration. The bits are
those of `jax.random.bits` (Threefry-2x32 with partitionable counters).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.random import threefry2x32_p

from .._program.threefry import draws_words, is_in_range
from .._program.trace import Equation, Program
from .loops import varying


def with_own_counters(body: Program) -> Program:
    """The body, whose random bits are drawn so where that can be done."""
    equations = [
        replace(equation, instead=partial(_draw, equation.params["shape"]))
        if _can_draw(body, equation)
        else equation
        for equation in body.equations
    ]
    return replace(body, equations=tuple(equations))


def _can_draw(body: Program, equation: Equation) -> bool:
    return (
        equation.instead is None
        and draws_words(equation, body.avals)
        # Of a key for each device of a `shard_map`, JAX alone draws.
        and not any(varying(body.avals[v]) for v in equation.variables)
        and is_in_range(equation)
    )


def _draw(shape: Sequence[int], key: jax.Array) -> list[jax.Array]:
    words, zero = lax.optimization_barrier((jax.random.key_data(key), jnp.uint32(0)))
    number = lax.iota(jnp.uint32, math.prod(shape)).reshape(shape) + zero
    high = jnp.broadcast_to(zero, shape)
    bits = threefry2x32_p.bind(*words, high, number)
    return [bits[0] ^ bits[1]]
