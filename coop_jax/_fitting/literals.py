"""Literals that pass a part's barrier.

A literal that a part spreads over an array passes the barrier too, but for those that
XLA:GPU fuses: XLA would otherwise make that array once, at the very start, and keep it
to the end.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any

import jax.numpy as jnp

from .._loops.loops import scan_from, stacks
from .._planning.types import OpId
from .._program.profile import Profile
from .._program.trace import Equation, Literal

type Place = tuple[int, int]
"""An equation and one of its inputs."""

STACKS = -1
"""Place of the zeros that a scan stacks its outputs into."""


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
            literal = equations[k].inputs[place]
            assert isinstance(literal, Literal)
            found[k, place] = jnp.asarray(literal.val, literal.aval.dtype)
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
    equation = profile.program.equations[unit.root]
    # What is but a literal spread over an array would be one array for all times.
    own = ((unit.root, 0),) if _is_spread_literal(equation) else ()
    if profile.platform == "cpu":
        return (*unit.literals, *own, *(unit.scalars if calls_library else ()))
    return (*(unit.literals if op in spreading else ()), *own)


def _is_spread_literal(equation: Equation) -> bool:
    is_spread = equation.primitive.name == "broadcast_in_dim"
    return is_spread and isinstance(equation.inputs[0], Literal)


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
    return equation.bind(*values)
