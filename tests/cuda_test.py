"""CUDA kernels of programs: compiled for real devices here, run where there is one."""

import ctypes
import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import h200
from benchmarks.inplace import CASES, arguments, as_call
from coop_jax._measure import memory_use
from coop_jax._native import inplace as _inplace
from tests.native import (
    F32,
    F64,
    OPCODES,
    PRED,
    S32,
    STORAGES,
    TYPES,
    U32,
    check,
    cuda_source,
    elementwise,
    of_rows,
)

ARCHITECTURES = ("sm_80", "sm_90")


def nvrtc() -> ctypes.CDLL:
    """NVRTC: of a CUDA toolkit, or of the packages that JAX on a GPU brings."""
    folders = []
    if (spec := importlib.util.find_spec("nvidia")) is not None:
        folders = [Path(p) for p in spec.submodule_search_locations or ()]
    found = [p for f in folders for p in f.glob("*/lib/libnvrtc.so.1[23]")]
    for name in (*map(str, found), "libnvrtc.so.13", "libnvrtc.so.12"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    pytest.skip("no NVRTC: it comes with a CUDA toolkit and with nvidia-cuda-nvrtc")


def compile_kernel(source: str, architecture: str) -> bytes:
    """The machine code of a CUDA translation unit."""
    library, program = nvrtc(), ctypes.c_void_p()
    created = library.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), b"test.cu", 0, None, None
    )
    assert created == 0
    options = (ctypes.c_char_p * 2)(f"-arch={architecture}".encode(), b"-std=c++17")
    failed = library.nvrtcCompileProgram(program, 2, options)
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    assert not failed, f"{log.value.decode()}\n{source[source.index('extern') :]}"
    library.nvrtcGetCUBINSize(program, ctypes.byref(size))
    binary = ctypes.create_string_buffer(size.value)
    library.nvrtcGetCUBIN(program, binary)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return binary.raw


def every_operation() -> list[list[int]]:
    """For each type a program that has all the operations it takes."""
    return [_all_of(kind) for kind in (F32, F64, S32, U32, PRED)]


def _all_of(kind: int) -> list[int]:
    lines, values = [("load", kind, 0, 0, 0)], [0]
    for name in OPCODES:
        if name in ("random_bits", "convert", "bitcast", "select"):
            continue
        place = 3 if name == "integer_pow" else 0
        is_predicate = OPCODES["eq"] <= OPCODES[name] <= OPCODES["ge"]
        if not is_refused(kind, name, place):
            lines.append((name, kind, 0, place, 0))
            if is_predicate or name == "is_finite":
                lines.append(("select", kind, len(lines) - 1, 0, 0))
            values.append(len(lines) - 1)
    for there in ("convert", "bitcast"):
        for target in (F32, F64, S32, U32, PRED):
            if not is_refused(target, there, 0, kind):
                lines.append((there, target, 0, 0, 0))
                lines.append((there, kind, len(lines) - 1, 0, 0))
                values.append(len(lines) - 1)
    total = values[0]
    for value in values[1:]:
        lines.append(("add" if kind != PRED else "xor", kind, total, value, 0))
        total = len(lines) - 1
    return _over(lines, kind)


def is_refused(kind: int, name: str, place: int, operand: int | None = None) -> bool:
    """Whether a type lacks an operation, going by the decoder."""
    operand = kind if operand is None else operand
    line = (name, kind, 0, place, 0)
    error = check(_over([("load", operand, 0, 0, 0), line], operand))
    return "no such type" in error or "mixed" in error or "width" in error


def _over(lines: list, kind: int) -> list[int]:
    storage = STORAGES[TYPES.index(kind)]
    if any(name.startswith("reduce") for name, *_ in lines):
        return of_rows(lines, [storage] * 2, 4, 100)
    return elementwise(lines, [storage] * 2, (4, 100))


def test_the_programs_have_every_operation() -> None:
    instructions = [words[-5 * words[5] :] for words in every_operation()]
    seen = {code for each in instructions for code in each[::5]}
    # Random bits need a key: the chains below have them.
    assert seen == set(OPCODES.values()) - {OPCODES["random_bits"]}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_operation_compiles(architecture: str) -> None:
    for words in every_operation():
        assert check(words) == ""
        assert compile_kernel(cuda_source(words), architecture)[:4] == b"\x7fELF"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_storage_compiles(architecture: str) -> None:
    others = [storage for storage in STORAGES if storage != "float32"]
    for pair in [("float32", s) for s in others] + [(s, "float32") for s in others]:
        kinds = [TYPES[STORAGES.index(storage)] for storage in pair]
        lines = [("load", kinds[0], 0, 0, 0), ("convert", kinds[1], 0, 0, 0)]
        words = elementwise(lines, pair, (1001,))
        assert compile_kernel(cuda_source(words), architecture)


@pytest.mark.parametrize("name", CASES)
def test_every_chain_compiles(name: str) -> None:
    chain, dtype = CASES[name]
    call = as_call(chain, arguments(dtype, 30, 1000))
    assert call is not None
    assert compile_kernel(cuda_source(call.made.words), "sm_90")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["softmax", "layer norm", "dropout"])
def test_a_call_overwrites_its_operand_when_compiled_for_a_described_gpu(name) -> None:
    chain, dtype = CASES[name]
    try:
        x, *others = h200.on_device(arguments(dtype, 512, 1024))
    except ImportError as error:
        pytest.skip(f"XLA's compile-only GPU backend is not at hand: {error}")
    if not _inplace.library_path().exists():
        pytest.skip("the native library was not built: it needs a C++ compiler")
    # Nothing runs, so any handler will do.
    library = ctypes.CDLL(str(_inplace.library_path()))
    handler = jax.ffi.pycapsule(library.coop_jax_inplace)
    jax.ffi.register_ffi_target(_inplace.TARGET, handler, platform="CUDA")
    call = as_call(chain, arguments(dtype, 512, 1024))
    assert call is not None
    compiled = (
        jax.jit(lambda x, *others: jnp.sum(call(jnp.sin(x), *others)))
        .lower(x, *others)
        .compile(compiler_options=h200.COMPILER_OPTIONS)
    )
    assert "output_to_operand_aliasing={{}: (" in str(compiled.as_text())
    assert memory_use(compiled).temp < 1.1 * 512 * 1024 * 4


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_a_chain_computes_on_a_gpu_what_xla_does(name: str) -> None:
    try:
        device = jax.devices("gpu")[0]
    except RuntimeError:
        pytest.skip("no GPU at hand")
    reason = _inplace.why_unavailable("gpu")
    if reason is not None:
        pytest.skip(reason)
    chain, dtype = CASES[name]
    for columns in (3, 64, 1000, 4097):
        keys = jax.random.split(jax.random.key(columns), 3)
        x = jax.random.normal(keys[0], (33, columns), dtype)
        rest = [jax.random.normal(k, (columns,)) for k in keys[1:]]
        values = jax.device_put((x, *rest, jax.random.key(1)), device)
        call = as_call(chain, values)
        assert call is not None
        rough = 2e-5 if dtype == jnp.float32 else 2e-2
        np.testing.assert_allclose(
            np.asarray(jax.jit(call)(*values), np.float32),
            np.asarray(jax.jit(chain)(*values), np.float32),
            rtol=rough,
            atol=rough,
        )


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
