"""Random bits in line and in bodies of loops: the bits of JAX, without its arrays."""

import re

import jax
import jax.extend.core as jexc
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from coop_jax._loops.random_bits import with_own_counters
from coop_jax._measure import memory_use
from coop_jax._program.flatten import flatten
from coop_jax._program.threefry import in_line
from coop_jax._program.trace import Program

KEY = jax.random.key(7)
SHAPES = [(), (1,), (5,), (3, 4), (2, 3, 5), (4, 1, 2, 3)]


def body(function, *args) -> Program:
    return flatten(jax.make_jaxpr(function)(*args), (False,) * len(args))


def drawn(program: Program) -> int:
    return sum(equation.instead is not None for equation in program.equations)


@pytest.mark.parametrize("drawing", [with_own_counters, in_line])
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_are_those_of_jax(shape: tuple[int, ...], drawing) -> None:
    program = drawing(body(lambda k: jax.random.bits(k, shape), KEY))
    assert drawn(program) == 1
    (bits,) = jax.jit(program.evaluate)([KEY])
    np.testing.assert_array_equal(bits, jax.random.bits(KEY, shape))


def test_a_mask_in_line_is_one_kernel_and_takes_its_own_bytes() -> None:
    def mask(key):
        return jax.random.bernoulli(key, 0.3, (512, 512))

    program = in_line(body(mask, KEY))
    compiled = jax.jit(program.evaluate).lower([KEY]).compile()
    assert len(re.findall(r" fusion\(", compiled.as_text() or "")) == 1
    assert memory_use(compiled).temp < 512 * 512
    np.testing.assert_array_equal(compiled([KEY])[0], mask(KEY))


def test_numbers_of_words_in_line_are_no_array_that_all_draws_share() -> None:
    """Places along one dimension are the most that does not depend on the key."""
    program = in_line(body(lambda k: jax.random.bits(k, (8, 4, 16)), KEY))
    equations = jax.make_jaxpr(program.evaluate)([KEY]).jaxpr
    of_key, beside = set(equations.invars), []
    for e in equations.eqns:
        if of_key.isdisjoint(v for v in e.invars if not isinstance(v, jexc.Literal)):
            beside.append(e.primitive.name)
        else:
            of_key.update(e.outvars)
    assert sorted(beside) == [*["iota"] * 3, *["mul"] * 3]


@pytest.mark.parametrize(
    ("shape", "in_words"), [((64, 256), True), ((64, 1), False), ((), False)]
)
def test_what_is_spread_over_more_is_not_drawn_in_line(shape, in_words) -> None:
    """As whole samples are dropped: XLA would draw words for each of their elements."""

    def drop(key, x):
        return jnp.where(jax.random.bernoulli(key, 0.3, shape), x, 0)

    program = in_line(body(drop, KEY, np.ones((64, 256), np.float32)))
    assert drawn(program) == in_words


def test_what_is_made_of_bits_is_the_same() -> None:
    def draw(key):
        one, other = jax.random.split(key)
        return jax.random.normal(one, (7, 9)), jax.random.bernoulli(other, 0.3, (50,))

    program = with_own_counters(body(draw, KEY))
    assert drawn(program) == 2
    for found, wanted in zip(
        jax.jit(program.evaluate)([KEY]), jax.jit(draw)(KEY), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("draw", "key"),
    [
        (lambda k: jax.random.bits(k, (4,), np.uint8), KEY),
        (lambda k: jax.random.bits(k, (4,)), jax.random.key(7, impl="rbg")),
        (lambda k: jax.vmap(jax.random.bits)(k), jax.random.split(KEY, 3)),
        (lambda k: jax.random.bits(k, (0,)), KEY),
    ],
    ids=["of 8 bits", "by another generator", "of several keys", "none"],
)
def test_other_bits_are_left_to_jax(draw, key) -> None:
    program = with_own_counters(body(draw, key))
    assert drawn(program) == 0
    (bits,) = jax.jit(program.evaluate)([key])
    np.testing.assert_array_equal(bits, draw(key))


def test_bits_of_a_key_for_each_device_are_left_to_jax() -> None:
    mesh = jax.make_mesh((1,), ("d",))
    numbers = []

    def mine(key):
        own = jax.random.fold_in(key, lax.axis_index("d"))
        program = body(lambda k: jax.random.bits(k, (4,)), own)
        numbers.append(drawn(with_own_counters(program)))
        return jax.random.bits(own, (4,))

    jax.jit(jax.shard_map(mine, mesh=mesh, in_specs=P(), out_specs=P("d")))(KEY)
    assert set(numbers) == {0}


def test_bits_of_the_older_counters_are_left_to_jax() -> None:
    with jax.threefry_partitionable(False):
        program = body(lambda k: jax.random.bits(k, (4,)), KEY)
    assert drawn(with_own_counters(program)) == 0


def test_counters_do_not_stand_through_the_loop() -> None:
    """XLA carries them through the loop as it is; only sums are carried else."""
    size = 4096

    def draw(key):
        return jax.random.bits(key, (size,))

    program = with_own_counters(body(draw, KEY))

    def carried(draw) -> int:
        def step(total, key):
            return total + draw(key), ()

        def loop(keys):
            return lax.scan(step, jnp.zeros(size, jnp.uint32), keys)[0]

        hlo = jax.jit(loop).lower(jax.random.split(KEY, 8)).compile().as_text() or ""
        (outer,) = re.findall(r"= \((.*u32\[8,2\].*)\) while\(", hlo)
        return outer.count(f"u32[{size}]")

    assert carried(draw) > 1
    assert carried(lambda key: program.evaluate([key])[0]) == 1


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
