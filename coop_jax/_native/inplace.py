"""The custom call that computes a chain into the bytes of an operand that dies.

The only module that knows XLA's foreign function interface. The native library comes
with the package where it could be built; a missing or incompatible one is reported once
and plans go without in-place calls.
"""

import ctypes
import functools
import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from .program_words import InplaceProgram

logger = logging.getLogger("coop_jax")

TARGET = "coop_jax_inplace"
_SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"
_PLATFORMS = {"cpu": ("cpu", "coop_jax_ffi"), "gpu": ("CUDA", "coop_jax_ffi_cuda")}


type InPlace = bool | Literal["auto"]
"""Whether plans have in-place calls; "auto": where nothing else reaches the budget."""


def is_available(platform: str) -> bool:
    """Whether in-place calls can be compiled for "cpu" or "gpu"; loads the library."""
    return why_unavailable(platform) is None


@functools.cache
def why_unavailable(platform: str) -> str | None:
    """Why there are no in-place calls on a platform, or None if there are.

    The first call registers the handler, or logs why that is not possible.
    """
    reason = _register(platform)
    if reason is not None:
        logger.warning("no in-place recomputation on %s: %s", platform, reason)
    return reason


def _register(platform: str) -> str | None:
    if platform not in _PLATFORMS:
        return "it is for CPU and CUDA"
    name, library = _PLATFORMS[platform]
    path = library_path(library)
    if not path.exists():
        return (
            f"{path} was not built. It needs a C++17 compiler when the package is "
            "installed" + (", and COOP_JAX_CUDA=ON" if platform == "gpu" else "")
        )
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        return f"{path} cannot be loaded: {error}"
    built, runtime = loaded.coop_jax_ffi_api_minor(), _runtime_minor()
    # XLA fails to start, for good, on a handler of a newer interface than its own.
    if runtime is None or built > runtime:
        return (
            f"{path} was built for FFI interface 0.{built} and jaxlib has "
            f"{'none that is known' if runtime is None else f'0.{runtime}'}. Install "
            "the package again in this environment"
        )
    jax.ffi.register_ffi_target(TARGET, _handlers(loaded, platform), platform=name)
    return None


def _handlers(loaded: Any, platform: str) -> Any:
    execute = jax.ffi.pycapsule(loaded.coop_jax_inplace)
    if platform == "cpu":
        return execute
    compile_kernel = jax.ffi.pycapsule(loaded.coop_jax_inplace_initialize)
    return {"initialize": compile_kernel, "execute": execute}


def library_path(library: str = "coop_jax_ffi") -> Path:
    """Where a native library of the package is, if it was built."""
    return Path(__file__).parent.with_name(f"lib{library}{_SUFFIX}")


def _runtime_minor() -> int | None:
    """The minor version of jaxlib's FFI interface, from the headers it comes with."""
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    if not header.exists():
        return None
    found = re.search(r"#define\s+XLA_FFI_API_MINOR\s+(\d+)", header.read_text())
    return int(found[1]) if found else None


def call(
    program: InplaceProgram, operands: Sequence[Any], overwritten: int | None = None
) -> Any:
    """Binds the custom call.

    Args:
      program: a chain.
      operands: values of `program.operands`.
      overwritten: operand whose bytes the result takes, one of
        `program.overwritable`; if it is read later on, XLA copies it first.

    Returns:
      The chain's result, of `program.shape` and `program.dtype`.
    """
    aliases = {} if overwritten is None else {overwritten: 0}
    arrays = [
        jax.random.key_data(value)
        if operand.shape is None
        else value.reshape(operand.shape)
        for value, operand in zip(operands, program.operands, strict=True)
    ]
    bound = jax.ffi.ffi_call(
        TARGET,
        jax.ShapeDtypeStruct(program.shape, program.dtype),
        vmap_method="sequential",
        input_output_aliases=aliases,
    )
    return bound(*arrays, program=np.array(program.words, np.int64))
