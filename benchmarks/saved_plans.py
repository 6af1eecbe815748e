"""What a saved plan saves: planning in one process, then running again in fresh ones.

Each line is one process of its own, which builds the model, makes the planned program
and reports the wall time from the step to the compiled program, and the bytes. The
first plans; the second runs by the saved plan; the third does so with JAX's compilation
cache filled, which holds the planned program itself. Seconds of CPU are those of all
threads, and the fairer ones on a busy machine.

    python -m benchmarks.saved_plans gpt2 --budget 0.4
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time


def plan_once(model: str, budget: float, path: str) -> None:
    """Makes or loads the plan at `path`, and prints seconds and bytes as JSON."""
    import coop_jax
    from benchmarks.models import build

    built = build(model)
    args = built.abstract_args()
    donated = built.donate_argnums
    # Importing and building the model is not planning; tracing the step is.
    start, cpu = time.perf_counter(), time.process_time()
    if os.path.exists(path):
        loaded = coop_jax.load_plan(path)
        step = coop_jax.remat(built.step, plan=loaded, donate_argnums=donated)
    else:
        step = coop_jax.remat(built.step, budget, donate_argnums=donated)
    plan = step.plan(*args)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    measured = coop_jax.measure(step, *args)
    if not os.path.exists(path):
        plan.save(path)
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
    parser.add_argument("--plan", help="(internal) plan file of one process")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.plan:
        plan_once(options.model, options.budget, options.plan)
        return
    print(f"{options.model} at {options.budget:.0%}: seconds from step to program")
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.json")
            compiled = os.path.join(folder, "compiled")
            first = run(options.model, options.budget, path, None)
            again = run(options.model, options.budget, path, compiled)
            cached = run(options.model, options.budget, path, compiled)
        assert first["bytes"] == again["bytes"] == cached["bytes"]
        print(f"{first['bytes']:,} bytes each")
        for clock in ("wall", "cpu"):
            whole = first[clock]
            print(
                f"  {clock:<4}  planned {whole:.2f}  by saved plan {again[clock]:.2f} "
                f"({again[clock] / whole:.1%})  with compilation cache "
                f"{cached[clock]:.2f} ({cached[clock] / whole:.1%})",
                flush=True,
            )


if __name__ == "__main__":
    main()
