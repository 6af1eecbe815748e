"""The oracle computes in double precision and draws the random bits of the original."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.float64 import evaluate, relative_error


def _uniform(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def test_agrees_with_numpy_in_float64_on_a_case_checked_by_eye():
    weight, x = _uniform(8, 4), _uniform(3, 8, seed=1)

    def fn(weight, x):
        y = jnp.tanh((x @ weight).astype(jnp.bfloat16)) + 0.1
        return y, y.astype(jnp.float32).sum(), jnp.argmax(y)

    y = np.tanh(x.astype(np.float64) @ weight.astype(np.float64))
    y = y + float(jnp.bfloat16(0.1))  # the constant is what the program says it is
    out, total, index = evaluate(fn, weight, x)
    assert out.dtype == total.dtype == np.float64
    np.testing.assert_allclose(out, y, rtol=1e-14)
    np.testing.assert_allclose(total, y.sum(), rtol=1e-14)
    assert index == y.argmax()
    assert index.dtype == np.int32


def test_leaves_precision_and_x64_mode_as_they_were():
    evaluate(jnp.sin, 1.0)
    assert jnp.ones(1).dtype == np.float32


def test_ignores_requests_for_low_precision():
    x = _uniform(16, 16)

    def fn(x):
        product = jnp.dot(x, x, precision=jax.lax.DotAlgorithmPreset.BF16_BF16_F32)
        return jax.lax.reduce_precision(product, 5, 2)

    np.testing.assert_allclose(evaluate(fn, x), np.float64(x) @ x, rtol=1e-13)


def test_draws_the_same_random_bits():
    def fn(key):
        first, second, third = jax.random.split(key, 3)
        bits = jax.random.bits(first, (64,))
        uniform = jax.random.uniform(second, (64,))
        dropped = jax.random.bernoulli(third, 0.9, (1000,))
        categories = jax.random.randint(third, (64,), 0, 100)
        return first, bits, uniform, dropped, categories

    for key in (jax.random.key(3), jax.random.PRNGKey(3)):
        ours, theirs = evaluate(fn, key), fn(key)
        assert relative_error(ours, theirs) == 0.0


def test_normal_is_the_float32_draw_to_rounding():
    def fn(key):
        return jax.random.normal(key, (1000,)), jax.random.gamma(key, 2.0, (10,))

    assert relative_error(fn(jax.random.key(0)), evaluate(fn, jax.random.key(0))) < 1e-5


def test_float_bits_are_those_of_the_original_dtype():
    def fn(x):
        return jax.lax.bitcast_convert_type(x, np.int32), jnp.nextafter(x, 2.0)

    x = jnp.float32(1.0)
    bits, after = evaluate(fn, x)
    assert bits == np.float32(1.0).view(np.int32)
    assert after == np.nextafter(np.float32(1.0), np.float32(2.0))


def test_enters_loops_branches_and_calls():
    x = _uniform(5, 4)

    @jax.jit
    def fn(x):
        carry, history = jax.lax.scan(lambda c, a: (c * 0.5 + a, c), x[0], x)
        branch = jax.lax.cond(x[0, 0] > 2, jnp.sin, jax.checkpoint(jnp.cos), carry)
        count, grown = jax.lax.while_loop(
            lambda c: c[1].sum() < 40, lambda c: (c[0] + 1, c[1] + 1.5), (0, carry)
        )
        return carry, history, branch, count, grown, jax.nn.relu(x)

    wide = x.astype(np.float64)
    carry, history = wide[0], []
    for row in wide:
        history.append(carry)
        carry = carry * 0.5 + row
    count, grown = 0, carry
    while grown.sum() < 40:
        count, grown = count + 1, grown + 1.5
    expected = carry, np.stack(history), np.cos(carry), np.int32(count), grown
    expected = (*expected, np.maximum(wide, 0))
    assert relative_error(evaluate(fn, x), expected) < 1e-14


def test_rewrites_the_bodies_of_scatters_and_reductions():
    x, indices = _uniform(6), np.array([1, 1, 4])

    def fn(x, indices):
        added = x.at[indices].add(jnp.float32(0.25))
        product = jax.lax.reduce(x, np.float32(1), lambda a, b: a * b * 1.5, (0,))
        pooled = jax.lax.reduce_window(
            x, np.float32(0), jax.lax.add, (2,), (2,), "VALID"
        )
        return added, product, pooled, jax.grad(lambda x: x[indices].sum())(x)

    wide = x.astype(np.float64)
    added, gradient = wide.copy(), np.zeros(6)
    np.add.at(added, indices, 0.25)
    np.add.at(gradient, indices, 1.0)
    expected = added, 1.5**6 * wide.prod(), wide.reshape(3, 2).sum(1), gradient
    assert relative_error(evaluate(fn, x, indices), expected) < 1e-14


class _Mlp(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = jax.nn.gelu(nn.LayerNorm()(nn.Dense(64)(x)))
        return nn.Dense(4)(nn.Dropout(0.3, deterministic=False)(x))


def test_a_step_with_dropout_is_close_to_its_oracle():
    x = _uniform(16, 8)
    variables = jax.jit(_Mlp().init)(jax.random.key(0), x)

    @jax.value_and_grad
    def step(variables, key):
        out: Any = _Mlp().apply(variables, x, rngs={"dropout": key})
        return (out.astype(jnp.float32) ** 2).mean()

    key = jax.random.key(1)
    reference = evaluate(step, variables, key)
    assert 1e-9 < relative_error(jax.jit(step)(variables, key), reference) < 1e-5
    other = step(variables, jax.random.key(2))
    assert relative_error(other, reference) > 1e-2


def test_checkpoint_does_not_change_the_reference():
    x = _uniform(16, 16)

    def fn(block, x):
        return jax.grad(lambda x: block(block(x)).sum())(x)

    def block(x):
        return jnp.sin(x @ x)

    plain = evaluate(lambda x: fn(block, x), x)
    saved = evaluate(lambda x: fn(jax.checkpoint(block), x), x)
    assert relative_error(saved, plain) < 1e-13


def test_relative_error_measures_against_the_largest_entry():
    reference = {"a": np.array([1.0, -4.0]), "n": np.int32(3)}
    out = {"a": jnp.array([1.5, -4.0]), "n": jnp.int32(3)}
    assert relative_error(out, reference) == 0.125
    assert np.isnan(relative_error({**out, "a": jnp.array([1, jnp.nan])}, reference))


@pytest.mark.parametrize(
    ("out", "reference", "message"),
    [
        (np.int32(1), np.int32(2), "differs"),
        (jax.random.key(0), jax.random.key(1), "differs"),
        (np.zeros(2), np.zeros(3), "shape"),
        ([np.zeros(2)], np.zeros(2), "structure"),
    ],
    ids=["integer", "key", "shape", "structure"],
)
def test_relative_error_requires_the_rest_to_be_equal(out, reference, message):
    with pytest.raises(ValueError, match=message):
        relative_error(out, reference)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
