"""Products of arrays with vectors: nothing is turned around for them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from coop_jax._fitting.compile import flat_step
from coop_jax._measure import memory_use
from coop_jax._program.trace import Program

EXAMPLES = 16
ARRAY = np.random.default_rng(0).normal(size=(EXAMPLES, 96, 64)).astype(np.float32)
WEIGHTS = np.linspace(0.1, 1, EXAMPLES, dtype=np.float32)


def program(step, *args) -> Program:
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in args]
    return flat_step(jax.jit(step).trace(*shapes), shapes).program


def is_swapped(step, *args) -> bool:
    """Whether the product reads the second argument first."""
    (product,) = program(step, *args).equations
    assert product.primitive.name == "dot_general"
    return product.inputs == (1, 0)


def product(contracted, batched=((), ())):
    return lambda a, b: lax.dot_general(
        a, b, (contracted, batched), precision=("highest", "default")
    )


def test_weights_of_examples_come_before_their_gradients() -> None:
    step = product(((0,), (0,)))
    found = program(step, ARRAY, WEIGHTS)
    (equation,) = found.equations
    assert equation.inputs == (1, 0)
    assert equation.params["precision"] == (
        lax.Precision.DEFAULT,
        lax.Precision.HIGHEST,
    )
    (weighted,) = jax.jit(found.evaluate)([ARRAY, WEIGHTS])
    exact = np.tensordot(WEIGHTS.astype(np.float64), ARRAY.astype(np.float64), 1)
    np.testing.assert_allclose(weighted, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("contracted", "batched", "shapes", "swapped"),
    [
        (((0,), (0,)), ((), ()), ((4, 3, 5), (4,)), True),
        (((0, 1), (0, 1)), ((), ()), ((4, 3, 5), (4, 3)), True),
        (((1,), (1,)), ((0,), (0,)), ((2, 4, 3, 5), (2, 4)), True),
        # A matrix, which XLA:CPU multiplies from either side.
        (((0,), (0,)), ((), ()), ((4, 5), (4,)), False),
        # What is summed up is last, or in between: first is as good, or no better.
        (((2,), (0,)), ((), ()), ((3, 5, 4), (4,)), False),
        (((1,), (0,)), ((), ()), ((3, 4, 5), (4,)), False),
        # A matrix in place of the vector, whose product would have other dimensions.
        (((0,), (0,)), ((), ()), ((4, 3, 5), (4, 2)), False),
        # Nothing to turn around in a vector.
        (((0,), (0,)), ((), ()), ((4,), (4,)), False),
        # The vector comes first as it is.
        (((0,), (0,)), ((), ()), ((4,), (4, 3, 5)), False),
    ],
)
def test_only_what_would_be_turned_comes_second(
    contracted, batched, shapes, swapped
) -> None:
    a, b = (np.random.default_rng(1).normal(size=s).astype(np.float32) for s in shapes)
    step = product(contracted, batched)
    assert is_swapped(step, a, b) == swapped
    (found,) = jax.jit(program(step, a, b).evaluate)([a, b])
    np.testing.assert_allclose(found, jax.jit(step)(a, b), rtol=1e-5, atol=1e-6)


def test_gradients_per_example_are_written_once() -> None:
    """XLA's own bytes: the array behind a barrier, and no copy of it."""

    def step(array, weights):
        (array,) = lax.optimization_barrier((jnp.sin(array),))
        return jnp.tensordot(array, weights, ((0,), (0,)))

    def temporaries(function) -> int:
        return memory_use(jax.jit(function).lower(ARRAY, WEIGHTS).compile()).temp

    assert temporaries(step) >= 2 * ARRAY.nbytes
    found = program(step, ARRAY, WEIGHTS)
    assert temporaries(lambda *args: found.evaluate(args)) < 1.5 * ARRAY.nbytes


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
