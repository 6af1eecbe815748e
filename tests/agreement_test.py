"""Two processes that run one step together, and what happens when they differ."""

import socket
import subprocess
import sys
import textwrap

import pytest

from tests.eight_devices import environment

WORKER = textwrap.dedent(
    """
    import sys
    import jax, jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
    import coop_jax

    port, process, width, budget = sys.argv[1:]
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", 2, int(process))
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))

    def train_step(w, x):
        def loss_of(w):
            y = x
            for _ in range(8):
                y = jnp.tanh(y @ w)
            return jnp.mean(y**2)
        loss, grad = jax.value_and_grad(loss_of)(w)
        return w - float(width) * grad, loss

    w = jax.device_put(jnp.eye(32), NamedSharding(mesh, P()))
    x = jax.make_array_from_callback(
        (4096, 32), NamedSharding(mesh, P("data")), lambda at: jnp.ones((1024, 32))
    )
    step = coop_jax.remat(train_step, budget=float(budget), progress=False)
    plan = step.plan(w, x)
    print("fingerprint", plan.fingerprint, plan.measured.total <= plan.budget)
    w, loss = step(w, x)
    print("loss", float(loss))
    """
)


def run_two(tmp_path, widths, budgets=("0.8", "0.8")):
    """(exit status, output) of both processes."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    started = [
        subprocess.Popen(
            [sys.executable, str(script), port, str(i), widths[i], budgets[i]],
            env=environment(devices=2),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=120)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    return [(p.returncode, out) for p, out in zip(started, outputs, strict=True)]


def lines(output, word):
    return [line for line in output.splitlines() if line.startswith(word)]


def test_both_processes_end_with_the_same_plan(tmp_path):
    (status, first), (other, second) = run_two(tmp_path, ("0.1", "0.1"))
    assert (status, other) == (0, 0), first + second
    assert lines(first, "fingerprint") == lines(second, "fingerprint")
    assert lines(first, "fingerprint")[0].endswith("True")
    assert lines(first, "loss") == lines(second, "loss")


def test_different_steps_are_an_error_that_names_the_processes(tmp_path):
    for status, output in run_two(tmp_path, ("0.1", "0.2")):
        assert status != 0
        assert "the processes do not have the same plan" in output
        assert "Process 0: plan" in output
        assert "Process 1: plan" in output


def test_a_process_without_a_plan_does_not_leave_the_other_waiting(tmp_path):
    results = run_two(tmp_path, ("0.1", "0.1"), ("0.8", "0.01"))
    (status, first), (other, second) = results
    assert status != 0
    assert other != 0
    assert "Process 1: no plan" in first
    assert "BudgetError" in second


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
