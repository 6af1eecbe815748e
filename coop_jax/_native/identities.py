"""Cheaper instructions for values that a program computes the long way.

One identity so far: `0.5 * (1 + tanh(z))`, the weight in a gelu, is `logistic(2z)`, for
fewer operations, and without the cancellation where tanh comes close to -1.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from .program_words import F32, F64, OPCODES

type Instruction = tuple[int, int, Any, Any, Any]
"""Opcode, type, and what it reads: numbers of earlier instructions, or words."""

_UNARY = OPCODES["convert"]
_BINARY = OPCODES["add"]
_SELECT = OPCODES["select"]


def simplified(instructions: Sequence[Instruction]) -> list[Instruction]:
    """As many instructions with the same result, of which fewer are needed for it."""
    found = list(instructions)
    uses = Counter(read for each in instructions for read in _reads(each))
    for k, each in enumerate(instructions):
        sum_ = _other_operand(instructions, each, "mul", 0.5)
        if sum_ is None or uses[sum_] > 1:
            continue
        tanh = _other_operand(instructions, instructions[sum_], "add", 1.0)
        if tanh is None or uses[tanh] > 1:
            continue
        opcode, kind, z, *_ = instructions[tanh]
        if opcode == OPCODES["tanh"]:
            found[tanh] = (OPCODES["literal"], kind, _word(2.0, kind), 0, 0)
            found[sum_] = (OPCODES["mul"], kind, z, tanh, 0)
            found[k] = (OPCODES["logistic"], kind, sum_, 0, 0)
    return found


def _reads(instruction: Instruction) -> tuple[int, ...]:
    opcode, _, *reads = instruction
    if opcode < _UNARY:
        return ()
    if opcode == _SELECT:
        return tuple(reads)
    return tuple(reads[:2] if _BINARY <= opcode < _SELECT else reads[:1])


def _other_operand(
    instructions: Sequence[Instruction], instruction: Instruction, name: str, x: float
) -> int | None:
    """What an instruction of this name combines with the number `x`, if it is one."""
    opcode, kind, a, b, _ = instruction
    if opcode != OPCODES[name] or kind not in (F32, F64):
        return None
    number = (OPCODES["literal"], kind, _word(x, kind))
    for one, other in ((a, b), (b, a)):
        if instructions[one][:3] == number:
            return other
    return None


def _word(x: float, kind: int) -> int:
    """The bits of a literal."""
    return int(
        np.float64(x).view(np.int64) if kind == F64 else np.float32(x).view(np.uint32)
    )
