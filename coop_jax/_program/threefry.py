"""Random bits that can be drawn by other means than JAX's own, to the same bits."""

from collections.abc import Sequence
from typing import Any

import jax

from .trace import Equation, Literal


def draws_words(equation: Equation, avals: Sequence[Any]) -> bool:
    """Whether it draws words of 32 bits by partitionable Threefry from one key.

    Args:
      equation: of a program.
      avals: shape and dtype of the program's variables.
    """
    if equation.primitive.name != "random_bits":
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
