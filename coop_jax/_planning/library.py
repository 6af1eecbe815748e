"""The planner's native library (native/*.cc). Imports no JAX.

It comes with the package where it could be built. Without it, or if it is another
version's, the same is done in Python.
"""

import ctypes
import functools
import logging
import sys
from pathlib import Path
from typing import Any

logger = logging.getLogger("coop_jax")

_SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"
_INTERFACE = 7
LIBRARY = Path(__file__).parent.parent / f"libcoop_jax_planner{_SUFFIX}"


@functools.cache
def library() -> Any:
    """The native library, or None where there is none; says so once."""
    try:
        loaded = ctypes.CDLL(str(LIBRARY))
        interface = loaded.coop_jax_planner_interface()
    except (OSError, AttributeError) as error:
        return _without(str(error))
    if interface != _INTERFACE:
        return _without(
            f"{LIBRARY} has interface {interface}, not {_INTERFACE}. Install the "
            "package again in this environment"
        )
    loaded.coop_jax_search_open.restype = ctypes.c_void_p
    loaded.coop_jax_packed_size.restype = ctypes.c_int64
    return loaded


def _without(reason: str) -> None:
    logger.warning("planning in Python, which takes longer: %s", reason)
