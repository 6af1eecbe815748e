"""An H200 that is only described: XLA compiles for it on any machine, runs nothing.

The GPU compiler works without a GPU, and `memory_analysis()` of what it compiles is
what a card gets, but for autotuning. There is no `cost_analysis()`.

    lowered = jax.jit(step).lower(*on_device(abstract_args))
    lowered.compile(compiler_options=COMPILER_OPTIONS).memory_analysis()
"""

import functools
import importlib.util
import os
from typing import Any

import jax
from jax.experimental import topologies

_TARGET = """
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  cuda_compute_capability {{ major: 9 feature_extension: ACCELERATED_FEATURES }}
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  memory_bandwidth: 4800000000000
  registers_per_block_limit: 65536
  l2_cache_size: 52428800
  threads_per_core_limit: 2048
  device_memory_size: {:d}
}}
platform_name: "CUDA"
device_description_str: "H200, described"
"""

_MEMORY = 151397597184

COMPILER_OPTIONS = {
    "xla_gpu_enable_triton_gemm": False,
    "xla_backend_optimization_level": 0,
    "xla_gpu_force_compilation_parallelism": os.cpu_count() or 1,
}
"""Matrix products are library calls, as autotuning chooses for most, and their
workspace is counted. No time goes into good machine code: that comes after the buffers
are laid out, and nothing runs it."""

_PACKAGES = {
    "jax_plugins.xla_cuda12": "jax-cuda12-pjrt",
    "jax_cuda12_plugin": "jax-cuda12-plugin",
    "nvidia.cuda_nvcc": "nvidia-cuda-nvcc-cu12",
}


@functools.cache
def described_device(memory: int = _MEMORY) -> jax.sharding.SingleDeviceSharding:
    """The sharding of an array on the one described card.

    Args:
      memory: bytes the card has.

    Raises:
      ImportError: the compiler for it is not installed.
    """
    _require_packages()
    topology = topologies.get_topology_desc(
        platform="cuda", topology="1x1x1", target_config=_TARGET.format(memory)
    )
    return jax.sharding.SingleDeviceSharding(topology.devices[0])


def on_device(tree: Any, memory: int = _MEMORY) -> Any:
    """The arrays or `ShapeDtypeStruct`s of `tree` as structs on the described card."""
    sharding = described_device(memory)
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        tree,
    )


def memory_for_remat(temp: int, fixed: int) -> int:
    """Bytes of a card on which XLA's own rematerialization aims at `temp` bytes.

    XLA:GPU takes 80 % of the card, less arguments and outputs (donated ones once), and
    95 % of that (`xla_gpu_memory_limit_slop_factor`).
    """
    return int((temp / 0.95 + fixed) / 0.8)


def _require_packages() -> None:
    missing = [name for module, name in _PACKAGES.items() if not _is_there(module)]
    if missing:
        raise ImportError(
            f"Compiling for a described H200 needs {', '.join(missing)}. Install with "
            f"`pip install --no-deps jax-cuda12-plugin=={jax.__version__} "
            f"jax-cuda12-pjrt=={jax.__version__} nvidia-cuda-nvcc-cu12` and run with "
            "`JAX_PLATFORMS=cpu`."
        )


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
