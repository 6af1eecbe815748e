"""Recording: a small step by eye, then what holds for a real one."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import coop_jax
from benchmarks import long_trace
from benchmarks.models import build
from coop_jax._fitting.compile import flat_step
from coop_jax._planning.eviction import POLICIES
from coop_jax._planning.simulation import simulate
from coop_jax._planning.stream import Call, Constant, Event, Release, read
from coop_jax._planning.workload import workload
from coop_jax._program import cost
from coop_jax._program.profile import profile
from coop_jax._program.scopes import scope

RATES = (1e12, 1e12, 1e-6)
W = jax.ShapeDtypeStruct((16, 16), jnp.float32)
X = jax.ShapeDtypeStruct((64, 16), jnp.float32)


def update(w, x):
    loss, gradient = jax.value_and_grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)
    return w - 0.1 * gradient, loss


def recorded(path: Path, *args: Any, **options: Any) -> list[Event]:
    coop_jax.record(*args, path=path / "trace.jsonl", rates=RATES, **options)
    return [event for _, event in read(path / "trace.jsonl")]


def calls(events: list[Event]) -> list[Call]:
    return [event for event in events if isinstance(event, Call)]


def test_a_step_by_eye(tmp_path: Path) -> None:
    events = recorded(tmp_path, update, W, X, donate_argnums=0)
    assert events[:2] == [Constant("[0][0]", 1024), Constant("[0][1]", 4096)]
    product, tanh, loss, inner, gradient, new = calls(events)
    assert [call.op for call in (product, tanh, loss)] == [
        "dot_general",
        "tanh",
        "reduce_sum",
    ]
    assert product.inputs == ("[0][0]", "[0][1]")
    assert list(product.outputs.values()) == [4096]
    # 2 * 64 * 16 * 16 operations and 9,216 bytes at 1e12 a second, and a launch.
    assert product.cost == pytest.approx(32768e-12 + 9216e-12 + 1e-6)
    # The last to read the product is tanh; the last to read tanh is its gradient.
    assert tanh.mutates == tuple(product.outputs) and tanh.outputs == {}
    assert inner.mutates == tanh.mutates and inner.outputs == {}
    # The gradient of a parameter is not evicted; the update is in place.
    assert gradient.op == "dot_general" and gradient.kept == tuple(gradient.outputs)
    assert new.mutates == ("[0][0]",) and new.outputs == {}


def test_costs_are_those_of_the_profile(tmp_path: Path) -> None:
    def step(w, x):
        return jnp.tanh(x @ w) @ w.T

    traced = jax.jit(step).trace(W, X)
    flat = flat_step(traced, [W, X])
    _, buffers = flat.compile_with_buffers(
        lambda *values: flat.program.evaluate(values, scope)
    )
    ops = profile(flat.program, buffers, 0, "cpu").problem.ops
    cpu = cost.RATES["cpu"]
    rates = cpu.flops, cpu.bytes, cpu.launch
    path = tmp_path / "trace.jsonl"
    coop_jax.record(step, W, X, path=path, rates=rates)
    found = calls([event for _, event in read(path)])
    assert [(c.op, c.cost) for c in found] == [(op.name, op.cost) for op in ops]


def test_an_operator_touches_of_an_array_what_it_takes_of_it(tmp_path: Path) -> None:
    def step(table, x):
        gate, *_ = jnp.split(x, 4, axis=1)
        rows = jax.lax.dynamic_slice(table, (3, 0), (4, 8))
        turned = jnp.swapaxes(x, 0, 1)[:8]
        return jnp.tanh(gate), rows, jnp.exp(turned), jnp.sin(x) + x[:1]

    table, x = jnp.ones((1000, 8)), jnp.ones((16, 64))
    path = tmp_path / "trace.jsonl"
    # At one byte a second, and arithmetic for nothing.
    coop_jax.record(step, table, x, path=path, rates=(1e30, 1.0, 0.0))
    costs = {c.op: c.cost for c in calls([event for _, event in read(path)])}
    assert costs == pytest.approx(
        {
            "tanh": 2 * 16 * 16 * 4,
            "dynamic_slice": 2 * 4 * 8 * 4,
            "exp": 2 * 8 * 16 * 4,
            "add": 2 * 16 * 64 * 4,
        }
    )


def test_every_tensor_is_released_after_its_last_use(tmp_path: Path) -> None:
    events = recorded(tmp_path, update, W, X, donate_argnums=0)
    made = {name for call in calls(events) for name in call.outputs}
    released = [event.tensor for event in events if isinstance(event, Release)]
    loss = calls(events)[2].outputs
    assert sorted(released) == sorted(made - set(loss))


def test_steps_go_on_from_the_state_before(tmp_path: Path) -> None:
    one = recorded(tmp_path, update, W, X, donate_argnums=0)
    two = recorded(tmp_path, update, W, X, donate_argnums=0, steps=2)
    assert len(calls(two)) == 2 * len(calls(one))
    assert [c.op for c in calls(two)] == 2 * [c.op for c in calls(one)]
    assert calls(two)[-1].mutates == ("[0][0]",)
    # The loss of the first step is let go when the second is there.
    (loss,) = calls(one)[2].outputs
    assert two[-1] == Release(loss)


def test_without_donation_the_state_is_not_changed(tmp_path: Path) -> None:
    events = recorded(tmp_path, update, W, X)
    changed = {name for call in calls(events) for name in call.mutates}
    assert not changed & {"[0][0]", "[0][1]"}


def test_an_argument_that_is_read_after_its_successor_is_copied_into(
    tmp_path: Path,
) -> None:
    def step(w, x):
        new = w + jnp.sum(x @ w)
        return new, jnp.sum(jnp.tanh(new) @ w)

    *_, last = calls(recorded(tmp_path, step, W, X, donate_argnums=0))
    assert last.op == "copy" and last.mutates == ("[0][0]",)


def test_a_jitted_step_keeps_its_donation_and_takes_no_options(tmp_path: Path) -> None:
    jitted = jax.jit(update, donate_argnums=0)
    assert calls(recorded(tmp_path, jitted, W, X))[-1].mutates == ("[0][0]",)
    with pytest.raises(TypeError, match="donate_argnums: the step is already under"):
        recorded(tmp_path, jitted, W, X, donate_argnums=0)
    with pytest.raises(ValueError, match="at least 1, not 0"):
        recorded(tmp_path, jitted, W, X, steps=0)


def test_effects_run_once_and_random_draws_again(tmp_path: Path) -> None:
    def step(x, key):
        jax.debug.print("{}", x[0, 0])
        return jnp.sum(x @ x.T * jax.random.normal(key, (64, 64)))

    key = jax.eval_shape(lambda: jax.random.key(0))
    found = {c.op: c.is_recomputable for c in calls(recorded(tmp_path, step, X, key))}
    assert not found.pop("debug_print", found.pop("debug_callback", False))
    assert all(found.values())


def test_a_network_runs_within_its_bytes_under_every_policy(tmp_path: Path) -> None:
    model = build("gpt3")
    path = tmp_path / "trace.jsonl"
    coop_jax.record(model.step, *model.abstract_args(), path=path, donate_argnums=0)
    work = workload(read(path))
    for policy in POLICIES:
        found = simulate(work, int(0.7 * work.needed), policy)
        assert found.is_feasible and found.overhead is not None
        assert 1 < found.overhead < 1.5
        assert found.peak <= found.budget and found.evictions > 0


def test_a_long_trace_repeats_one_step(capsys: pytest.CaptureFixture) -> None:
    long_trace.main(["--steps", "1", "2", "--share", "0.6"])
    *_, one, two = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert 2 * int(one[1].replace(",", "")) == int(two[1].replace(",", ""))
    assert 1 < float(one[3]) < 1.5 and one[3] == two[3]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
