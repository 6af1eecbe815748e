"""What a saved plan saves: planning in one process, then running again in fresh ones.

Each column is one process of its own, which builds the model, makes the program and
reports the time from the step to the compiled program, and the bytes:

- planned: plans, with no cache;
- saved: runs by the saved plan, compiling it;
- cached: the same with JAX's compilation cache filled, which holds that program;
- as written: `jax.jit(step)` without this package, its program in the cache too; any
  jitted step takes this long to start.

Imports and building the model are left out of all four. What the plan itself costs,
"added", is the third less the fourth. Seconds of CPU are those of all threads, and the
fairer ones on a busy machine.

    python -m benchmarks.saved_plans gpt2 --budget 0.4
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any


def start_once(model: str, budget: float, path: str) -> None:
    """Starts the step by the plan at `path`, which is made if it is not there.

    Prints seconds and bytes as JSON. Without a path, the step is started as written.
    """
    import jax

    import coop_jax
    from benchmarks.models import build

    built = build(model)
    args = built.abstract_args()
    donated = built.donate_argnums
    # Importing and building the model is not planning; tracing the step is.
    start, cpu = time.perf_counter(), time.process_time()
    step: Any
    if not path:
        step = jax.jit(built.step, donate_argnums=donated)
        step.lower(*args).compile()
    elif os.path.exists(path):
        loaded = coop_jax.load_plan(path)
        step = coop_jax.remat(built.step, plan=loaded, donate_argnums=donated)
        step.plan(*args)
    else:
        step = coop_jax.remat(built.step, budget, donate_argnums=donated)
        step.plan(*args)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    measured = coop_jax.measure(step, *args)
    if path and not os.path.exists(path):
        step.plan(*args).save(path)
    print(json.dumps({"wall": seconds, "cpu": cpu, "bytes": measured.total}))


def run(model: str, budget: float, path: str, compiled: str | None) -> dict:
    environment = dict(os.environ)
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    if compiled is not None:
        environment |= {
            "JAX_COMPILATION_CACHE_DIR": compiled,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
    command = [sys.executable, "-m", "benchmarks.saved_plans", model,
               "--budget", str(budget), "--plan", path]  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--budget", type=float, default=0.4)
    parser.add_argument("--plan", help='(internal) plan file of one process, or ""')
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.plan is not None:
        start_once(options.model, options.budget, options.plan)
        return
    print(f"{options.model} at {options.budget:.0%}: seconds from step to program")
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.json")
            compiled = os.path.join(folder, "compiled")
            start = functools.partial(run, options.model, options.budget)
            planned = start(path, None)
            saved = start(path, compiled)
            cached = start(path, compiled)
            start("", compiled)
            written = start("", compiled)
        assert planned["bytes"] == saved["bytes"] == cached["bytes"]
        print(f"{planned['bytes']:,} bytes planned, {written['bytes']:,} as written")
        for clock in ("wall", "cpu"):
            whole = planned[clock]
            seconds = {
                "saved": saved[clock],
                "cached": cached[clock],
                "as written": written[clock],
                "added": cached[clock] - written[clock],
            }
            print(
                f"  {clock:<4}  planned {whole:.2f}",
                *(f"{k} {v:.2f} ({v / whole:.1%})" for k, v in seconds.items()),
                sep="  ",
                flush=True,
            )


if __name__ == "__main__":
    main()
