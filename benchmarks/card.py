"""A step that a GPU has no room for, as written and under `coop_jax.remat`.

    python -m benchmarks.card --model gpt2 --share 0.6     # on a GPU

JAX may use that share of what XLA says the step takes as written, and no more. The step
as written runs out of memory. `coop_jax.remat(step)`, with the budget it takes by
itself, plans and runs; and once more in a process that only loads the plan, so that
the most its allocator ever handed out is what the steps took. Each runs in a process of
its own.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

import jax

import coop_jax
from coop_jax._measure import memory_use

from .models import MODELS, TrainingStep, build

_STEPS = 3
_MB = 1e6


def require_gpu() -> None:
    """Exits with what is missing where JAX does not run on a GPU."""
    backend = jax.default_backend()
    if backend != "gpu":
        raise SystemExit(
            f"This runs on a GPU, and JAX is on {backend} here. Install JAX for it "
            "(pip install 'jax[cuda12]') and leave JAX_PLATFORMS unset; "
            "`python -m benchmarks.frontier --backend h200` needs no GPU."
        )


def _bytes(model: TrainingStep) -> None:
    """Prints what the step takes as written, and what the card has."""
    require_gpu()
    jitted = jax.jit(model.step, donate_argnums=model.donate_argnums)
    total = memory_use(jitted.lower(*model.abstract_args()).compile()).total
    limit = (jax.devices()[0].memory_stats() or {})["bytes_limit"]
    fraction = float(os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"])
    print(total, int(limit / fraction))


def _as_written(model: TrainingStep) -> None:
    try:
        _run(model, jax.jit(model.step, donate_argnums=model.donate_argnums))
    except jax.errors.JaxRuntimeError as error:
        print("as written:", str(error).partition("\n")[0])


def _planned(model: TrainingStep) -> None:
    start = time.perf_counter()
    planned = coop_jax.remat(model.step, donate_argnums=model.donate_argnums)
    plan = planned.plan(*model.abstract_args())
    seconds = time.perf_counter() - start
    assert plan.budget is not None
    print(
        f"planned for {plan.budget / _MB:,.0f} MB: "
        f"{plan.measured.total / _MB:,.0f} MB by XLA, {plan.flops:.3f} of the flops, "
        f"in {seconds:.0f} s"
    )
    _run(model, planned)


def _run(model: TrainingStep, step: Callable) -> None:
    state, batch = model.make_args()
    losses = []
    for _ in range(_STEPS):
        state, metrics = step(state, batch)
        losses.append(f"{float(metrics['loss']):.6f}")
    print(f"losses {', '.join(losses)}; ", end="")
    stats = jax.devices()[0].memory_stats() or {}
    print(
        f"at most {stats['peak_bytes_in_use'] / _MB:,.0f} MB in use "
        f"of {stats['bytes_limit'] / _MB:,.0f}"
    )


_PARTS = {"bytes": _bytes, "written": _as_written, "planned": _planned}


def _child(model: str, part: str, fraction: float, cache: str) -> str:
    arguments = ["--model", model, "--only", part]
    environment = os.environ | {
        "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{fraction:.6f}",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "true",
        "JAX_COMPILATION_CACHE_DIR": cache,
    }
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.card", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{part} failed:\n{done.stdout}")
    return done.stdout.strip()


def _share(text: str) -> float:
    if not 0 < float(text) < 1:
        raise argparse.ArgumentTypeError("a share is above 0 and below 1")
    return float(text)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints what became of the step as written and of the planned one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", choices=MODELS, default="gpt2")
    parser.add_argument("--share", type=_share, default=0.6)
    parser.add_argument("--only", choices=_PARTS, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.only:
        _PARTS[chosen.only](build(chosen.model, "paper"))
        return
    with tempfile.TemporaryDirectory() as cache:
        written, card = map(int, _child(chosen.model, "bytes", 0.75, cache).split())
        print(f"as written {written / _MB:,.0f} MB by XLA", flush=True)
        fraction = chosen.share * written / card
        for part in ("written", "planned", "planned"):
            print(_child(chosen.model, part, fraction, cache), flush=True)


if __name__ == "__main__":
    main()
