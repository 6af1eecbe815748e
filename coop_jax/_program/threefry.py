"""Random words drawn by other means than JAX's own, to the same bits.

A word is its number, enciphered: twenty rounds of Threefry-2x32 with partitionable
counters. For CPU JAX writes the rounds as a loop, over two arrays of words and one of
numbers, as XLA:CPU once compiled the straight line slowly. It makes one kernel of that
now, with whatever reads the words: a dropout mask takes its own bytes and no others, a
quarter of the time or less, and one kernel to compile for more than twenty.
"""

import functools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.extend.core as jexc
import jax.numpy as jnp
from jax import lax

from .fusing import FUSIBLE
from .trace import Equation, Literal, Program, Variable

WORDS = jexc.Primitive("random_words")
"""Stands in a program for words drawn in a straight line."""

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def draws_words(equation: Equation, avals: Sequence[Any]) -> bool:
    """Whether it draws words of 32 bits by partitionable Threefry from one key.

    Args:
      equation: of a program.
      avals: shape and dtype of the program's variables.
    """
    if equation.primitive.name not in ("random_bits", WORDS.name):
        return False
    (key,) = equation.inputs
    with equation.entered():
        is_partitionable = jax.config.jax_threefry_partitionable
    return (
        is_partitionable
        and not isinstance(key, Literal)
        and str(avals[key].dtype) == "key<fry>"
        and avals[key].shape == ()
        and equation.params["bit_width"] == 32
    )


def in_line(program: Program) -> Program:
    """The program of one device, drawing in a straight line what can be drawn so.

    But for what is spread over more than its own elements: XLA would draw a word for
    each of these, and takes minutes to compile some of them.
    """
    readers = defaultdict[Variable, list[Equation]](list)
    for each in program.equations:
        for v in each.variables:
            readers[v].append(each)
    equations = tuple(
        replace(
            each,
            primitive=WORDS,
            instead=functools.partial(_draw, tuple(each.params["shape"])),
        )
        if draws_words(each, program.avals)
        and is_in_range(each)
        and not _is_spread(each, program.avals, readers)
        else each
        for each in program.equations
    )
    return replace(program, equations=equations)


def is_in_range(equation: Equation) -> bool:
    """Whether it draws some words, and numbers of 32 bits are enough for them."""
    return 0 < math.prod(equation.params["shape"]) < 2**32


def _is_spread(
    equation: Equation,
    avals: Sequence[Any],
    readers: Mapping[Variable, Sequence[Equation]],
) -> bool:
    """Whether XLA might compute words inside of what has more elements."""
    size = math.prod(equation.params["shape"])
    todo, seen = [*equation.outputs], {*equation.outputs}
    while todo:
        for reader in readers.get(todo.pop(), ()):
            if reader.primitive.name not in FUSIBLE or reader.is_barrier:
                continue
            if any(avals[v].size > size for v in reader.outputs):
                return True
            todo += [v for v in reader.outputs if v not in seen]
            seen.update(reader.outputs)
    return False


def _draw(shape: tuple[int, ...], key: jax.Array) -> list[jax.Array]:
    first, second = jax.random.key_data(key)
    left = jnp.broadcast_to(first, shape)
    left, right = _enciphered(first, second, left, _numbered(second, shape))
    return [left ^ right]


def _numbered(start: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Numbers of the elements of an array, row by row, from `start` on.

    Numbers from 0 would be the same for all draws: XLA would make them once, as an
    array, at the start of the step, and keep it for the last draw.
    """
    numbers, stride = jnp.broadcast_to(start, shape), math.prod(shape)
    for dim, size in enumerate(shape):
        stride //= size
        place = lax.broadcasted_iota(jnp.uint32, shape, dim)
        numbers += place * jnp.uint32(stride)
    return numbers


def _enciphered(
    first: jax.Array, second: jax.Array, left: jax.Array, right: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Threefry-2x32 in 20 rounds (Salmon et al., 2011) of pairs of words.

    Args:
      first, second: words of the key, uint32 of shape ().
      left, right: sums of these and of the words to encipher, uint32 of one shape.
    """
    keys = first, second, first ^ second ^ jnp.uint32(_PARITY)
    for group in range(5):
        for turn in _ROTATIONS[group % 2]:
            left += right
            right = _rotated(right, turn) ^ left
        left += keys[(group + 1) % 3]
        right += keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return left, right


def _rotated(words: jax.Array, turn: int) -> jax.Array:
    low = lax.shift_right_logical(words, jnp.uint32(32 - turn))
    return lax.shift_left(words, jnp.uint32(turn)) | low
