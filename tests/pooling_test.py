"""Gradients of pooling: XLA's own, to the bit where no element has two windows."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jax import lax

import coop_jax
from coop_jax._fitting.compile import flat_step
from coop_jax._measure import measure
from coop_jax._program.pooling import pool_gradient
from coop_jax._program.profile import profile
from coop_jax._program.scopes import scope

INF, NAN = np.inf, np.nan
SAME = ((0, 0), (1, 1), (1, 1), (0, 0))
VALID = ((0, 0),) * 4


def pooled(x, window, strides, padding, is_max=True):
    around = np.array(-INF if is_max else INF, x.dtype)
    choose = lax.max if is_max else lax.min
    return lax.reduce_window(x, around, choose, window, strides, padding)


def by_windows(x, source, window, strides, padding, is_max=True):
    return pool_gradient(
        source,
        x,
        select_prim=lax.ge_p if is_max else lax.le_p,
        window_dimensions=window,
        window_strides=strides,
        padding=padding,
    )


def by_xla(x, source, *pool):
    return jax.vjp(lambda x: pooled(x, *pool), x)[1](source)[0]


def test_each_window_passes_its_gradient_to_its_first_largest_element() -> None:
    x, source = jnp.array([1.0, 3.0, 2.0, 2.0]), jnp.array([10.0, 20.0, 30.0])
    found = by_windows(x, source, (2,), (1,), [(0, 0)])
    assert found.tolist() == [0, 30, 30, 0]


def test_around_the_operand_is_the_least_value_there_is() -> None:
    source = jnp.array([10.0, 20.0, 30.0])
    found = by_windows(jnp.array([-1.0, -3.0, -5.0]), source, (3,), (1,), [(1, 1)])
    assert found.tolist() == [30, 30, 0]
    # The first window's first: nothing inside is larger.
    found = by_windows(jnp.array([-INF, -INF, -1.0]), source, (3,), (1,), [(1, 1)])
    assert found.tolist() == [0, 0, 50]


def test_a_type_without_infinities_has_its_least_value_around() -> None:
    x = jnp.array([1.0, 5.0, 2.0, 2.0], jnp.float8_e4m3fn)
    source = jnp.arange(1.0, 6.0, dtype=x.dtype)
    found = by_windows(x, source, (2,), (1,), [(1, 1)])
    assert found.astype(jnp.float32).tolist() == [1, 5, 4, 5]


def test_of_no_windows_nothing_comes_back() -> None:
    found = by_windows(jnp.ones((2, 1)), jnp.ones((2, 0)), (1, 2), (1, 2), VALID[:2])
    assert found.tolist() == [[0], [0]]


@pytest.mark.parametrize(("size", "stride"), [(4, 4), (4, 5), (7, 7)])
def test_large_windows_apart_have_the_gradient_that_xla_gives_them(size, stride):
    x = jnp.round(4 * jax.random.normal(jax.random.key(0), (2, 23, 30, 3)))
    pool = (1, size, size, 1), (1, stride, stride, 1), SAME
    windows = jax.eval_shape(lambda x: pooled(x, *pool), x).shape
    source = jax.random.normal(jax.random.key(1), windows)
    np.testing.assert_array_equal(
        by_windows(x, source, *pool), by_xla(x, source, *pool)
    )


@st.composite
def pools(draw: Callable) -> tuple[Any, ...]:
    """An operand, a gradient of whole numbers, and how the windows lie."""
    rank = draw(st.integers(1, 3))
    window = draw(st.tuples(*[st.integers(1, 4)] * rank))
    strides = draw(st.tuples(*[st.integers(1, 3)] * rank))
    padding = tuple((draw(st.integers(0, n)), draw(st.integers(0, n))) for n in window)
    shape = tuple(draw(st.integers(1, 7)) for _ in window)
    elements = st.sampled_from([-INF, INF, NAN, *range(-3, 4)])
    count = math.prod(shape)
    x = draw(st.lists(elements, min_size=count, max_size=count))
    dtype = draw(st.sampled_from([np.float32, jnp.bfloat16, np.float16]))
    x = jnp.array(np.array(x).reshape(shape), dtype)
    pool = (window, strides, padding, draw(st.booleans()))
    windows = jax.eval_shape(lambda x: pooled(x, *pool), x).shape
    source = jnp.arange(1, math.prod(windows) + 1, dtype=dtype) % 8
    return x, source.reshape(windows), pool


@settings(max_examples=150, deadline=None, phases=[Phase.generate], derandomize=True)
@given(pools())
def test_any_pool_has_the_gradient_that_xla_gives_it(case: tuple[Any, ...]) -> None:
    x, source, pool = case

    @jax.jit
    def both(x, source):
        return by_windows(x, source, *pool), by_xla(x, source, *pool)

    # Whole numbers add up to the same in any order.
    np.testing.assert_array_equal(*both(x, source))


@pytest.mark.parametrize(
    ("size", "stride", "padding"), [(2, 2, VALID), (3, 2, SAME), (3, 1, SAME)]
)
def test_it_takes_a_quarter_of_the_bytes_of_xlas(size, stride, padding) -> None:
    x = jax.ShapeDtypeStruct((4, 32, 32, 64), jnp.float32)
    pool = (1, size, size, 1), (1, stride, stride, 1), padding
    source = jax.eval_shape(lambda x: pooled(x, *pool), x)
    own = measure(lambda x, g: by_windows(x, g, *pool), x, source)
    xla = measure(lambda x, g: by_xla(x, g, *pool), x, source)
    assert own.temp <= xla.temp / 4


def images(ws: list[jax.Array], x: jax.Array) -> jax.Array:
    for w in ws:
        x = lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = pooled(jax.nn.relu(x), (1, 3, 3, 1), (1, 2, 2, 1), SAME)
    return jnp.mean(x**2)


def step(ws: list[jax.Array], x: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    loss, grads = jax.value_and_grad(images)(ws, x)
    return [w - 0.1 * g for w, g in zip(ws, grads, strict=True)], loss


def accumulated(ws: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    def add(total, x):
        grads = jax.grad(images)(ws, x)
        return jax.tree.map(jnp.add, total, grads), None

    total, _ = lax.scan(
        add, jax.tree.map(jnp.zeros_like, ws), x.reshape(2, 4, 64, 64, 3)
    )
    return [w - 0.1 * g for w, g in zip(ws, total, strict=True)]


@pytest.mark.parametrize("train", [step, accumulated])
def test_a_step_with_pools_takes_less_and_computes_the_same(train: Callable) -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    ws = [0.1 * jax.random.normal(keys[0], (3, 3, 3, 16))]
    ws.append(0.1 * jax.random.normal(keys[1], (3, 3, 16, 16)))
    x = jax.random.normal(keys[2], (8, 64, 64, 3))
    planned = coop_jax.remat(train, 0.5, progress=False)
    plan = planned.plan(ws, x)
    # Without a pool's arrays of indices, nothing has to be computed again.
    assert plan.measured.total <= 0.5 * plan.unplanned.total
    assert plan.flops <= 1.0
    for found, expected in zip(
        jax.tree.leaves(planned(ws, x)),
        jax.tree.leaves(jax.jit(train)(ws, x)),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def one_pool(w: jax.Array, x: jax.Array, padding: Any) -> jax.Array:
    def loss(w: jax.Array) -> jax.Array:
        y = jnp.sin(jnp.einsum("...i,ij->...j", x, w))
        return jnp.sum(pooled(y, (1, 2, 2, 1), (1, 2, 2, 1), padding) ** 2)

    return w - 0.1 * jax.grad(loss)(w)


ONE = (jnp.ones((16, 16)), jnp.ones((8, 64, 64, 16)))


@pytest.mark.parametrize("padding", [VALID, SAME])
def test_what_is_pooled_is_gone_when_its_gradient_is_written(padding: Any) -> None:
    planned = coop_jax.remat(partial(one_pool, padding=padding), "min", progress=False)
    plan = planned.plan(*ONE)
    assert plan.predicted == pytest.approx(plan.measured.total, rel=0.03)


@pytest.mark.parametrize("padding", [VALID, SAME])
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_its_bytes_are_free_unless_a_padded_copy_is_written(platform, padding) -> None:
    traced = jax.jit(partial(one_pool, padding=padding)).trace(*ONE)
    step = flat_step(traced, ONE)
    program = step.program
    _, buffers = step.compile_with_buffers(lambda *v: program.evaluate(v, scope))
    problem = profile(program, buffers, 0, platform).problem
    by_name = {op.name: op for op in problem.ops}
    gradient, sin = by_name["select_and_scatter_add"], by_name["sin"]
    is_copied = platform == "cpu" and padding == SAME
    pair = (sin.outputs[0], gradient.outputs[0])
    assert gradient.in_place == (() if is_copied else (pair,))


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
