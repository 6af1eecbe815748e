"""The main job on a real GPU, and compiled for a described one."""

import dataclasses
import functools
import re
from collections.abc import Callable
from statistics import mean
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from benchmarks import h200
from benchmarks.traffic import traffic
from coop_jax._fitting.compile import flat_step
from coop_jax._fitting.emit import emit
from coop_jax._fitting.solve import Workbench
from coop_jax._measure import memory_use
from coop_jax._planning.buffer_assignment import packed
from coop_jax._planning.planner import Effort, Planned, plan

LAYERS, WIDTH, ROWS = 3, 256, 8192


def train_step(weights, x):
    def loss_of(weights):
        y = x
        for w in weights:
            y = y + jnp.tanh(jnp.tanh(y @ w) @ w)
        return jnp.mean(y**2)

    loss, grads = jax.value_and_grad(loss_of)(weights)
    return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)], loss


def abstract():
    weight = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    return [weight] * LAYERS, jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)


def gpu() -> Any:
    """One that is at hand."""
    try:
        return jax.devices("gpu")[0]
    except RuntimeError:
        pytest.skip("no GPU at hand")


@pytest.mark.gpu
def test_a_step_fits_and_agrees_on_a_gpu() -> None:
    device = gpu()
    keys = jax.random.split(jax.random.key(0), LAYERS + 1)
    weights = [jax.random.normal(k, (WIDTH, WIDTH)) / 16 for k in keys[1:]]
    x = jax.random.normal(keys[0], (ROWS, WIDTH))
    weights, x = jax.device_put((weights, x), device)
    planned = coop_jax.remat(train_step, 0.7)
    plan = planned.plan(weights, x)
    assert plan.budget is not None
    assert plan.measured.total <= plan.budget < plan.unplanned.total
    for mine, theirs in zip(
        jax.tree.leaves(planned(weights, x)),
        jax.tree.leaves(jax.jit(train_step)(weights, x)),
        strict=True,
    ):
        np.testing.assert_allclose(mine, theirs, rtol=2e-3, atol=2e-3)


def described(step: Callable, *args: Any) -> Workbench:
    """A workbench for the step on an H200 that is only described."""
    try:
        args = h200.on_device(args)
    except ImportError as error:
        pytest.skip(f"XLA's compile-only GPU backend is not at hand: {error}")
    traced = jax.jit(step, donate_argnums=0).trace(*args)
    flat = flat_step(traced, jax.tree.leaves(args))
    options = {"compiler_options": h200.COMPILER_OPTIONS}
    return Workbench(dataclasses.replace(flat, jit_options=options))


def moved_more(bench: Workbench, share: float) -> float:
    """What a plan for a share of the temporaries moves, over the step as written."""
    written = traffic(bench.step.compile(bench.baseline.function).as_text())
    room = bench.unplanned.fixed + int(share * bench.unplanned.temp)
    found = bench.fit(room, Effort())
    assert found.memory.total <= room
    return traffic(bench.finish(found).compiled.as_text()) / written


def convolved(w: jax.Array, x: jax.Array) -> jax.Array:
    kinds = ("NHWC", "HWIO", "NHWC")
    y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=kinds)
    return jnp.maximum(y, 0)


@pytest.mark.gpu
def test_a_step_fits_when_compiled_for_a_described_gpu() -> None:
    bench = described(train_step, *abstract())
    budget = int(0.7 * bench.unplanned.total)
    found = bench.fit(budget, Effort())
    assert found.memory.total <= budget < bench.unplanned.total


@pytest.mark.gpu
def test_described_new_weights_do_not_wait_in_the_order_of_their_gradients() -> None:
    def step(weights, x):
        def loss_of(weights):
            return jnp.mean(functools.reduce(lambda y, w: convolved(w, y), weights, x))

        grads = jax.grad(loss_of)(weights)
        return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)]

    weight = jax.ShapeDtypeStruct((3, 3, 256, 256), jnp.float32)
    x = jax.ShapeDtypeStruct((4, 8, 8, 256), jnp.float32)
    bench = described(step, [weight] * 6, x)
    home = [(op,) for op in bench.problem.program_order]
    temp = memory_use(bench.step.compile(emit(bench.profile, home))).temp
    assert temp < 3.5 * weight.size * 4


@pytest.mark.gpu
def test_described_kernels_move_little_more_than_those_of_the_step_as_written() -> None:
    def step(weights, x):
        def loss_of(weights):
            y = x
            for w in weights:
                centred = y - jnp.mean(y, -1, keepdims=True)
                scaled = centred * jax.lax.rsqrt(jnp.var(y, -1, keepdims=True) + 1e-5)
                y = y + jax.nn.gelu(scaled @ w) @ w.T
            return jnp.mean(y**2)

        grads = jax.grad(loss_of)(weights)
        return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)]

    weight = jax.ShapeDtypeStruct((WIDTH, 4 * WIDTH), jnp.float32)
    bench = described(step, [weight] * LAYERS, abstract()[1])
    # 1.27 with a barrier in front of each operation.
    assert moved_more(bench, 0.8) < 1.2


@pytest.mark.gpu
def test_described_zeros_that_gradients_are_scattered_into_do_not_stand() -> None:
    def step(weights, x):
        def loss_of(weights):
            y = x
            for w in weights:
                y = y + jnp.sort(jnp.tanh(y @ w), -1) @ w.T
            return jnp.mean(y**2)

        grads = jax.grad(loss_of)(weights)
        return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)]

    weight = jax.ShapeDtypeStruct((WIDTH, 2 * WIDTH), jnp.float32)
    bench = described(step, [weight] * LAYERS, abstract()[1])
    found = bench.floor(Effort())
    assert found.surplus < 0.02 * found.memory.temp  # 0.09 if they stand


@pytest.mark.gpu
def test_described_heads_wait_in_the_order_in_which_products_take_them() -> None:
    def step(weights, x):
        def loss_of(weights):
            y = x
            for into, out, up in weights:
                q, k, v = (
                    each.reshape(*y.shape[:2], 8, -1)
                    for each in jnp.split(y @ into, 3, -1)
                )
                scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8
                mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
                y = y + mixed.reshape(y.shape) @ out
                y = y + jax.nn.gelu(y @ up) @ up.T
            return jnp.mean(y**2)

        grads = jax.grad(loss_of)(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads)

    shapes = (512, 1536), (512, 512), (512, 2048)
    weights = [tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)] * LAYERS
    bench = described(step, weights, jax.ShapeDtypeStruct((8, 512, 512), jnp.float32))
    assert moved_more(bench, 0.5) < 1.1  # 1.14 in the order in which they are made


@pytest.mark.gpu
def test_described_products_of_one_array_are_not_merged_for_a_barrier() -> None:
    def step(weights, x):
        def loss_of(weights):
            y = x
            for gate, up, down in weights:
                y = y + (jax.nn.silu(y @ gate) * (y @ up)) @ down
            return jnp.mean(y**2)

        grads = jax.grad(loss_of)(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads)

    shapes = (WIDTH, 3 * WIDTH), (WIDTH, 3 * WIDTH), (3 * WIDTH, WIDTH)
    weights = [tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)] * LAYERS
    bench = described(step, weights, abstract()[1])
    assert moved_more(bench, 0.6) < 1.28  # 1.32 where XLA makes one of two


@pytest.mark.gpu
def test_described_rows_are_gathered_inside_of_what_reads_them() -> None:
    def step(weights, x, senders, receivers):
        def loss_of(weights):
            y = x
            for w in weights:
                message = jnp.concatenate([y[senders], y[receivers]], -1) @ w
                received = jax.ops.segment_sum(jax.nn.gelu(message), receivers, ROWS)
                y = y + jnp.tanh(received)
            return jnp.mean(y**2)

        grads = jax.grad(loss_of)(weights)
        return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)]

    weight = jax.ShapeDtypeStruct((2 * WIDTH, WIDTH), jnp.float32)
    ends = jax.ShapeDtypeStruct((4 * ROWS,), jnp.int32)
    bench = described(step, [weight] * LAYERS, abstract()[1], ends, ends)
    assert moved_more(bench, 0.6) < 1.25  # 1.41 with a barrier around each that gathers


def residual_loss(weights, x):
    y = x
    for up, down in weights:
        y = y + jnp.tanh(y @ up) @ down
    return jnp.mean(y**2)


def clipped_step(weights, x):
    """All updates wait for the norm of all gradients."""
    loss, grads = jax.value_and_grad(residual_loss)(weights, x)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    return jax.tree.map(lambda w, g: w - 0.1 * g / norm, weights, grads), loss


UP, DOWN, BATCH = (512, 1536), (1536, 512), (2560, 512)


def with_a_watershed(bench: Workbench) -> tuple[Planned, int]:
    """A plan that is over its pool without its watershed, and the bytes of that pool.

    The pool has half of the temporaries, or about that: whether all is placed together
    by itself depends on what each kernel needs. Of several, the one that is most over.
    """
    without = dataclasses.replace(bench.problem, has_watershed=False)
    found: list[tuple[int, Planned, int]] = []
    for share in (0.5, 0.48, 0.52, 0.46, 0.54, 0.44, 0.56, 0.42, 0.58, 0.4):
        pool = int(share * bench.unplanned.temp) - bench.profile.standing
        each = plan(bench.problem, pool, Effort(), is_packed=True)
        over = packed(without, each.schedule).peak - pool
        if each.fits and over > 0:
            found.append((over, each, pool))
    assert found, "no plan needs a watershed"
    _, planned, pool = max(found, key=lambda each: each[0])
    return planned, pool


@pytest.mark.gpu
def test_described_kernels_do_not_know_where_values_lie_on_the_shelf() -> None:
    """XLA would make a kernel for every offset that it knows."""

    def step(weights, x):
        def loss_of(weights):
            y = x
            for w, b in weights:
                y = y + jnp.tanh(y @ w + b)
            return jnp.mean(y**2)

        grads = jax.grad(loss_of)(weights)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        return jax.tree.map(lambda w, g: w - 0.1 * g / norm, weights, grads)

    width, layers = 1024, 12
    square, row = (
        jax.ShapeDtypeStruct(s, jnp.float32) for s in ((width, width), (width,))
    )
    bench = described(step, [(square, row)] * layers, square)
    assert len(bench.profile.shelved) == layers
    room = int(0.6 * bench.unplanned.temp)
    found = plan(bench.problem, room, Effort(), is_packed=True)
    text = bench.step.compile(emit(bench.profile, found.positions)).as_text()
    array = f"f32[{layers * width}]"
    bodies = re.findall(r"^%\S+ \(.*?\{\n(.*?)^\}", text, re.M | re.S)
    reading = [body for body in bodies if array in body]
    assert sum(body.count(" dynamic-slice(") for body in reading) >= layers
    assert not any(" slice(" in body for body in reading)


@pytest.mark.gpu
def test_described_what_the_peak_has_to_overwrite_is_a_kernel_of_its_own() -> None:
    """XLA makes one kernel of gelu and of what its gradient reads and overwrites."""

    def step(weights, x):
        def loss_of(weights):
            y = x
            for up, down in weights:
                y = y + jax.nn.gelu(y @ up) @ down
            return jnp.mean(y**2)

        return jax.tree.map(
            lambda w, g: w - 0.1 * g, weights, jax.grad(loss_of)(weights)
        )

    up, down = (
        jax.ShapeDtypeStruct(s, jnp.float32) for s in ((256, 1024), (1024, 256))
    )
    x = jax.ShapeDtypeStruct((ROWS, 256), jnp.float32)
    bench = described(step, [(up, down)] * 3, x)
    room = int(0.35 * bench.unplanned.temp)
    found = plan(bench.problem, room, Effort(), is_packed=True)
    temp = memory_use(bench.step.compile(emit(bench.profile, found.positions))).temp
    assert found.fits
    assert temp < 1.02 * found.size


takes_over_across_barriers = pytest.mark.skipif(
    jax.__version_info__ < (0, 12), reason="XLA:GPU left tuples where barriers were"
)


@pytest.mark.gpu
@takes_over_across_barriers
def test_described_what_is_alive_across_the_watershed_is_placed_first() -> None:
    layer = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (UP, DOWN))
    bench = described(
        clipped_step, [layer] * 12, jax.ShapeDtypeStruct(BATCH, jnp.float32)
    )
    (found, pool), temp = with_a_watershed(bench), {}
    for has_watershed in (True, False):
        problem = dataclasses.replace(bench.problem, has_watershed=has_watershed)
        profile = dataclasses.replace(bench.profile, problem=problem)
        compiled = bench.step.compile(emit(profile, found.positions))
        temp[has_watershed] = memory_use(compiled).temp
    room = pool + bench.profile.standing
    assert temp[True] < 1.001 * room < temp[False]


@pytest.mark.gpu
@takes_over_across_barriers
def test_described_plans_are_packed_nearly_as_predicted_in_one_of_two_orders() -> None:
    """In either, an array may find no gap: 3 to 6 % more. In stages it is another."""
    heads, rows, width = 16, 1024, 640

    def loss_of(weights, x):
        for qkv, out, up, down in weights:
            split = (x @ qkv).reshape(1, rows, 3, heads, -1).transpose(2, 0, 3, 1, 4)
            q, k, v = jnp.split(split, 3)
            scores = jnp.einsum("xbhqd,xbhkd->bhqk", q, k) / 5.6
            seen = jnp.tril(jnp.ones((rows, rows), bool))
            weight = jax.nn.softmax(jnp.where(seen, scores, -1e9))
            y = jnp.einsum("bhqk,xbhkd->bqhd", weight, v)
            x = x + y.reshape(1, rows, width) @ out
            x = x + jax.nn.gelu(x @ up) @ down
        return jnp.mean(x**2)

    def step(weights, x):
        grads = jax.grad(loss_of)(weights, x)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        return jax.tree.map(lambda w, g: w - 0.1 * g / norm, weights, grads)

    shapes = (width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)
    layer = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    x = jax.ShapeDtypeStruct((1, rows, width), jnp.float32)
    bench = described(step, [layer] * 8, x)
    more: dict[bool, list[float]] = {False: [], True: []}
    for share in (0.28, 0.26, 0.24):
        pool = int(share * bench.unplanned.temp) - bench.profile.standing
        found = plan(bench.problem, pool, Effort(), is_packed=True)
        predicted = found.size + bench.profile.standing
        for in_stages, found_more in more.items():
            emitted = emit(bench.profile, found.positions, in_stages)
            temp = memory_use(bench.step.compile(emitted)).temp
            found_more.append(temp / predicted)
    better = list(map(min, zip(*more.values(), strict=True)))
    # Now and then neither order finds one: 2 % more in both, for two of eight budgets.
    assert max(better) < 1.03 and mean(better) < 1.015
    assert min(map(mean, more.values())) > 1.02


@pytest.mark.gpu
@takes_over_across_barriers
def test_described_weights_are_not_copied_for_what_reads_them_still() -> None:
    """10 % more than predicted while updates ran as soon as they could."""

    def step(state, x):
        weights, moments = state
        grads = jax.grad(residual_loss)(weights, x)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
        return jax.tree.map(lambda w, m: w - 0.1 * m, weights, moments), moments

    shapes = ((1024, 4096), (4096, 1024), (2048, 1024))
    up, down, x = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    bench = described(step, [[(up, down)] * 6] * 2, x)
    pool = int(0.8 * bench.unplanned.temp) - bench.profile.standing
    found = plan(bench.problem, pool, Effort(), is_packed=True)
    compiled = bench.step.compile(emit(bench.profile, found.positions))
    predicted = found.size + bench.profile.standing
    assert memory_use(compiled).temp < 1.05 * predicted


@pytest.mark.gpu
def test_a_step_with_a_watershed_agrees_on_a_gpu() -> None:
    device = gpu()
    keys = iter(jax.random.split(jax.random.key(0), 25))
    weights = [
        tuple(jax.random.normal(next(keys), shape) / 32 for shape in (UP, DOWN))
        for _ in range(12)
    ]
    args = jax.device_put((weights, jax.random.normal(next(keys), BATCH)), device)
    step = flat_step(jax.jit(clipped_step).trace(*args), jax.tree.leaves(args))
    bench = Workbench(step)
    found, _ = with_a_watershed(bench)
    function = emit(bench.profile, found.positions)
    compiled = step.compile(function)
    assert "AllocateBuffer" in compiled.as_text()
    mine = compiled(*jax.tree.leaves(args))
    theirs = jax.tree.leaves(jax.jit(clipped_step)(*args))
    for one, other in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-3)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
