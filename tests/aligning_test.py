"""Products padded as XLA:GPU pads them: the same numbers in other sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coop_jax._fitting.compile import flat_step
from coop_jax._program.aligning import aligned
from coop_jax._program.trace import Program

WORDS = 1029
"""Padded to 1032."""


def program(step, *args) -> Program:
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in args]
    return flat_step(jax.jit(step).trace(*shapes), shapes).program


def array(seed: int, *shape: int, dtype=jnp.bfloat16) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


def shapes(found: Program, name: str) -> list[tuple[int, ...]]:
    return [
        found.avals[e.outputs[0]].shape
        for e in found.equations
        if e.primitive.name == name
    ]


def tied_head(hidden, table, targets):
    def loss(hidden, table):
        logits = (hidden @ table.T).astype(jnp.float32)
        chosen = jnp.take_along_axis(logits, targets[:, None], 1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=1) - chosen)

    return jax.value_and_grad(loss, (0, 1))(hidden, table)


def test_a_product_is_of_padded_operands_and_cut() -> None:
    x, w = array(0, 16, 32), array(1, 32, WORDS)
    before = program(jnp.matmul, x, w)
    after = aligned(before)
    names = [e.primitive.name for e in after.equations]
    assert names == ["pad", "dot_general", "slice"]
    assert shapes(after, "pad") == [(32, 1032)]
    assert shapes(after, "dot_general") == [(16, 1032)]
    assert shapes(after, "slice") == [(16, WORDS)]
    np.testing.assert_array_equal(before.evaluate([x, w])[0], after.evaluate([x, w])[0])


def test_a_head_and_its_gradients_are_padded_once_and_are_the_same() -> None:
    args = array(0, 64, 32), array(1, WORDS, 32), jnp.arange(64) * 7
    before = program(tied_head, *args)
    after = aligned(before)
    # The logits, and the gradient of what is multiplied, which reads them padded.
    products = shapes(after, "dot_general")
    assert (64, 1032) in products
    assert not any(WORDS in shape for shape in products)
    # The table, before it is turned, and what comes back for the logits.
    assert sorted(shapes(after, "pad")) == [(64, 1032), (1032, 32)]
    # The table's gradient is cut behind the transpose that makes it.
    cut = [e for e in after.equations if e.primitive.name == "slice"]
    turned = {
        v for e in after.equations if e.primitive.name == "transpose" for v in e.outputs
    }
    assert sum(e.inputs[0] in turned for e in cut) == 1
    for got, want in zip(after.evaluate(args), before.evaluate(args), strict=True):
        np.testing.assert_allclose(
            got.astype(jnp.float32), want.astype(jnp.float32), rtol=1e-2, atol=1e-4
        )


def test_a_product_of_a_product_that_was_turned_is_the_same() -> None:
    x, w, y = array(0, 16, 32), array(1, 32, WORDS), array(2, 16, WORDS)

    def step(x, w, y):
        turned = jnp.transpose(x @ w)
        return turned @ x, y @ turned, jnp.transpose(turned)

    before = program(step, x, w, y)
    after = aligned(before)
    assert not any(WORDS in shape for shape in shapes(after, "dot_general"))
    for got, want in zip(
        after.evaluate([x, w, y]), before.evaluate([x, w, y]), strict=True
    ):
        np.testing.assert_allclose(
            got.astype(jnp.float32), want.astype(jnp.float32), rtol=2e-2, atol=0.5
        )


@pytest.mark.parametrize(
    ("x", "w"),
    [
        (array(0, 16, 32), array(1, 32, 1032)),
        (array(0, 16, 32), array(1, 32, 17)),
        (array(0, 16, 32, dtype=jnp.float32), array(1, 32, WORDS, dtype=jnp.float32)),
    ],
    ids=["aligned", "small", "float32"],
)
def test_what_xla_would_not_pad_or_hardly_is_left_alone(x, w) -> None:
    before = program(jnp.matmul, x, w)
    assert aligned(before) is before


def test_dimensions_that_xla_makes_one_are_left_alone() -> None:
    x, w = array(0, 8, WORDS, 32), array(1, 32, 64)
    before = program(lambda x, w: jnp.einsum("abc,cd->abd", x, w), x, w)
    assert aligned(before) is before


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
