"""What only products read lies, behind barriers, in the order in which they take it."""

import dataclasses
import math
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from coop_jax._fitting.compile import flat_step
from coop_jax._fitting.emit import emit
from coop_jax._fitting.operands import (
    Lying,
    Order,
    lying_for_products,
    with_operands_laid,
)
from coop_jax._fitting.solve import Workbench
from coop_jax._program.profile import profile
from coop_jax._program.trace import Program
from coop_jax._program.units import Graph

BATCH, LENGTH, HEADS, WIDTH = 2, 6, 4, 3


def program(step, *shapes) -> Program:
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return flat_step(jax.jit(step).trace(*args), args).program


def lying(step, *shapes) -> Lying:
    """How what the first equation makes is to lie."""
    found = program(step, *shapes)
    return lying_for_products(Graph(found), found.equations[0].outputs[0])


def scores(query, key):
    return jnp.einsum("bqhd,bkhd->bhqk", query, key)


def test_heads_come_before_the_positions_that_lie_between_them() -> None:
    whole = (BATCH, LENGTH, HEADS, WIDTH)
    order = lying(lambda q, k: scores(jnp.sin(q), k), whole, whole).order
    assert order is not None
    assert order == Order(whole, whole, (0, 2, 1, 3))
    array = jnp.arange(math.prod(whole)).reshape(whole)
    np.testing.assert_array_equal(order.turn(array), array.transpose(0, 2, 1, 3))
    np.testing.assert_array_equal(order.turn_back(order.turn(array)), array)


def test_an_array_without_elements_lies_as_it_is_made() -> None:
    whole = (0, LENGTH, HEADS, WIDTH)
    assert lying(lambda q, k: scores(jnp.sin(q), k), whole, whole).order is None


def test_heads_are_found_in_what_is_split_into_them_later() -> None:
    flat, whole = (BATCH, LENGTH, HEADS * WIDTH), (BATCH, LENGTH, HEADS, WIDTH)
    found = lying(lambda q, k: scores(jnp.sin(q).reshape(whole), k), flat, whole)
    assert found.order == Order(flat, whole, (0, 2, 1, 3))


def test_what_attention_makes_lies_as_the_projection_after_it_takes_it() -> None:
    whole, weight = (BATCH, HEADS, WIDTH, LENGTH), (HEADS * WIDTH, 5)

    def step(values, weight, gradient):
        rows = jnp.sin(values).transpose(0, 3, 1, 2).reshape(BATCH, LENGTH, -1)
        return rows @ weight, jnp.einsum("btc,bto->co", rows, gradient)

    found = lying(step, whole, weight, (BATCH, LENGTH, 5))
    assert found.order == Order(whole, whole, (0, 3, 1, 2))


@pytest.mark.parametrize(
    "read",
    [
        lambda q, k: (scores(q, k), jnp.cos(q)),
        lambda q, k: (scores(q, k), q),
        # No order is for a batch of heads and for one of positions.
        lambda q, k: (scores(q, k), jnp.einsum("bqhd,bqhe->bqde", q, k)),
    ],
    ids=("read by others", "returned", "no order for all"),
)
def test_what_others_read_too_lies_as_it_is_made(read) -> None:
    whole = (BATCH, LENGTH, HEADS, WIDTH)
    assert lying(lambda q, k: read(jnp.sin(q), k), whole, whole).order is None


def test_what_lies_as_products_take_it_stays_and_is_read_from_either_side() -> None:
    def step(probabilities, values):
        p = jnp.sin(probabilities)
        mixed = jnp.einsum("bhqk,bhkd->bhqd", p, values)
        return mixed, jnp.einsum("bhqk,bhqd->bhkd", p, values)

    square, values = (BATCH, HEADS, LENGTH, LENGTH), (BATCH, HEADS, LENGTH, WIDTH)
    found = lying(step, square, values)
    assert found.order is None
    (place,) = found.summed_first
    product = program(step, square, values).equations[place[0]]
    (summed, _), _ = product.params["dimension_numbers"]
    assert product.primitive.name == "dot_general"
    assert summed == (2,)


def gradient(read):
    """Of a weight: what a product makes, and what reads it."""
    return lambda x, y, z: read(jnp.einsum("ak,kbc->abc", x, y), z)


ROWS, COLUMNS = (LENGTH, BATCH), (BATCH, HEADS, WIDTH)


@pytest.mark.parametrize(
    "read",
    [
        lambda p, z: p.transpose(1, 2, 0) + z,
        lambda p, z: p.transpose(1, 2, 0),
        lambda p, z: (p.transpose(1, 2, 0) + z, p.transpose(1, 2, 0).sum(0)),
        lambda p, z: p.reshape(LENGTH, HEADS * WIDTH).T * z.reshape(-1, LENGTH),
        lambda p, z: (p.transpose(1, 2, 0) + z, jnp.einsum("abc,bcd->ad", p, z)),
    ],
    ids=("added up", "returned", "read twice", "viewed", "read by a product"),
)
def test_what_a_product_makes_it_writes_as_all_that_reads_it_turns_it(read) -> None:
    found = lying(gradient(read), ROWS, COLUMNS, (HEADS, WIDTH, LENGTH)).order
    assert found is not None
    shape = (LENGTH, HEADS, WIDTH)
    assert found.shape == shape
    array = jnp.arange(math.prod(shape)).reshape(shape)
    lies = found.turn(array).reshape(HEADS, WIDTH, LENGTH)
    np.testing.assert_array_equal(lies, array.transpose(1, 2, 0))


@pytest.mark.parametrize(
    "step",
    [
        gradient(lambda p, z: (p.transpose(1, 2, 0) + z, 2 * p)),
        gradient(lambda p, z: (p.transpose(1, 2, 0) + z, p)),
        gradient(lambda p, z: p.transpose(2, 0, 1) + z.transpose(1, 2, 0)),
        lambda x, y, z: jnp.sin(x).T + y[:, 0, 0, None] + z[0, 0],
    ],
    ids=("read as it is", "returned as it is", "turned otherwise", "no product"),
)
def test_else_it_lies_as_it_is_made(step) -> None:
    assert lying(step, ROWS, COLUMNS, (HEADS, WIDTH, LENGTH)).order is None


def test_a_sum_of_gradients_has_no_transposes_behind_barriers() -> None:
    def step(x, *gradients):
        return sum((g.T @ x).T for g in gradients)

    rng = np.random.default_rng(0)
    flat = [
        rng.integers(-3, 4, (8, width)).astype(np.float32) for width in (50, 70, 70, 70)
    ]
    found = profile(program(step, *(array.shape for array in flat)), [], 0, "gpu")
    # Products of one array are in parts of their own.
    planned = emit(found, [(op,) for op in found.problem.program_order])
    equations = jax.make_jaxpr(planned)(*flat).eqns
    barriers = [e for e in equations if e.primitive.name == "optimization_barrier"]
    kinds = {v.aval.str_short() for barrier in barriers for v in barrier.invars}
    assert "float32[50,70]" in kinds
    assert "float32[70,50]" not in kinds
    np.testing.assert_array_equal(jax.jit(planned)(*flat)[0], step(*flat))


def test_a_view_that_cuts_across_dimensions_is_not_looked_through() -> None:
    whole, other = (4, 6), (3, 2, 4)
    found = lying(lambda x, y: jnp.sin(x).reshape(3, 8) @ y.reshape(8, 3), whole, other)
    assert found.order is None
    assert not found.summed_first


def random_reader(rng: random.Random, shape: tuple[int, ...]):
    """A product of a random view of an array of this shape, turned, with another."""
    sizes = [*shape]
    if rng.random() < 0.7:
        k = rng.randrange(len(sizes))
        cut = rng.choice([n for n in (1, 2, 3, 4, 6) if sizes[k] % n == 0])
        sizes[k : k + 1] = [cut, sizes[k] // cut]
    if rng.random() < 0.4:
        k = rng.randrange(len(sizes) - 1)
        sizes[k : k + 2] = [sizes[k] * sizes[k + 1]]
    turned = rng.sample(range(len(sizes)), len(sizes))
    given = [sizes[k] for k in turned]
    roles = [rng.choice(("batch", "summed", "rest")) for _ in given]
    mine = {
        r: [k for k, role in enumerate(roles) if role == r] for r in ("batch", "summed")
    }
    shared = mine["batch"] + mine["summed"]
    other = [5, *(given[k] for k in shared)]
    theirs = {r: [1 + shared.index(k) for k in mine[r]] for r in mine}
    sides = (mine["summed"], theirs["summed"]), (mine["batch"], theirs["batch"])

    def read(x, y):
        return lax.dot_general(x.reshape(sizes).transpose(turned), y, sides)

    return read, tuple(other)


@pytest.mark.parametrize("seed", range(40))
def test_products_of_random_views_are_the_same_and_orders_turn_back(seed) -> None:
    rng = random.Random(seed)
    shape = tuple(rng.choice((1, 2, 4, 6, 12)) for _ in range(rng.randint(2, 4)))
    readers = [random_reader(rng, shape) for _ in range(rng.randint(1, 3))]

    def step(x, *others):
        made = jnp.sin(x)
        return [read(made, y) for (read, _), y in zip(readers, others, strict=True)]

    shapes = [shape, *(other for _, other in readers)]
    found = program(step, *shapes)
    laid, orders = with_operands_laid(profile(found, [], 0, "gpu"))
    draw = np.random.default_rng(seed)
    values = [draw.integers(-3, 4, each).astype(np.float32) for each in shapes]
    # Of whole numbers, so in whatever order they are summed.
    values[0] = np.arcsin(np.sign(values[0])).astype(np.float32)
    for mine, plain in zip(
        laid.program.evaluate(values), found.evaluate(values), strict=True
    ):
        np.testing.assert_allclose(mine, plain, rtol=1e-5, atol=1e-5)
    for v, order in orders.items():
        array = jnp.arange(math.prod(order.shape)).reshape(order.shape)
        assert order.shape == found.avals[v].shape
        np.testing.assert_array_equal(order.turn_back(order.turn(array)), array)


def test_random_views_come_in_other_orders_too() -> None:
    found = 0
    for seed in range(40):
        rng = random.Random(seed)
        read, other = random_reader(rng, (2, 4, 6))
        found += (
            lying(lambda x, y, r=read: r(jnp.sin(x), y), (2, 4, 6), other).order
            is not None
        )
    assert 5 < found < 35


def attention(weights, x):
    """A step with attention by heads, all from one product."""

    def loss_of(weights):
        y = x
        for into, out in weights:
            made = jnp.split(y @ into, 3, -1)
            q, k, v = (each.reshape(*y.shape[:2], HEADS, -1) for each in made)
            mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores(q, k)), v)
            y = y + mixed.reshape(y.shape) @ out
        return jnp.mean(y**2)

    grads = jax.grad(loss_of)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads)


def test_products_compute_the_same_of_operands_as_they_lie() -> None:
    keys = jax.random.split(jax.random.key(0), 7)
    weights = [
        (jax.random.normal(a, (32, 96)) / 6, jax.random.normal(b, (32, 32)) / 6)
        for a, b in zip(keys[:3], keys[3:6], strict=True)
    ]
    x = jax.random.normal(keys[6], (8, 64, 32))
    traced = jax.jit(attention).trace(weights, x)
    bench = Workbench(flat_step(traced, jax.tree.leaves((weights, x))))
    profile = dataclasses.replace(bench.profile, platform="gpu")
    laid, orders = with_operands_laid(profile)
    assert len(orders) >= 3 * len(weights)
    changed = [e for e in laid.program.equations if e.instead is not None]
    assert len(changed) == 6 * len(weights)  # two products of attention, two for each
    home = [(op,) for op in profile.problem.program_order]
    flat = jax.tree.leaves((weights, x))
    found = jax.jit(emit(profile, home))(*flat)
    with jax.enable_x64(True):
        wide = [np.asarray(leaf, np.float64) for leaf in flat]
        exact = attention(*jax.tree.unflatten(jax.tree.structure((weights, x)), wide))
    for mine, theirs in zip(found, jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_no_order_is_asked_of_what_several_devices_hold_parts_of() -> None:
    shapes = (BATCH, LENGTH, HEADS, WIDTH), (BATCH, LENGTH, HEADS, WIDTH)
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    step = jax.jit(lambda q, k: scores(jnp.sin(q), k))
    profile = Workbench(flat_step(step.trace(*args), args)).profile
    on_gpu = dataclasses.replace(profile, platform="gpu")
    assert with_operands_laid(profile) == (profile, {})
    split = dataclasses.replace(on_gpu.program, partitions=2)
    on_two = dataclasses.replace(on_gpu, program=split)
    assert with_operands_laid(on_two) == (on_two, {})


def test_a_product_keeps_what_its_user_asked_of_it() -> None:
    def step(a, b):
        return lax.dot_general(
            jnp.sin(a),
            b,
            (((1,), (3,)), ((2,), (0,))),
            precision=("highest", "default"),
            preferred_element_type=jnp.float64,
        )

    with jax.enable_x64(True):
        shapes = (5, 6, 4), (4, 2, 3, 6)
        args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        profile = Workbench(flat_step(jax.jit(step).trace(*args), args)).profile
        laid, _ = with_operands_laid(dataclasses.replace(profile, platform="gpu"))
        (product,) = (
            e for e in laid.program.equations if e.primitive.name == "dot_general"
        )

        def run(a, b):
            return product.bind(a, b)[0]

        made, result = jax.make_jaxpr(run)(*args), jax.eval_shape(run, *args)
    (emitted,) = (e for e in made.eqns if e.primitive.name == "dot_general")
    assert emitted.params["precision"] == (
        lax.Precision.HIGHEST,
        lax.Precision.DEFAULT,
    )
    assert result.dtype == jnp.float64
    assert emitted.params["dimension_numbers"][1] == ((0,), (0,))


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
