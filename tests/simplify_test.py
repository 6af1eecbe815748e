"""What XLA simplifies is simplified before barriers hide it, to the same bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coop_jax._program.flatten import flatten
from coop_jax._program.rules import Rules
from coop_jax._program.trace import Program

X = np.linspace(0.01, 1, 64, dtype=np.float32).reshape(8, 8)


def program_of(function, *args, **options) -> Program:
    return flatten(jax.make_jaxpr(function)(*args), (False,) * len(args), **options)


def names(function, *args, **options) -> list[str]:
    equations = program_of(function, *args, **options).equations
    return [e.primitive.name for e in equations]


@pytest.mark.parametrize(
    "same",
    [
        lambda x: x + 0,
        lambda x: 0 + x,
        lambda x: x - 0,
        lambda x: x * 1,
        lambda x: x / 1,
        lambda x: x + jnp.zeros_like(x),
        lambda x: x * jnp.ones((8, 8)),
        lambda x: x + jnp.square(jnp.imag(x)),
    ],
)
def test_what_changes_nothing_is_its_operand(same) -> None:
    assert names(lambda x: jnp.sin(same(x)), X) == ["sin"]
    assert names(lambda i: jax.lax.neg(i + 0), np.arange(3)) == ["neg"]


@pytest.mark.parametrize(
    "other",
    [
        lambda x: 0 - x,
        lambda x: 1 / x,
        lambda x: x * 0,
        lambda x: x + 1,
        lambda x: x[0] + jnp.zeros((8, 8)),
        lambda x: x.astype(jnp.bfloat16) + jnp.zeros((8, 8)),
    ],
)
def test_other_results_are_computed(other) -> None:
    assert len(names(lambda x: jnp.sin(other(x)), X)) > 1


def test_a_quotient_by_a_constant_is_a_product() -> None:
    program = program_of(lambda x: x / 192.0, X)
    (found,) = jax.jit(program.evaluate)([X])
    assert [e.primitive.name for e in program.equations] == ["mul"]
    np.testing.assert_array_equal(found, jax.jit(lambda x: x / 192.0)(X))


@pytest.mark.parametrize(
    "quotient",
    [
        lambda x: jnp.sum(x) / x[0, 0],
        lambda x: x / jnp.sum(x, 0),
        lambda x: x / x[0, 0],
        lambda x: x.astype(jnp.bfloat16) / 3,
        lambda x: jnp.int32(x[0, 0]) // 3,
    ],
    ids=["of a number", "by a row", "by a number", "of 16 bits", "of integers"],
)
def test_other_quotients_stay(quotient) -> None:
    assert "div" in names(quotient, X)


def test_what_the_user_names_is_left_as_it_is() -> None:
    pinned = Rules(never_recompute=("add", "div"))
    assert names(lambda x: (x + 0) / 3, X, rules=pinned) == ["add", "div"]


def test_a_norm_of_real_arrays_adds_nothing_to_their_squares() -> None:
    def norm(tree):
        squares = (jnp.square(jnp.real(x)) + jnp.square(jnp.imag(x)) for x in tree)
        return jnp.sqrt(sum(map(jnp.sum, squares)))

    tree = [X, 2 * X[0], X[:, 1]]
    program = program_of(lambda *tree: norm(tree), *tree)
    found = [e.primitive.name for e in program.equations]
    assert found.count("square") == 3 and found.count("add") == 2
    (total,) = jax.jit(program.evaluate)(tree)
    np.testing.assert_array_equal(total, jax.jit(norm)(tree))


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
