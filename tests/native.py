"""The native library through ctypes, without JAX, for the tests of programs."""

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).absolute().parent.parent
STORAGES = ("float32", "float64", "bfloat16", "float16", "int32", "uint32", "bool")
F32, F64, S32, U32, PRED = range(5)
TYPES = (F32, F64, F32, F32, S32, U32, PRED)
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


def library() -> ctypes.CDLL:
    """The library: the package's, or the one `.ci/run` built with sanitizers."""
    built = ROOT / "coop_jax" / "libcoop_jax_ffi.so"
    path = Path(os.environ.get("COOP_JAX_TEST_LIBRARY", built))
    if not path.exists():
        pytest.skip(f"{path} was not built: it needs a C++ compiler")
    loaded = ctypes.CDLL(str(path))
    loaded.coop_jax_cuda_source.restype = ctypes.c_int64
    return loaded


def check(words: Sequence[int]) -> str:
    """What is wrong with a program, or ""."""
    array = np.array(words, np.int64)
    error = ctypes.create_string_buffer(256)
    found = library().coop_jax_check(
        array.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(len(array)), error,
        ctypes.c_size_t(len(error)),
    )  # fmt: skip
    return error.value.decode() if found else ""


def run(words: Sequence[int], buffers: Sequence[np.ndarray]) -> str:
    """Runs a program on its operands and result; what is wrong, or ""."""
    array = np.array(words, np.int64)
    error = ctypes.create_string_buffer(256)
    pointers = (ctypes.c_void_p * len(buffers))(*[b.ctypes.data for b in buffers])
    sizes = (ctypes.c_size_t * len(buffers))(*[b.nbytes for b in buffers])
    found = library().coop_jax_run(
        array.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(len(array)), pointers,
        sizes, ctypes.c_size_t(len(buffers)), error, ctypes.c_size_t(len(error)),
    )  # fmt: skip
    return error.value.decode() if found else ""


def cuda_source(words: Sequence[int]) -> str:
    """The CUDA kernel of a program."""
    array = np.array(words, np.int64)
    text = ctypes.create_string_buffer(1 << 20)
    size = library().coop_jax_cuda_source(
        array.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(len(array)), text,
        ctypes.c_size_t(len(text)),
    )  # fmt: skip
    assert 0 < size < len(text)
    return text.value.decode()


def elementwise(
    instructions: Sequence[tuple[str, int, int, int, int]],
    storages: Sequence[str],
    shape: tuple[int, ...],
) -> list[int]:
    """A program over arrays of one shape.

    Args:
      instructions: (opcode, type, a, b, c).
      storages: of the operands and the result.
    """
    size = int(np.prod(shape))
    words = [1, 1, 1, 1, len(storages) - 1, len(instructions), size, 1]
    for storage in storages:
        words += [STORAGES.index(storage), 0, len(shape), *shape]
    for name, *rest in instructions:
        words += [OPCODES[name], *rest]
    return words


def of_rows(
    instructions: Sequence[tuple[str, int, int, int, int]],
    storages: Sequence[str],
    rows: int,
    columns: int,
) -> list[int]:
    """As `elementwise`, over a matrix, with rows to reduce over."""
    words = [1, 2, 1, 1, len(storages) - 1, len(instructions), rows, columns]
    words += [columns, 1]
    for storage in storages:
        words += [STORAGES.index(storage), 0, 2, rows, columns]
    for name, *rest in instructions:
        words += [OPCODES[name], *rest]
    return words
