"""What XLA simplifies before it fuses, done where no barrier can keep it from that.

  * what adds nothing or multiplies by one is its operand: the norm of real gradients
    adds the square of an imaginary part to each;
  * a quotient by a constant is a product with its inverse.

Both give the bits that XLA gives (`AlgebraicSimplifierVisitor::HandleAdd`,
`HandleMultiply`, `HandleDivide`).
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import jax
import jax.extend.core as jexc
import jax.numpy as jnp
import numpy as np
from jax import lax

from .trace import Atom, Literal, Variable

type Numbers = Mapping[Variable, Any]
"""Arrays that hold one number all over."""

_NEUTRAL = {"add": (0, (0, 1)), "sub": (0, (1,)), "mul": (1, (0, 1)), "div": (1, (1,))}
"""Per primitive the number that changes nothing, and as which operand."""

_KEEPING = {"broadcast_in_dim", "convert_element_type", "reshape", "square"}
"""Primitives that make a 0 of 0 and a 1 of 1."""

_INVERTED = (np.float32, np.float64)


def number_of(atom: Atom, numbers: Numbers) -> Any:
    """The number that an operand holds all over; None if that is not known."""
    if not isinstance(atom, Literal):
        return numbers.get(atom)
    is_number = jnp.issubdtype(atom.aval.dtype, np.number)
    return atom.val if is_number and np.ndim(atom.val) == 0 else None


def number_made(name: str, inputs: Sequence[Atom], numbers: Numbers) -> Any:
    """The number that the result of a primitive holds all over; None if not known."""
    if name not in _KEEPING or len(inputs) != 1:
        return None
    number = number_of(inputs[0], numbers)
    is_kept = name == "broadcast_in_dim" or number in (0, 1)
    return number if is_kept else None


def unchanged(name: str, inputs: Sequence[Atom], numbers: Numbers) -> Atom | None:
    """The operand that the result of a primitive is equal to, if it is to one."""
    neutral, places = _NEUTRAL.get(name, (0, ()))
    for place in places:
        number = number_of(inputs[place], numbers)
        if number is not None and number == neutral:
            return inputs[1 - place]
    return None


def inverse(name: str, inputs: Sequence[Atom]) -> Literal | None:
    """The constant whose product with the first operand XLA makes of a quotient."""
    if name != "div" or isinstance(inputs[0], Literal):
        return None
    divisor = inputs[1]
    if not isinstance(divisor, Literal) or np.ndim(divisor.val):
        return None
    dtype = divisor.aval.dtype
    if dtype not in _INVERTED:
        return None
    with np.errstate(divide="ignore", over="ignore"):
        inverted = np.ones((), dtype) / np.asarray(divisor.val, dtype)
    return Literal(inverted, divisor.aval)


@cache
def product() -> tuple[jexc.Primitive, dict[str, Any]]:
    """The primitive of products, with its parameters."""
    number = np.float32(1)
    (equation,) = jax.make_jaxpr(lax.mul)(number, number).eqns
    return equation.primitive, equation.params
