"""Literals that pass a part's barrier, and what becomes of a division by one.

A literal that a part spreads over an array passes the barrier too, but for those that
XLA:GPU fuses: XLA would otherwise make that array once, at the very start, and keep it
to the end. Of a division by a number XLA makes a product with its inverse. A constant
it inverts as it compiles, what comes from behind a barrier in a kernel of its own; so
the inverse passes in its place.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .._loops.loops import scan_from, stacks
from .._planning.types import OpId
from .._program.profile import Profile
from .._program.trace import Equation, Literal

type Place = tuple[int, int]
"""An equation and one of its inputs."""

STACKS = -1
"""Place of the zeros that a scan stacks its outputs into."""

_INVERTED = (np.float32, np.float64)


def passing(
    profile: Profile, part: Sequence[OpId], alone: Set[OpId], spreading: Set[OpId]
) -> dict[Place, Any]:
    """What passes the barrier in front of a part in place of its literals.

    Args:
      profile: units of the program.
      part: ops.
      alone: ops that XLA fuses with no other.
      spreading: those of which XLA:GPU writes an array that holds but a literal.
    """
    calls_library = part[-1] in alone
    equations, found = profile.program.equations, dict[Place, Any]()
    for op in part:
        if op in profile.calls:
            continue
        for k, place in _spread(profile, op, calls_library, spreading):
            found[k, place] = _value(equations[k], place)
    for op in part:
        root = profile.units[op].root
        if stacks(equations[root]):
            found.setdefault((root, STACKS), jnp.zeros((), jnp.int32))
    return found


def _spread(
    profile: Profile, op: OpId, calls_library: bool, spreading: Set[OpId]
) -> tuple[Place, ...]:
    """Literals of an op that XLA would make arrays of.

    XLA:GPU makes none of those that it fuses, and does not know for a constant what
    comes from behind a barrier: a softmax is several kernels then.
    """
    unit = profile.units[op]
    if profile.platform == "cpu":
        return (*unit.literals, *(unit.scalars if calls_library else ()))
    return unit.literals if op in spreading else ()


def _value(equation: Equation, place: int) -> Any:
    literal = equation.inputs[place]
    assert isinstance(literal, Literal)
    dtype = literal.aval.dtype
    if not _is_inverted(equation, place):
        return jnp.asarray(literal.val, dtype)
    with np.errstate(divide="ignore", over="ignore"):
        return jnp.asarray(np.ones((), dtype) / np.asarray(literal.val, dtype))


def _is_inverted(equation: Equation, place: int) -> bool:
    """Whether it is a divisor that XLA would invert."""
    if equation.primitive.name != "div" or place != 1:
        return False
    divisor = equation.inputs[place]
    return isinstance(divisor, Literal) and divisor.aval.dtype in _INVERTED


def bind(
    equation: Equation, k: int, operands: Sequence[Any], passed: Mapping[Place, Any]
) -> list[Any]:
    """Runs equation `k`, with what passed a barrier in place of its literals.

    Args:
      equation: of the program.
      k: its number.
      operands: values of its inputs.
      passed: as made by `passing`, behind the barrier.
    """
    if (k, STACKS) in passed:
        return scan_from(equation, list(operands), passed[k, STACKS])
    values = [passed.get((k, i), operand) for i, operand in enumerate(operands)]
    if (k, 1) in passed and _is_inverted(equation, 1):
        return [lax.mul(*values)]
    return equation.bind(*values)
