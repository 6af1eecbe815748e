"""How long the simulator takes for many operator calls, and how much memory.

    python -m benchmarks.long_trace

A multilayer perceptron is recorded for more and more training steps, up to 100,000
calls, and simulated at shares of the bytes that it needs. Seconds are the processor's.
"""

import argparse
import itertools
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

import coop_jax
from coop_jax._planning.eviction import POLICIES
from coop_jax._planning.online import run_online
from coop_jax._planning.stream import read
from coop_jax._planning.validate import validate
from coop_jax._planning.workload import workload

_LAYERS = 200
_HEAD = """\
| policy | calls | share | overhead | read s | simulated s | validated s | MB |
|---|--:|--:|--:|--:|--:|--:|--:|"""


def perceptron(params: list, x: jax.Array) -> tuple[list, jax.Array]:
    """A training step; layers of three widths, so that sizes do not all nest."""

    def loss_of(params: list) -> jax.Array:
        hidden = x
        for weight in params:
            hidden = jnp.tanh(hidden @ weight)
        return jnp.sum(hidden**2)

    loss, gradients = jax.value_and_grad(loss_of)(params)
    return [w - 0.1 * g for w, g in zip(params, gradients, strict=True)], loss


def arguments() -> tuple[list, jax.ShapeDtypeStruct]:
    widths = [64 * (1 + i % 3) for i in range(_LAYERS + 1)]
    shapes = itertools.pairwise(widths)
    params = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return params, jax.ShapeDtypeStruct((4096, widths[0]), jnp.float32)


def measure(steps: int, shares: Sequence[float], names: Sequence[str]) -> None:
    """Prints the rows of one length."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        coop_jax.record(
            perceptron, *arguments(), path=path, steps=steps, donate_argnums=0
        )
        reading, work = _timed(lambda: workload(read(path)))
    problem = work.problem
    once = problem.cost(problem.program_order)
    for policy in (policy for policy in POLICIES if policy.name in names):
        for share in shares:
            budget = int(share * work.needed)
            running, run = _timed(
                lambda policy=policy, budget=budget: run_online(
                    problem, budget, policy, lifetimes=work.lifetimes
                )
            )
            checking, _ = _timed(
                lambda run=run, budget=budget: (
                    run.is_feasible
                    and validate(problem, run.schedule, budget, run.offsets)
                )
            )
            overhead = f"{run.cost / once:.3f}" if run.is_feasible else "-"
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"| {policy.name} | {len(problem.ops):,} | {share} | {overhead} | "
                f"{reading:.1f} | {running:.1f} | {checking:.1f} | {peak:,.0f} |",
                flush=True,
            )


def _timed[T](function: Callable[[], T]) -> tuple[float, T]:
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


def main(given: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.long_trace",
        description=(__doc__ or "").split("\n")[0],
    )
    option = parser.add_argument
    names = [policy.name for policy in POLICIES]
    option("--steps", type=int, nargs="+", default=[21, 42, 84])
    option("--share", type=float, nargs="+", default=[0.6, 0.4])
    option("--policy", nargs="+", choices=names, default=["coop"])
    chosen = parser.parse_args(given)
    print(_HEAD)
    for steps in chosen.steps:
        measure(steps, chosen.share, chosen.policy)


if __name__ == "__main__":
    main()
