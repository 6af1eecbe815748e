"""Products of arrays with vectors, in the order in which XLA:CPU turns nothing.

XLA makes a matrix of the first operand of a product with the summed up dimensions last,
of the second with them first (`DotDecomposer`). So an array of gradients per example,
summed up over the examples with a weight each, is written once more, turned around,
where it comes first, and read as it is where it comes second. The product with a vector
is the same array in either order.
"""

from dataclasses import replace
from typing import Any

from .trace import Equation, Literal, Program


def unturned(program: Program) -> Program:
    """The program with vectors in front of what they are multiplied with."""
    equations = tuple(
        _swapped(e) if _is_turned(e, program) else e for e in program.equations
    )
    return replace(program, equations=equations)


def _is_turned(equation: Equation, program: Program) -> bool:
    """True of an array times a vector, if it is no matrix but where it comes second."""
    if equation.primitive.name != "dot_general":
        return False
    array, vector = (
        a.aval if isinstance(a, Literal) else program.avals[a] for a in equation.inputs
    )
    (summed, of_vector), (batch, _) = equation.params["dimension_numbers"]
    if vector.ndim != len(of_vector) + len(batch):
        return False
    as_it_lies = list(range(array.ndim))
    free = [d for d in as_it_lies if d not in (*summed, *batch)]
    is_matrix = len(free) == len(summed) == 1 or [*batch, *free, *summed] == as_it_lies
    return not is_matrix and [*batch, *summed, *free] == as_it_lies


def _swapped(equation: Equation) -> Equation:
    first, second = equation.inputs
    params: dict[str, Any] = dict(equation.params)
    params["dimension_numbers"] = tuple(
        (of_second, of_first) for of_first, of_second in params["dimension_numbers"]
    )
    if isinstance(params["precision"], tuple):
        params["precision"] = params["precision"][::-1]
    return replace(equation, params=params, inputs=(second, first))
