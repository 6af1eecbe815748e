"""Bytes and throughput of chains, by in-place calls and by XLA alone.

    JAX_PLATFORMS=cpu python -m benchmarks.inplace
    JAX_PLATFORMS=cpu python -m benchmarks.inplace --backend h200
    python -m benchmarks.inplace --mebibytes 256        # on a GPU

"temp" is in units of the chain's operand, in a step that makes the operand and reads
the chain's result; `-` is a chain that is left to XLA. "speed" is the chain alone: the
median over interleaved rounds of XLA's time over the call's, both with a donated
operand; "processor" is the same of the processor time of all threads, which other
programs on the machine disturb less.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks import h200
from coop_jax._fitting.compile import FlatStep, flat_step
from coop_jax._fitting.emit import compute_in_place, emit
from coop_jax._measure import memory_use
from coop_jax._native import inplace as _inplace
from coop_jax._native.program_words import InplaceProgram
from coop_jax._native.translate import translate
from coop_jax._program.flatten import flatten
from coop_jax._program.profile import Profile, profile
from coop_jax._program.scopes import scope
from coop_jax._program.units import Graph

ROWS, COLUMNS = 2048, 1024
_ROUNDS = 15


def softmax(x, scale, bias, key):
    return jax.nn.softmax(x)


def causal_softmax(x, scale, bias, key):
    mask = jnp.tril(jnp.ones(x.shape[-2:], bool))
    return jax.nn.softmax(jnp.where(mask, x * 0.125, -1e9))


def softmax_gradient(x, scale, bias, key):
    g = jnp.abs(scale) + x
    return x * (g - jnp.sum(x * g, -1, keepdims=True))


def layer_norm(x, scale, bias, key):
    centred = x - jnp.mean(x, -1, keepdims=True)
    variance = jnp.mean(centred**2, -1, keepdims=True)
    return centred * lax.rsqrt(variance + 1e-5) * scale + bias


def rms_norm(x, scale, bias, key):
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * scale


def batch_norm_saved(x, scale, bias, key):
    return (x - bias) * lax.rsqrt(jnp.abs(scale) + 1e-5) * scale + bias


def dropout(x, scale, bias, key):
    keep = jax.random.bernoulli(key, 0.9, x.shape)
    return jnp.where(keep, x / jnp.asarray(0.9, x.dtype), 0)


def gelu(x, scale, bias, key):
    return jax.nn.gelu(x)


def bias_gelu_erf(x, scale, bias, key):
    return jax.nn.gelu(x + bias, approximate=False)


def casts(x, scale, bias, key):
    wide = jnp.tanh(x.astype(jnp.float32)).astype(x.dtype)
    return jax.nn.silu(2 * wide.astype(jnp.float32)).astype(x.dtype)


def cast_layer_norm(x, scale, bias, key):
    return layer_norm(x.astype(jnp.float32), scale, bias, key).astype(x.dtype)


def cast_softmax(x, scale, bias, key):
    return jax.nn.softmax(x.astype(jnp.float32)).astype(x.dtype)


CASES: dict[str, tuple[Callable, Any]] = {
    "softmax": (softmax, jnp.float32),
    "causal softmax": (causal_softmax, jnp.float32),
    "softmax gradient": (softmax_gradient, jnp.float32),
    "layer norm": (layer_norm, jnp.float32),
    "RMS norm": (rms_norm, jnp.float32),
    "batch norm, saved statistics": (batch_norm_saved, jnp.float32),
    "dropout": (dropout, jnp.float32),
    "dropout, bfloat16": (dropout, jnp.bfloat16),
    "gelu": (gelu, jnp.float32),
    "bias, gelu (erf)": (bias_gelu_erf, jnp.float32),
    "cast chain, bfloat16": (casts, jnp.bfloat16),
    "cast, layer norm, cast": (cast_layer_norm, jnp.bfloat16),
    "cast, softmax, cast": (cast_softmax, jnp.bfloat16),
}


def arguments(dtype: Any, rows: int, columns: int) -> tuple:
    """Types of a chain's operand, a scale, a bias and a random key."""
    vector = jax.ShapeDtypeStruct((columns,), jnp.float32)
    key = jax.eval_shape(jax.random.key, 0)
    return jax.ShapeDtypeStruct((rows, columns), dtype), vector, vector, key


def surrounded(chain: Callable) -> Callable:
    """A step that makes the chain's operand and reads the chain's result once."""

    def step(a, scale, bias, key):
        # Programs have no sine, so the operand is not made inside of the chain.
        x = lax.optimization_barrier(jnp.sin(a))
        y = lax.optimization_barrier(chain(x, scale, bias, key))
        return jnp.sum(jnp.abs(y), -1)

    return step


def temporaries(chain: Callable, dtype: Any, on: Callable = lambda tree: tree, **jit):
    """Bytes XLA takes for `surrounded(chain)` by itself and with in-place calls.

    Returns:
      Both, the second None if the chain is left to XLA.
    """
    args = on(arguments(dtype, ROWS, COLUMNS))
    traced = jax.jit(surrounded(chain)).trace(*args)
    step = flat_step(traced, jax.tree.leaves(args))
    step = FlatStep(step.traced, step.program, step.leaves, step.platform, jit)
    written = lambda *values: step.program.evaluate(values, scope)  # noqa: E731
    compiled, buffers = step.compile_with_buffers(written)
    plain = memory_use(compiled)
    found = profile(step.program, buffers, plain.fixed, step.platform, inplace=True)
    if not found.calls:
        return plain.temp, None
    positions = tuple((op,) for op in range(len(found.problem.ops)))
    return plain.temp, memory_use(step.compile(emit(found, positions))).temp


def as_call(chain: Callable, args: Sequence[Any]) -> "ChainCall | None":
    """The chain as one in-place call that overwrites its first operand."""
    program = flatten(jax.jit(chain).trace(*args).jaxpr, [False] * len(args))
    graph = Graph(program)
    (result,) = program.outputs
    root = graph.producer[graph.resolve(result)]  # pyright: ignore[reportArgumentType]
    made = translate(graph, root, range(len(program.equations)))
    if made is None:
        return None
    return ChainCall(program, graph, made)


class ChainCall:
    """A chain as one call, to be traced like a function."""

    def __init__(self, program: Any, graph: Graph, made: InplaceProgram) -> None:
        self.made = made
        self.profile = Profile(program, None, (), (), graph.alias_of)  # pyright: ignore[reportArgumentType]

    def __call__(self, *values: Any) -> Any:
        program = self.profile.program
        local = dict(zip(program.arguments, values, strict=True))
        overwritten = next(iter(self.made.overwritable), None)
        return compute_in_place(
            self.profile, self.made, local | dict(program.constants), overwritten
        )


def speed(chain: Callable, dtype: Any, mebibytes: int) -> tuple[float, float] | None:
    """XLA's time over the call's, by the clock and of the processor."""
    rows = mebibytes * 2**20 // (COLUMNS * jnp.dtype(dtype).itemsize)
    x, vector, _, _ = arguments(dtype, rows, COLUMNS)
    key = jax.random.key(0)
    values = [
        jax.random.normal(key, x.shape, dtype),
        jax.random.normal(key, vector.shape),
        jax.random.normal(key, vector.shape),
        key,
    ]
    call = as_call(chain, values)
    if call is None:
        return None
    programs = [
        jax.jit(f, donate_argnums=0).lower(*values).compile() for f in (chain, call)
    ]
    ratios = []
    for _ in range(_ROUNDS):
        xla, mine = (_seconds(program, values) for program in programs)
        ratios.append((xla[0] / mine[0], xla[1] / mine[1]))
    by_clock, of_processor = zip(*ratios, strict=True)
    return statistics.median(by_clock), statistics.median(of_processor)


def _seconds(program: Any, values: list[Any]) -> tuple[float, float]:
    x = jax.block_until_ready(values[0] + 0)
    start, work = time.perf_counter(), time.process_time()
    result = jax.block_until_ready(program(x, *values[1:]))
    seconds = time.perf_counter() - start, time.process_time() - work
    del result  # to give its memory back takes as long as a short chain
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("device", "h200"), default="device")
    parser.add_argument("--mebibytes", type=int, default=64)
    options = parser.parse_args()
    platform = "gpu" if options.backend == "h200" else jax.default_backend()
    reason = _inplace.why_unavailable(platform)
    if reason is not None:
        raise SystemExit(reason)
    described = options.backend == "h200"
    on = h200.on_device if described else lambda tree: tree
    jit = {"compiler_options": h200.COMPILER_OPTIONS} if described else {}
    print("| chain | XLA alone, temp | in-place call, temp | speed | processor |")
    print("|---|--:|--:|--:|--:|")
    for name, (chain, dtype) in CASES.items():
        unit = ROWS * COLUMNS * jnp.dtype(dtype).itemsize
        plain, called = temporaries(chain, dtype, on, **jit)
        ratios = None if described else speed(chain, dtype, options.mebibytes)
        by_clock, of_processor = ratios or (None, None)
        print(
            f"| {name} | {plain / unit:.2f} | {_text(called and called / unit)} | "
            f"{_text(by_clock)} | {_text(of_processor)} |",
            flush=True,
        )


def _text(number: float | None) -> str:
    return "-" if number is None else f"{number:.2f}"


if __name__ == "__main__":
    main()
