"""The words of in-place programs: element types, opcodes, and what a program is.

The format is written down in `xla_ffi/program.h`.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .._program.trace import Variable

type Map = tuple[int, ...]
"""Per dimension of the iteration space, the stride into a value's row-major order."""

VERSION = 1
MOST_DIMENSIONS = 8
MOST_INSTRUCTIONS = 512
MOST_OPERANDS = 32

_STORAGES = ("float32", "float64", "bfloat16", "float16", "int32", "uint32", "bool")
F32, F64, S32, U32, PRED = range(5)
_TYPES = (F32, F64, F32, F32, S32, U32, PRED)
"""Type of registers that hold elements of each storage."""

OPCODES = {
    name: code
    for code, name in enumerate(
        "load literal iota random_bits convert bitcast round_bf16 round_f16 neg abs "
        "sign floor ceil exp exp2 expm1 log log1p tanh logistic erf erfc sqrt rsqrt "
        "not is_finite integer_pow add sub mul div max min pow and or xor shift_left "
        "shift_right_logical shift_right_arithmetic eq ne lt le gt ge select "
        "reduce_sum reduce_max reduce_min".split()
    )
}
FLOATING_ONLY = {
    "floor", "ceil", "exp", "exp2", "expm1", "log", "log1p", "tanh", "logistic", "erf",
    "erfc", "sqrt", "rsqrt", "is_finite", "div",
}  # fmt: skip
OF_PREDICATES = {
    "load", "literal", "convert", "bitcast", "select", "eq", "ne", "not", "and", "or",
    "xor", "max", "min",
}  # fmt: skip
"""What there is for operands that are true or false (`IsDefined` in `program.cc`)."""


class Unsupported(Exception):
    """The chain has something that programs cannot express."""


@dataclass(frozen=True, slots=True)
class Split(Exception):
    """A dimension must become two, the inner one of this size."""

    dimension: int
    inner: int


@dataclass(frozen=True, slots=True)
class Operand:
    """An array that the call reads.

    Attributes:
      shape: what it is reshaped to; None for the data of a random key.
    """

    variable: Variable
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class InplaceProgram:
    """One chain as the call takes it.

    Attributes:
      words: the program.
      operands: in the call's order.
      shape: of the result.
      dtype: of the result.
      overwritable: operands whose bytes the result can take: equal type, read element
        by element as the result is written.
      outside: small equations of the chain that the call cannot do; they run before it.
      has_reductions: over the row.
      is_contiguous: the row lies in one piece in the result.
    """

    words: tuple[int, ...]
    operands: tuple[Operand, ...]
    shape: tuple[int, ...]
    dtype: Any
    overwritable: tuple[int, ...]
    outside: tuple[int, ...]
    has_reductions: bool
    is_contiguous: bool


def kind_of(dtype: Any) -> int:
    """The type of registers that hold this type of elements."""
    return _TYPES[storage_of(dtype)]


@functools.cache
def storage_of(dtype: Any) -> int:
    try:
        return _STORAGES.index(str(dtype))
    except ValueError:
        raise Unsupported from None


def row_major(shape: Sequence[int]) -> Map:
    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * shape[d + 1]
    return tuple(strides)
