"""Operations and bytes against numbers counted by hand, and against XLA's own."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.extend.random import threefry2x32_p

from coop_jax._program.cost import (
    RATES,
    DeviceRates,
    flops,
    nbytes,
    program_flops,
    work,
)
from coop_jax._program.flatten import flatten
from coop_jax._program.trace import Program


def flat(function: Callable, *shapes: Any) -> Program:
    args = [
        shape if hasattr(shape, "dtype") else jax.ShapeDtypeStruct(shape, jnp.float32)
        for shape in shapes
    ]
    return flatten(jax.jit(function).trace(*args).jaxpr, [False] * len(args))


def counted(function: Callable, *shapes: Any) -> float:
    return program_flops(flat(function, *shapes))


def test_a_dot_is_two_operations_per_product() -> None:
    assert counted(jnp.dot, (3, 5), (5, 7)) == 2 * 3 * 5 * 7

    def batched(x, y):
        return jnp.einsum("bij,bjk->bik", x, y)

    assert counted(batched, (4, 3, 5), (4, 5, 7)) == 4 * 2 * 3 * 5 * 7

    def over_two(x, y):
        return jnp.tensordot(x, y, 2)

    assert counted(over_two, (3, 5, 7), (5, 7, 2)) == 2 * 3 * 2 * 5 * 7


def test_a_pool_is_counted_by_its_windows() -> None:
    def pool(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (2,), (1,), "VALID")

    assert counted(pool, (5,)) == 4 * 2

    def gradient(x):
        return jax.vjp(pool, x)[1](jnp.ones(4))[0]

    # In a window: a comparison and two choices, and of each share one of both.
    # The shares are added once in each element.
    assert counted(gradient, (5,)) == 4 * (3 + 4) + 5


@pytest.mark.parametrize(
    ("options", "kernel", "products"),
    [
        # Eight outputs along each of two images, three taps, five channels in, six out.
        ({"window_strides": (1,)}, (6, 5, 3), (2 * 6 * 8) * 5 * 3),
        ({"window_strides": (2,)}, (6, 5, 3), (2 * 6 * 4) * 5 * 3),
        # Each group of channels sees its own kernels only.
        (
            {"window_strides": (1,), "feature_group_count": 5},
            (10, 1, 3),
            (2 * 10 * 8) * 3,
        ),
        # Of a dilated image every other tap sees zeros.
        (
            {"window_strides": (1,), "lhs_dilation": (2,)},
            (6, 5, 3),
            (2 * 6 * 15) * 5 * 3 / 2,
        ),
    ],
)
def test_a_convolution_is_two_operations_per_tap(
    options: dict[str, Any], kernel: tuple[int, ...], products: float
) -> None:
    def convolve(image, kernel):
        return lax.conv_general_dilated(
            image,
            kernel,
            padding=((1, 1),),
            dimension_numbers=("NCH", "OIH", "NCH"),
            **options,
        )

    assert counted(convolve, (2, 5, 8), kernel) == 2 * products


def test_elementwise_is_one_operation_and_a_transcendental_eight() -> None:
    assert counted(lambda x, y: x * y - x, (4, 5), (4, 5)) == 2 * 20
    assert counted(jnp.tanh, (4, 5)) == 8 * 20
    assert counted(lambda x: jnp.sum(x, axis=0), (4, 5)) == 20
    assert counted(lambda x, y: jnp.where(x > y, x, y), (4, 5), (4, 5)) == 2 * 20


def test_moving_bytes_is_no_operation() -> None:
    assert counted(lambda x: x.T.reshape(-1)[2:], (4, 5)) == 0
    assert counted(lambda x: jnp.concatenate([x, x]), (4, 5)) == 0
    assert counted(lambda x: x.astype(jnp.bfloat16), (4, 5)) == 0
    assert counted(lambda x: lax.optimization_barrier(x), (4, 5)) == 0


def test_a_scan_counts_every_trip() -> None:
    def body(x):
        return lax.scan(lambda c, _: (c @ c * 2, None), x, length=7)[0]

    assert counted(body, (4, 4)) == 7 * (2 * 4**3 + 16)

    def nested(x):
        return lax.scan(lambda c, _: (body(c), None), x, length=3)[0]

    assert counted(nested, (4, 4)) == 3 * 7 * (2 * 4**3 + 16)


def test_a_while_loop_counts_one_trip_and_its_condition() -> None:
    def looped(x):
        return lax.while_loop(lambda x: x[0, 0] < 9, lambda x: x @ x, x)

    assert counted(looped, (4, 4)) == 2 * 4**3 + 1


def test_a_branch_costs_what_its_dearest_does() -> None:
    def branch(p, x):
        return lax.cond(p, lambda x: x + 1, lambda x: x @ x, x)

    predicate = jax.ShapeDtypeStruct((), jnp.bool)
    program = flat(branch, predicate, (4, 4))
    (cond,) = [e for e in program.equations if e.primitive.name == "cond"]
    assert flops(cond, program.avals) == 2 * 4**3


SLOW = DeviceRates(1.0, 1.0, 0.0, weights={"random": 30.0, "grouped": 150.0})


def worked(rates: DeviceRates, function: Callable, *shapes: Any) -> float:
    program = flat(function, *shapes)
    return sum(work(e, program.avals, rates) for e in program.equations)


@pytest.mark.skipif(not hasattr(lax, "polynomial"), reason="not in this JAX")
def test_a_polynomial_takes_a_product_and_a_sum_per_coefficient_but_the_first() -> None:
    def cubic(x):
        return lax.polynomial(x, [1.0, 2.0, 3.0, 4.0])

    assert counted(cubic, (5, 7)) == 2 * 3 * (5 * 7)


@pytest.mark.parametrize(("groups", "weight"), [(1, 1), (2, 150 / 3), (6, 150)])
def test_a_grouped_convolution_works_as_long_as_its_groups_are_narrow(
    groups: int, weight: float
) -> None:
    def convolve(image, kernel):
        return lax.conv_general_dilated(
            image, kernel, (1,), "SAME", feature_group_count=groups
        )

    shapes = (2, 6, 8), (6, 6 // groups, 3)
    assert counted(convolve, *shapes) == 2 * (2 * 6 * 8) * 3 * 6 / groups
    assert worked(SLOW, convolve, *shapes) == weight * counted(convolve, *shapes)
    plain = DeviceRates(1.0, 1.0, 0.0)
    assert worked(plain, convolve, *shapes) == counted(convolve, *shapes)


def test_random_words_are_slow_inside_of_loops_and_branches_too() -> None:
    def words(key):
        return jax.random.bits(key, (4, 5))

    def looped(key):
        return lax.scan(lambda c, _: (c, words(c)), key, length=3)[1]

    def chosen(p, key):
        return lax.cond(p, words, lambda key: jnp.zeros((4, 5), jnp.uint32), key)

    key = jax.eval_shape(lambda: jax.random.key(0))
    predicate = jax.ShapeDtypeStruct((), jnp.bool)
    assert counted(words, key) == 100 * 20
    assert worked(SLOW, words, key) == 30 * 100 * 20
    assert worked(SLOW, looped, key) == 3 * 30 * 100 * 20
    assert worked(SLOW, chosen, predicate, key) >= 30 * 100 * 20


def test_random_words_cost_the_same_however_they_are_drawn() -> None:
    def words(key, number):
        high, low = threefry2x32_p.bind(key[0], key[1], jnp.zeros_like(number), number)
        return high ^ low

    def numbered(key):
        return words(key, lax.iota(jnp.uint32, 20).reshape(4, 5) + key[0])

    key = jax.ShapeDtypeStruct((2,), jnp.uint32)
    number = jax.ShapeDtypeStruct((4, 5), jnp.uint32)
    assert counted(numbered, key) == 100 * 20
    assert worked(SLOW, words, key, number) == (30 * 98 + 1) * 20


def test_repeats_count() -> None:
    program = flat(lambda x, y: x @ y + 1, (3, 5), (5, 7))
    assert program_flops(program, [0, 0, 1]) == 2 * (2 * 3 * 5 * 7) + 3 * 7
    assert program_flops(program, []) == 0


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (jnp.float32, 4),
        (jnp.bfloat16, 2),
        (jnp.bool, 1),
        (jnp.int8, 1),
        (jnp.complex64, 8),
    ],
)
def test_bytes_are_elements_times_their_size(dtype: Any, size: int) -> None:
    assert nbytes(jax.ShapeDtypeStruct((3, 5), dtype)) == 15 * size
    assert nbytes(jax.ShapeDtypeStruct((), dtype)) == size
    assert nbytes(jax.ShapeDtypeStruct((3, 0), dtype)) == 0


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_a_key_is_as_large_as_its_words(impl: str) -> None:
    keys = jax.random.split(jax.random.key(0, impl=impl), 6)
    assert nbytes(jax.typeof(keys)) == jax.random.key_data(keys).nbytes


def test_what_is_no_array_has_no_bytes() -> None:
    assert nbytes(object()) == 0


def _mlp_step(weights, x, y):
    def loss(weights):
        out = x
        for weight in weights:
            out = jax.nn.relu(out @ weight)
        return jnp.mean((out - y) ** 2)

    value, grads = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value


def test_a_training_step_counts_within_two_percent_of_xla() -> None:
    def struct(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    weights = [struct(64, 128), struct(128, 128), struct(128, 32)]
    args = (weights, struct(256, 64), struct(256, 32))
    traced = jax.jit(_mlp_step).trace(*args)
    program = flatten(traced.jaxpr, [False] * 5)
    xla: Any = traced.lower().compile().cost_analysis()
    assert math.isclose(program_flops(program), xla["flops"], rel_tol=0.02)


def test_every_platform_has_rates() -> None:
    for platform in ("cpu", "gpu", "tpu"):
        rates = RATES[platform]
        assert rates.flops > rates.bytes > 0 < rates.launch


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
