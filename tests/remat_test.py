"""The API: a step goes in, the same step within its budget comes out."""

import copy
import dataclasses
import functools
import math
import os
import pathlib
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.sharding import PartitionSpec

import coop_jax
from benchmarks.float64 import evaluate, relative_error
from coop_jax._fitting.compile import flat_step
from tests.eight_devices import environment

ROOT = pathlib.Path(__file__).absolute().parent.parent
LAYERS, ROWS, WIDTH = 6, 512, 64


def float32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def chain(weights: Any, x: Any, between: Callable = lambda x, layer: x) -> Any:
    for layer, weight in enumerate(weights):
        x = between(jnp.tanh(x @ weight), layer)
    return jnp.mean(x**2)


def train_step(weights: Any, x: Any) -> Any:
    """An MLP; the state is donated in most tests."""
    loss, grads = jax.value_and_grad(chain)(weights, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), loss


def dropout_step(weights: Any, x: Any, key: Any) -> Any:
    """As above, also returning the bits of the last mask."""

    def masked(x, layer):
        key_of_layer = jax.random.fold_in(key, layer)
        mask = jax.random.bernoulli(key_of_layer, 0.9, x.shape)
        return jnp.where(mask, x / 0.9, 0)

    def loss(weights):
        return chain(weights, x, masked)

    value, grads = jax.value_and_grad(loss)(weights)
    new = jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads)
    last = jax.random.fold_in(key, LAYERS - 1)
    return new, value, jax.random.bernoulli(last, 0.9, x.shape)


ABSTRACT = ([float32(WIDTH, WIDTH)] * LAYERS, float32(ROWS, WIDTH))


def arrays() -> tuple[list[jax.Array], jax.Array]:
    keys = jax.random.split(jax.random.key(0), LAYERS + 1)
    weights = [jax.random.normal(key, (WIDTH, WIDTH)) / 8 for key in keys[1:]]
    return weights, jax.random.normal(keys[0], (ROWS, WIDTH))


def memory(compiled: Any) -> tuple[int, int, int, int]:
    analysis = compiled.memory_analysis()
    return (
        analysis.argument_size_in_bytes,
        analysis.output_size_in_bytes,
        analysis.alias_size_in_bytes,
        analysis.temp_size_in_bytes,
    )


def total(compiled: Any) -> int:
    argument, output, alias, temp = memory(compiled)
    return argument + output - alias + temp


def share_of(share: float, size: int) -> int:
    return math.floor(Fraction(share) * size)


def flops(compiled: Any) -> float:
    return compiled.cost_analysis()["flops"]


def compiled(step: Any, *args: Any) -> Any:
    return step.lower(*args).compile()


@functools.cache
def unplanned() -> Any:
    return compiled(jax.jit(train_step, donate_argnums=0), *ABSTRACT)


@functools.cache
def planned(budget: Any) -> Any:
    """Steps with one plan each, shared between tests."""
    return coop_jax.remat(train_step, budget, donate_argnums=0)


def assert_same(out: Any, reference: Any) -> None:
    assert jax.tree.structure(out) == jax.tree.structure(reference)
    for one, other in zip(
        jax.tree.leaves(out), jax.tree.leaves(reference), strict=True
    ):
        assert jnp.asarray(one).dtype == jnp.asarray(other).dtype
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


# Memory


@pytest.mark.parametrize("budget", [0.95, 0.8, 0.7])
def test_a_step_measures_no_more_than_its_budget(budget: float) -> None:
    step = planned(budget)
    plan = step.plan(*ABSTRACT)
    program = compiled(step, *ABSTRACT)
    assert plan.budget == share_of(budget, total(unplanned()))
    assert total(program) <= plan.budget
    assert total(program) == plan.measured.total
    assert plan.unplanned.total == total(unplanned())
    assert plan.is_planned
    assert plan.flops >= 1.0 and plan.time >= 1.0


def test_with_enough_budget_the_step_is_left_alone() -> None:
    for budget in (total(unplanned()), "1GiB", 1.0):
        step = planned(budget)
        program = compiled(step, *ABSTRACT)
        assert memory(program) == memory(unplanned())
        assert flops(program) == flops(unplanned())
        plan = step.plan(*ABSTRACT)
        assert not plan.is_planned
        # Probes of the step and of a plan with as many operations; the program to run.
        assert plan.compiles == 3
        assert plan.flops == plan.time == 1.0


def normalized_step(weights: Any, x: Any) -> Any:
    """XLA:CPU computes the exponentials once for each statistic, unless told not to."""

    def loss(weights):
        y = x
        for weight in weights:
            y = jnp.exp(jnp.sin(y))
            y = (y - y.mean(-1, keepdims=True)) / (y.std(-1, keepdims=True) + 1)
            y = y @ weight
        return jnp.mean(y**2)

    value, grads = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value


def test_a_plan_with_fewer_operations_is_taken_where_the_step_fits() -> None:
    jitted = jax.jit(normalized_step)
    step = coop_jax.remat(normalized_step, "1GiB")
    plan, program = step.plan(*ABSTRACT), compiled(step, *ABSTRACT)
    assert plan.is_planned
    assert flops(program) < 0.999 * flops(compiled(jitted, *ABSTRACT))
    assert total(program) == plan.measured.total <= plan.unplanned.total
    assert plan.time == pytest.approx(1.0, rel=1e-3)
    assert_same(step(*arrays()), jitted(*arrays()))


def test_operations_do_not_tell_programs_of_gpus_or_several_devices_apart() -> None:
    traced = jax.jit(train_step).trace(*ABSTRACT)
    step = flat_step(traced, jax.tree.leaves(ABSTRACT))
    program = step.compile(step.as_written())
    assert step.operations(program) == flops(program)
    of_two = dataclasses.replace(step.program, partitions=2)
    for other in ({"platform": "gpu"}, {"program": of_two}):
        assert dataclasses.replace(step, **other).operations(program) == 0


def test_a_smaller_budget_never_measures_more_than_a_larger() -> None:
    sizes = [planned(b).plan(*ABSTRACT).measured.total for b in (1.0, 0.95, 0.8, 0.7)]
    sizes.append(planned("min").plan(*ABSTRACT).measured.total)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] <= 0.7 * sizes[0]


def test_a_larger_budget_never_costs_more_than_a_smaller() -> None:
    costs = [planned(b).plan(*ABSTRACT).time for b in (1.0, 0.95, 0.8, 0.7, "min")]
    assert costs == sorted(costs)


def test_the_last_bytes_are_not_bought_with_much_arithmetic() -> None:
    def step(w, narrow, x):
        # Less than a percent of all bytes, for two narrow products of the five.
        few = jnp.tanh(jnp.tanh(x @ narrow) @ narrow.T)[:, :16]
        y = jnp.tile(few, 32)
        for _ in range(3):
            y = jnp.sin(y @ w) + y[::-1]
        return jnp.mean(jnp.cumsum(y, 0)[:, :16] * few)

    args = float32(512, 512), float32(512, 256), float32(512, 512)
    smallest = coop_jax.remat(step, "min").plan(*args)
    assert smallest.floor is not None
    assert smallest.floor < smallest.measured.total <= 1.02 * smallest.floor
    assert smallest.flops == 1
    asked = coop_jax.remat(step, smallest.floor).plan(*args)
    assert asked.measured.total == smallest.floor
    assert asked.flops > 1.2


def test_a_step_with_nothing_to_gain_is_never_made_larger() -> None:
    for step, args in (
        (lambda x: x, (float32(64),)),
        (lambda x: x + 1, (float32(64, 64),)),
        (lambda x: x @ x @ x, (float32(64, 64),)),
        (lambda: jnp.zeros(3), ()),
    ):
        plan = coop_jax.remat(step, "min").plan(*args)
        assert plan.measured.total <= plan.unplanned.total
        assert total(compiled(coop_jax.remat(step, "min"), *args)) == (
            plan.measured.total
        )


def test_below_the_floor_the_error_names_it_and_what_is_alive_there() -> None:
    with pytest.raises(coop_jax.BudgetError) as caught:
        planned(0.3).plan(*ABSTRACT)
    error = caught.value
    assert error.budget == share_of(0.3, total(unplanned()))
    assert error.floor is not None and error.floor > error.budget
    smallest = planned("min").plan(*ABSTRACT).measured.total
    assert error.floor <= smallest <= 1.05 * error.floor
    assert error.buffers[0].size == ROWS * WIDTH * 4
    assert "remat_test.py" in error.buffers[0].source
    assert f"{error.floor:,} bytes" in str(error)


def test_the_floor_of_the_error_is_a_budget_that_works() -> None:
    with pytest.raises(coop_jax.BudgetError) as caught:
        planned(0.3).plan(*ABSTRACT)
    floor = caught.value.floor
    assert floor is not None
    assert planned(floor).plan(*ABSTRACT).measured.total <= floor


def test_below_arguments_and_outputs_the_error_says_that_no_plan_helps() -> None:
    with pytest.raises(coop_jax.BudgetError, match="Arguments and outputs alone take"):
        planned(1024).plan(*ABSTRACT)


@pytest.mark.parametrize("budget", [0.0, 1.5, -1, "lots", "12G"])
def test_a_budget_that_is_none_is_refused_at_once(budget: Any) -> None:
    with pytest.raises(ValueError, match="budget"):
        coop_jax.remat(train_step, budget)


def test_a_policy_that_does_not_exist_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="'coop'"):
        coop_jax.remat(train_step, "min", policy="greedy")


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="takes a function"):
        coop_jax.remat(0.5)  # pyright: ignore[reportArgumentType, reportCallIssue]


def test_a_plan_is_the_same_every_time() -> None:
    one, other = (coop_jax.remat(train_step, 0.8).plan(*ABSTRACT) for _ in range(2))
    assert one.fingerprint == other.fingerprint
    assert one.positions == other.positions
    assert one.measured == other.measured


def test_a_plan_prints_on_one_screen() -> None:
    for budget in (1.0, 0.8, "min"):
        plan = planned(budget).plan(*ABSTRACT)
        text = str(plan)
        assert len(text.splitlines()) <= 25
        assert f"{plan.measured.total:,} bytes" in text
        assert plan.fingerprint in text
        assert ("fits as written" in text) == (budget == 1.0)


# Results


@pytest.mark.parametrize("budget", [1.0, 0.8, "min"])
def test_results_are_as_exact_as_those_of_the_step(budget: Any) -> None:
    weights, x = arrays()
    exact = evaluate(train_step, weights, x)
    own_error = relative_error(jax.jit(train_step)(weights, x), exact)
    out = coop_jax.remat(train_step, budget)(weights, x)
    assert relative_error(out, exact) <= 1.5 * own_error


@pytest.mark.parametrize("budget", [0.7, "min"])
def test_random_bits_are_identical(budget: Any) -> None:
    weights, x = arrays()
    key = jax.random.key(7)
    step = coop_jax.remat(dropout_step, budget)
    new, loss, mask = step(weights, x, key)
    assert step.plan(weights, x, key).is_planned
    expected, expected_loss, expected_mask = jax.jit(dropout_step)(weights, x, key)
    np.testing.assert_array_equal(mask, expected_mask)
    assert_same((new, loss), (expected, expected_loss))


def noisy_step(log: list, weights: Any, x: Any) -> Any:
    def noisy(x, layer):
        jax.debug.print("layer {}", layer, ordered=True)
        jax.debug.print("mean {}", jnp.mean(x))
        return x

    value, grads = jax.value_and_grad(lambda w: chain(w, x, noisy))(weights)
    new = []
    for layer, (weight, grad) in enumerate(zip(weights, grads, strict=True)):
        io_callback(lambda _, layer=layer: log.append(layer), None, grad, ordered=True)
        new.append(weight - 0.1 * grad)
    return new, value


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_donated_keys_go_on_as_in_the_step_as_written(shape: tuple[int, ...]) -> None:
    def key_step(state: Any, x: Any) -> Any:
        weights, keys = state
        new = jax.vmap(lambda key: jax.random.split(key)[0])(keys.reshape(-1))
        mask = jax.random.bernoulli(new[0], 0.9, x.shape)
        return train_step(weights, jnp.where(mask, x, 0))[0], new.reshape(shape)

    weights, x = arrays()
    keys = jax.random.split(jax.random.key(0), shape)
    _, expected = jax.jit(key_step)((weights, keys), x)
    step = coop_jax.remat(key_step, 0.7, donate_argnums=0)
    assert step.plan((weights, keys), x).is_planned
    _, found = step((weights, keys), x)
    mine, theirs = jax.random.key_data(found), jax.random.key_data(expected)
    np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("budget", [1.0, 0.85, "min"])
def test_effects_happen_once_and_in_order(
    budget: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    log: list[Any] = []
    weights, x = arrays()
    step = coop_jax.remat(functools.partial(noisy_step, log), budget)
    assert step.plan(weights, x).is_planned == (budget != 1.0)
    assert log == []
    for _ in range(2):
        jax.block_until_ready(step(weights, x))
    jax.effects_barrier()
    assert log == [*range(LAYERS)] * 2
    printed = capfd.readouterr().out
    lines = [line for line in printed.splitlines() if line.startswith("layer")]
    assert lines == [f"layer {layer}" for layer in range(LAYERS)] * 2
    assert printed.count("mean ") == 2 * LAYERS


def _scan(x, layer):
    return lax.scan(lambda c, _: (jnp.sin(c), None), x, length=2)[0]


def _while(x, layer):
    steps = lax.while_loop(lambda i: i < 3, lambda i: i + 1, layer)
    return x * lax.stop_gradient(steps).astype(x.dtype)


def _cond(x, layer):
    return lax.cond(jnp.sum(x) > 0, jnp.sin, jnp.cos, x)


def _callback(x, layer):
    fixed = lax.stop_gradient(x)
    host = jax.pure_callback(lambda x: np.sin(x), fixed, fixed)
    return x + lax.stop_gradient(host)


def _shard_map(x, layer):
    mesh = jax.make_mesh((1,), ("data",), (jax.sharding.AxisType.Auto,))
    spec = PartitionSpec("data")
    return jax.shard_map(
        lambda x: jnp.sin(x) * 2, mesh=mesh, in_specs=spec, out_specs=spec
    )(x)


def _checkpoint(x, layer):
    return jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x)


@pytest.mark.parametrize(
    "between",
    [_scan, _while, _cond, _callback, _shard_map, _checkpoint],
    ids=lambda between: between.__name__.strip("_"),
)
def test_equations_that_are_taken_whole_are_planned_around(between: Callable) -> None:
    def step(weights, x):
        value, grads = jax.value_and_grad(lambda w: chain(w, x, between))(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value

    weights, x = arrays()
    fitted = coop_jax.remat(step, 0.8)
    plan = fitted.plan(weights, x)
    assert plan.is_planned
    assert plan.measured.total <= share_of(
        0.8, total(compiled(jax.jit(step), weights, x))
    )
    assert_same(fitted(weights, x), jax.jit(step)(weights, x))


# Calling


def plain(scale: Any, x: Any) -> Any:
    return {"loss": jnp.sum(jnp.tanh(x) * scale), "x": (x, None, [scale])}


X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def test_a_plain_function_a_jitted_one_and_a_decorated_one_are_the_same() -> None:
    expected = jax.jit(plain)(2.0, X)
    assert_same(coop_jax.remat(plain, 1.0)(2.0, X), expected)
    assert_same(coop_jax.remat(jax.jit(plain), 1.0)(2.0, X), expected)

    @coop_jax.remat(budget=1.0)
    def decorated(scale, x):
        """What it does."""
        return plain(scale, x)

    assert_same(decorated(2.0, X), expected)
    assert getattr(decorated, "__name__", None) == "decorated"
    assert decorated.__doc__ == "What it does."
    assert repr(decorated).startswith("<coop_jax.remat of <PjitFunction of <function")


def test_arguments_may_be_given_by_name() -> None:
    step = coop_jax.remat(plain, 1.0)
    assert_same(step(2.0, x=X), plain(2.0, X))
    assert_same(step(x=X, scale=2.0), plain(2.0, X))


def test_defaults_are_kept() -> None:
    step = coop_jax.remat(lambda x, *, power=2, offset=1.0: x**power + offset, 1.0)
    np.testing.assert_allclose(step(X), X**2 + 1.0)
    np.testing.assert_allclose(step(X, offset=3.0), X**2 + 3.0)


def test_static_arguments_are_kept() -> None:
    def power(x, exponent, offset):
        return x**exponent + offset

    for step in (
        coop_jax.remat(power, 1.0, static_argnums=1),
        coop_jax.remat(power, 1.0, static_argnames="exponent"),
        coop_jax.remat(jax.jit(power, static_argnums=1), 1.0),
    ):
        np.testing.assert_allclose(step(X, 3, X), X**3 + X, rtol=1e-6)
        np.testing.assert_allclose(step(X, 2, X), X**2 + X, rtol=1e-6)
        np.testing.assert_allclose(step(X, exponent=2, offset=X), X**2 + X, rtol=1e-6)


def test_a_static_number_beside_a_dynamic_one_is_no_problem() -> None:
    def power(x, exponent, offset):
        return x**exponent + offset

    for options in ({"static_argnums": 1}, {"static_argnames": "exponent"}):
        step = coop_jax.remat(power, 1.0, **options)
        np.testing.assert_allclose(step(X, 3, 1.0), X**3 + 1, rtol=1e-6)


def test_options_of_a_jitted_step_are_its_own() -> None:
    with pytest.raises(TypeError, match="donate_argnums"):
        coop_jax.remat(jax.jit(plain), 1.0, donate_argnums=0)


def test_any_pytree_goes_in_and_comes_out() -> None:
    def step(tree, empty):
        (a, none), b = tree["pair"], tree["leaf"]
        return {"sum": a + b, "none": none}, (), empty, a

    args = ({"pair": (X, None), "leaf": 1}, {})
    assert_same(coop_jax.remat(step, 1.0)(*args), step(*args))


def test_a_plan_needs_no_arrays() -> None:
    for args in (ABSTRACT, arrays()):
        plan = planned(0.8).plan(*args)
        assert plan.measured.total <= 0.8 * plan.unplanned.total


def test_shapes_are_planned_once_each() -> None:
    traces = []

    def counted(weights, x):
        traces.append(x.shape)
        return train_step(weights, x)

    step = coop_jax.remat(counted, 0.8)
    weights, x = arrays()
    first = step.plan(*ABSTRACT)
    for _ in range(3):
        weights, _ = step(weights, x)
    assert step.plan(weights, x) is first
    half = step.plan(weights, x[: ROWS // 2])
    assert half.unplanned.total < first.unplanned.total
    assert step.plan(weights, x) is first
    assert traces == [(ROWS, WIDTH), (ROWS // 2, WIDTH)]


def test_donated_arguments_are_gone_and_no_others() -> None:
    for budget in (1.0, 0.8):
        weights, x = arrays()
        step = planned(budget)
        new, _ = step(weights, x)
        assert all(weight.is_deleted() for weight in weights)
        assert not x.is_deleted()
        step(new, x)
        program = compiled(step, *ABSTRACT)
        assert memory(program)[2] == memory(unplanned())[2] > 0
        assert step.plan(*ABSTRACT).measured.alias == memory(unplanned())[2]


def test_donation_of_a_jitted_step_and_by_name_is_kept() -> None:
    for step in (
        coop_jax.remat(jax.jit(train_step, donate_argnums=0), 0.95),
        coop_jax.remat(train_step, 0.95, donate_argnames="weights"),
    ):
        plan = step.plan(*ABSTRACT)
        assert plan.measured.alias == memory(unplanned())[2]
        assert memory(compiled(step, *ABSTRACT))[2] == plan.measured.alias


def test_without_donation_the_state_is_kept() -> None:
    weights, x = arrays()
    coop_jax.remat(train_step, 0.8)(weights, x)
    assert not any(weight.is_deleted() for weight in weights)


def test_a_planned_step_runs_under_jit() -> None:
    weights, x = arrays()
    step = coop_jax.remat(train_step, 0.8)

    @jax.jit
    def twice(weights, x):
        weights, _ = step(weights, x)
        return step(weights, x)

    first, _ = jax.jit(train_step)(weights, x)
    assert_same(twice(weights, x), jax.jit(train_step)(first, x))


def test_a_planned_step_runs_in_a_scan() -> None:
    weights, x = arrays()
    step = coop_jax.remat(train_step, 0.8)
    state, losses = lax.scan(lambda w, x: step(w, x), weights, jnp.stack([x, x + 1]))
    expected, _ = jax.jit(train_step)(weights, x)
    expected, loss = jax.jit(train_step)(expected, x + 1)
    assert_same(state, expected)
    assert_same(losses[1], loss)


def test_the_budget_of_an_outer_remat_holds() -> None:
    inner = coop_jax.remat(train_step, 1.0)
    outer = coop_jax.remat(inner, 0.8)
    plan = outer.plan(*ABSTRACT)
    budget = share_of(0.8, plan.unplanned.total)
    assert plan.budget == budget
    assert plan.measured.total <= budget
    weights, x = arrays()
    assert_same(outer(weights, x), jax.jit(train_step)(weights, x))


def test_a_planned_step_is_planned_anew_as_it_was_written() -> None:
    again = coop_jax.remat(planned("min"), 0.8)
    expected = planned(0.8).plan(*ABSTRACT)
    assert again.plan(*ABSTRACT).fingerprint == expected.fingerprint


def test_a_decorated_method_is_called_bound_and_planned_unbound() -> None:
    class Trainer:
        scale = 3.0

        @coop_jax.remat(budget=1.0, static_argnums=0)
        def step(self, x):
            return x * self.scale

    trainer = Trainer()
    np.testing.assert_array_equal(trainer.step(X), X * 3.0)
    assert trainer.step.plan(trainer, X).measured.total > 0
    vars(trainer)["planned"] = Trainer.step
    assert vars(copy.deepcopy(trainer))["planned"] is Trainer.step
    assert copy.deepcopy(Trainer.step) is Trainer.step


@pytest.mark.parametrize("budget", [1.0, 0.7])
def test_nans_are_looked_for_as_under_jit(budget: float) -> None:
    step = planned(budget)
    weights, x = arrays()
    step(weights, x)
    weights, x = arrays()
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="encountered"):
        step(weights, x * jnp.nan)
    weights, x = arrays()
    with jax.debug_nans(True):
        assert_same(step(weights, x), jax.jit(train_step)(*arrays()))


def test_a_nan_is_said_to_be_made_at_the_users_line() -> None:
    def step(x):
        return jnp.sum(jnp.log(x - 2))

    planned = coop_jax.remat(step, "1GB")
    with (
        jax.debug_nans(True),
        pytest.raises(FloatingPointError, match="encountered in log") as raised,
    ):
        planned(np.ones((8, 8), np.float32))
    assert "coop_jax: in the step, " in "".join(raised.value.__notes__)
    assert "remat_test.py:" in "".join(raised.value.__notes__)


def test_keys_are_checked_in_the_step_as_written() -> None:
    """A barrier counts as a use of the keys that pass it, a second draw as another."""

    def loss_of(weights, x, key):
        for layer, w in enumerate(weights):
            mask = jax.random.bernoulli(jax.random.fold_in(key, layer), 0.9, x.shape)
            x = jnp.where(mask, jnp.tanh(x @ w), 0)
        return jnp.mean(x**2)

    def reused(w, key):
        return w + jax.random.normal(key) + jax.random.normal(key)

    weights, x = arrays()
    key = jax.random.key(7)
    expected = jax.jit(jax.grad(loss_of))(weights, x, key)
    with jax.debug_key_reuse(True):
        step = coop_jax.remat(jax.grad(loss_of), "min")
        assert step.plan(weights, x, key).is_planned
        assert_same(step(weights, x, key), expected)
        with pytest.raises(jax.errors.KeyReuseError):
            coop_jax.remat(reused, "min")(x, key)


@pytest.mark.parametrize("is_jitted", [True, False])
def test_compiler_options_reach_xla(is_jitted: bool) -> None:
    def planned(options: dict[str, Any]) -> Any:
        if is_jitted:
            jitted = jax.jit(train_step, donate_argnums=0)
            return coop_jax.remat(jitted, 0.7, compiler_options=options)
        return coop_jax.remat(
            train_step, 0.7, donate_argnums=0, compiler_options=options
        )

    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_no_such_option"):
        planned({"xla_no_such_option": True}).plan(*arrays())
    step = planned({"xla_cpu_enable_fast_min_max": False})
    assert_same(step(*arrays()), jax.jit(train_step)(*arrays()))
    lowered = step.lower(*arrays())
    assert coop_jax.measure(step, *arrays()) == step.plan(*arrays()).measured
    assert lowered.compile()(*arrays())


def test_a_node_that_takes_only_arrays_is_named_as_the_cause() -> None:
    @jax.tree_util.register_pytree_node_class
    class Strict:
        def __init__(self, scale: Any):
            self.scale = jnp.asarray(scale)

        def tree_flatten(self) -> tuple:
            return (self.scale,), None

        @classmethod
        def tree_unflatten(cls, _: None, children: tuple) -> "Strict":
            return cls(*children)

    step = coop_jax.remat(lambda strict: strict.scale * 2, "1GiB")
    with pytest.raises(TypeError, match=r"takes nothing but arrays .*ArgInfo"):
        step(Strict(1.0))


def test_gradients_of_a_planned_function_are_those_of_the_function() -> None:
    # `custom_vjp` must not be lost on the way.
    @jax.custom_vjp
    def clipped(x):
        return jnp.sum(x**2)

    clipped.defvjp(lambda x: (jnp.sum(x**2), x), lambda x, g: (jnp.clip(x, 0, 0.1),))
    expected = jax.grad(clipped)(X)
    with pytest.warns(UserWarning, match="is differentiated"):
        found = jax.grad(coop_jax.remat(clipped, 1.0))(X)
    np.testing.assert_array_equal(found, expected)


def test_captured_arrays_are_constants_and_captured_tracers_refused() -> None:
    weight = jnp.asarray(X)
    step = coop_jax.remat(lambda x: jnp.sum(x * weight), 1.0)
    np.testing.assert_allclose(step(X), np.sum(X * X), rtol=1e-6)

    @jax.jit
    def outer(scale):
        return coop_jax.remat(lambda x: jnp.sum(x * scale), 1.0)(X)

    with pytest.raises(TypeError, match="Pass them as arguments"):
        outer(2.0)


def test_threads_may_share_a_step() -> None:
    weights, x = arrays()
    step = coop_jax.remat(train_step, 0.8)
    results: list[Any] = []

    def work() -> None:
        for _ in range(3):
            results.append(step(weights, x))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 12
    expected = jax.jit(train_step)(weights, x)
    for out in results:
        assert_same(out, expected)


SHARDED = """
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import NamedSharding, PartitionSpec
    import coop_jax
    from remat_test import arrays, assert_same, train_step

    assert jax.device_count() == 8
    mesh = jax.make_mesh((8,), ("data",), (jax.sharding.AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    everywhere = NamedSharding(mesh, PartitionSpec())

    def step(weights, x, *unused):
        weights, loss = train_step(weights, x)
        return weights, jax.lax.with_sharding_constraint(loss, everywhere)

    weights, x = arrays()
    x = jnp.tile(x, (8, 1))
    rest = REST
    expected = jax.jit(step)(weights, x, *rest)
    weights = jax.device_put(weights, everywhere)
    x = jax.device_put(x, rows)
    unplanned = jax.jit(step, donate_argnums=0).lower(weights, x, *rest).compile()
    analysis = unplanned.memory_analysis()
    total = (
        analysis.argument_size_in_bytes + analysis.output_size_in_bytes
        - analysis.alias_size_in_bytes + analysis.temp_size_in_bytes
    )
    fitted = coop_jax.remat(step, 0.8, donate_argnums=0)
    plan = fitted.plan(weights, x, *rest)
    assert plan.is_planned
    assert plan.unplanned.total == total, (plan.unplanned.total, total)
    assert plan.measured.total <= int(0.8 * total)
    program = fitted.lower(weights, x, *rest).compile()
    analysis = program.memory_analysis()
    assert analysis.temp_size_in_bytes == plan.measured.temp
    out = fitted(weights, x, *rest)
    assert_same(out, expected)
    for leaf, like in zip(jax.tree.leaves(out), unplanned.output_shardings[0]):
        assert leaf.sharding.is_equivalent_to(like, leaf.ndim)
    assert all(weight.is_deleted() for weight in weights)
    out = fitted(out[0], x, *rest)
    print("PASSED")
"""


@pytest.mark.parametrize("rest", ["()", "(1.0,)"], ids=["", "unused argument"])
def test_a_step_over_eight_devices_fits_on_each(rest: str) -> None:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SHARDED).replace("REST", rest)],
        env=environment() | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "PASSED" in done.stdout


def test_a_decorator_keeps_names_that_can_be_read_once() -> None:
    decorate = coop_jax.remat(budget=0.9, save_names=iter(["absent"]))
    with pytest.raises(ValueError, match="absent"):
        decorate(jnp.sum).plan(jnp.ones(4))


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
