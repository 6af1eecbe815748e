"""What a loop reads that is only a value spread over an array: spread inside its body.

A causal mask over all heads, or the number put in its place, is a `broadcast_in_dim`
that differentiation leaves in front of the loop. XLA keeps such an array through the
loop, and beside a barrier writes it even where it is a single number. Inside the body
it is fused into what reads it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from .._program.cost import nbytes
from .._program.trace import Atom, Equation, Literal, Program, Variable, read

_SPREAD = 8
"""Times that an array takes the bytes of what is spread over it, at the least."""


def spreads(program: Program) -> dict[Variable, Equation]:
    """The equations that do no more than spread a value, by result."""
    return {
        equation.outputs[0]: equation
        for equation in program.equations
        if equation.primitive.name == "broadcast_in_dim"
        and _SPREAD * sum(nbytes(program.avals[v]) for v in equation.variables)
        <= nbytes(program.avals[equation.outputs[0]])
    }


def operand(
    spread: Mapping[Variable, Equation], env: Mapping[Variable, Any], atom: Atom
) -> Callable[[], Any]:
    """What gives an operand of a loop its value, to be called in the loop's body.

    Args:
      spread: by `spreads`.
      env: values outside of the loop.
      atom: the operand.
    """
    equation = None if isinstance(atom, Literal) else spread.get(atom)
    if equation is None:
        value = read(env, atom)
        return lambda: value
    operands = [read(env, each) for each in equation.inputs]
    return lambda: equation.bind(*operands)[0]
