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
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import coop_jax

    port, processes, process, width, budget, where = sys.argv[1:]
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", int(processes), int(process))
    split = NamedSharding(Mesh(jax.devices()[:4], ("data",)), P("data"))
    if process == "2":
        sys.exit()  # has no part in the step

    def train_step(w, x):
        def loss_of(w):
            y = jax.lax.with_sharding_constraint(x, split) if where == "inside" else x
            for _ in range(8):
                y = jnp.tanh(y @ w)
            return jnp.mean(y**2)
        loss, grad = jax.value_and_grad(loss_of)(w)
        return w - float(width) * grad, loss

    w, x = np.eye(32, dtype="f"), np.ones((4096, 32), "f")
    if where == "outside":
        w = jax.device_put(w, NamedSharding(split.mesh, P()))
        x = jax.make_array_from_callback(x.shape, split, lambda at: x[at])
    step = coop_jax.remat(train_step, budget=float(budget), progress=False)
    plan = step.plan(w, x)
    print("fingerprint", plan.fingerprint, plan.measured.total <= plan.budget)
    w, loss = step(w, x)
    print("loss", float(loss))
    """
)


def run(tmp_path, widths, budgets=("0.8", "0.8"), processes=2, where="outside"):
    """(exit status, output) of the two processes that run the step.

    Args:
      tmp_path: for the script.
      widths: of each process, what makes its step another.
      budgets: of each process.
      processes: in all.
      where: the mesh is named inside of the step, or outside by its arguments.
    """
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    started = [
        subprocess.Popen(
            [sys.executable, str(script), port, str(processes), str(i), *rest, where],
            env=environment(devices=2),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i, rest in enumerate([*zip(widths, budgets, strict=True), ("", "")])
        if i < processes
    ]
    try:
        outputs = [process.communicate(timeout=120)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    return [(p.returncode, out) for p, out in zip(started, outputs, strict=True)][:2]


def lines(output, word):
    return [line for line in output.splitlines() if line.startswith(word)]


@pytest.mark.parametrize("processes", [2, 3])
def test_both_processes_end_with_the_same_plan(tmp_path, processes):
    """A third that is idle is not waited for."""
    results = run(tmp_path, ("0.1", "0.1"), processes=processes)
    (status, first), (other, second) = results
    assert (status, other) == (0, 0), first + second
    assert lines(first, "fingerprint") == lines(second, "fingerprint")
    assert lines(first, "fingerprint")[0].endswith("True")
    assert lines(first, "loss") == lines(second, "loss")


def test_different_steps_are_an_error_that_names_the_processes(tmp_path):
    for status, output in run(tmp_path, ("0.1", "0.2")):
        assert status != 0
        assert "the processes do not have the same plan" in output
        assert "Process 0: plan" in output
        assert "Process 1: plan" in output


def test_plans_are_compared_where_the_step_alone_names_the_mesh(tmp_path):
    for status, output in run(tmp_path, ("0.1", "0.1"), ("0.8", "0.6"), where="inside"):
        assert status != 0
        assert "the processes do not have the same plan" in output


def test_a_process_without_a_plan_does_not_leave_the_other_waiting(tmp_path):
    results = run(tmp_path, ("0.1", "0.1"), ("0.8", "0.01"))
    (status, first), (other, second) = results
    assert status != 0
    assert other != 0
    assert "Process 1: no plan" in first
    assert "BudgetError" in second


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
