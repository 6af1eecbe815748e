"""Chains of equations become programs that compute the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.inplace import CASES, as_call, dropout, layer_norm, softmax
from coop_jax._native import identities
from coop_jax._native.inplace import why_unavailable
from coop_jax._native.program_words import OPCODES

B, T, D = 3, 5, 70


@pytest.fixture(autouse=True)
def native():
    reason = why_unavailable("cpu")
    if reason is not None:
        pytest.skip(reason)


def operands(dtype=jnp.float32, shape=(B, T, D)):
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], shape, dtype)
    scale = jnp.abs(jax.random.normal(keys[1], shape[-1:]))
    return x, scale, jax.random.normal(keys[2], shape[-1:]), jax.random.key(7)


def made_of(chain, args):
    call = as_call(chain, args)
    assert call is not None
    return call.made


def agree(chain, args, rtol=2e-5, atol=2e-5):
    call = as_call(chain, args)
    assert call is not None
    got = jax.jit(call)(*args)
    want = jax.jit(chain)(*args)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    np.testing.assert_allclose(
        np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=rtol, atol=atol
    )
    return call


@pytest.mark.parametrize("name", CASES)
def test_a_chain_computes_what_xla_does(name: str) -> None:
    chain, dtype = CASES[name]
    rough = dtype == jnp.bfloat16
    agree(chain, operands(dtype), *(2 * [0.02] if rough else ()))


def test_dropout_draws_the_same_bits() -> None:
    args = operands()
    call = as_call(dropout, args)
    assert call is not None
    got = jax.jit(call)(*args)
    assert (np.asarray(got == 0) == np.asarray(dropout(*args) == 0)).all()
    bits = lambda key: jax.random.bits(key, (7, 11), jnp.uint32)  # noqa: E731
    agree(bits, (jax.random.key(3),), rtol=0, atol=0)


def opcodes_needed(made) -> set[str]:
    """Names of the instructions that a program's result is computed by."""
    names = {code: name for name, code in OPCODES.items()}
    count = made.words[5]
    words = np.reshape(made.words[-5 * count :], (count, 5)).tolist()
    needed, todo = set(), [count - 1]
    while todo:
        k = todo.pop()
        needed.add(k)
        todo += identities._reads(tuple(words[k]))
    return {names[words[k][0]] for k in needed}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_the_weight_of_a_gelu_is_a_logistic_function(dtype) -> None:
    with jax.enable_x64(dtype == jnp.float64):
        x = jnp.linspace(-9, 9, 1001).astype(dtype)
        call = agree(jax.nn.gelu, (x,))
        names = opcodes_needed(call.made)
        assert "logistic" in names and "tanh" not in names
        # Where tanh comes close to -1, XLA is left with what 1 + tanh rounds to.
        wide = np.asarray(x, np.longdouble)
        z = np.sqrt(np.longdouble(2) / np.pi) * (wide + 0.044715 * wide**3)
        exact = wide / (1 + np.exp(-2 * z))
        # What z is off by, times the 2z that its logistic function grows by.
        rounding = 500 * np.finfo(dtype).eps
        np.testing.assert_allclose(np.asarray(jax.jit(call)(x)), exact, rtol=rounding)


@pytest.mark.parametrize(
    "chain",
    [
        lambda x: 0.5 * (2 + jnp.tanh(x)),
        lambda x: 0.25 * (1 + jnp.tanh(x)),
        lambda x: 0.5 * (1 - jnp.tanh(x)),
        lambda x: 0.5 * (1 + jnp.exp(x)),
        # The value of tanh, or the sum, is needed all the same.
        lambda x: 0.5 * (1 + jnp.tanh(x)) * jnp.tanh(x),
        lambda x: 0.5 * (1 + jnp.tanh(x)) - (1 + jnp.tanh(x)),
    ],
)
def test_what_only_looks_like_a_gelu_is_computed_as_it_is(chain) -> None:
    chain = jax.jit(chain)
    args = (operands()[0],)
    call = agree(chain, args)
    assert "logistic" not in opcodes_needed(call.made)


def test_a_key_made_inside_the_chain_is_made_before_the_call() -> None:
    def chain(x, scale, bias, key):
        return dropout(x, scale, bias, jax.random.fold_in(key, 3))

    call = agree(chain, operands())
    assert call.made.outside


def test_a_raw_key_is_wrapped_before_the_call() -> None:
    def chain(x, key):
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)

    agree(chain, (operands()[0], jax.random.PRNGKey(4)))


def test_bits_of_the_old_threefry_layout_are_left_to_xla() -> None:
    with jax.threefry_partitionable(False):
        assert as_call(dropout, operands()) is None


@pytest.mark.parametrize(
    "chain",
    [
        lambda x: jax.nn.softmax(x, axis=1),
        lambda x: jax.nn.softmax(x, axis=(0, 2)),
        lambda x: x - x.mean((0, 1)),
        lambda x: jax.nn.softmax(x.reshape(B * T, D)).reshape(B, T, D) * 2,
        lambda x: jax.nn.softmax(x.reshape(B, T, 10, 7), axis=-2),
        lambda x: jnp.swapaxes(jax.nn.gelu(x), 0, 1).reshape(-1, D) + 1,
        lambda x: x * jnp.tril(jnp.ones((T, D), bool)),
        lambda x: jnp.clip(x, -1, 1) ** 3 + jnp.where(x > 0, x, 0.1 * x),
        lambda x: jnp.exp2(x) + jnp.log1p(jnp.abs(x)) * jax.nn.softplus(x),
        lambda x: jax.nn.elu(x) + jax.nn.relu6(x) - jnp.sign(x) * jnp.floor(x),
        lambda x: (x.astype(jnp.int32) << 2 ^ 5).astype(jnp.float32) / 3,
        lambda x: x + jnp.arange(D, dtype=x.dtype) * jnp.arange(T)[:, None],
        lambda x: jnp.where(jnp.maximum(x > 1, x < -1) ^ (x > 2), x, 0),
        lambda x: jnp.abs(x) ** 1.7 + jax.lax.rsqrt(x * x + 1) * jax.lax.erf(x),
    ],
)
def test_shapes_and_operations_of_all_kinds(chain) -> None:
    agree(chain, (operands()[0],))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float64])
def test_other_floating_types(dtype) -> None:
    with jax.enable_x64(dtype == jnp.float64):
        x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 33)), dtype)
        rough = 1e-12 if dtype == jnp.float64 else 0.02
        agree(lambda x: jax.nn.softmax(x * 2) + jax.nn.gelu(x), (x,), rough, rough)


def test_small_halves_are_not_taken_for_zero() -> None:
    """XLA's threads take subnormal floats for 0; subnormal halves are none."""
    numbers = np.arange(1, 1025, dtype=np.uint16)  # up to the least normal half
    x = jnp.asarray(numbers.view(np.float16)).reshape(16, 64)
    x = jnp.concatenate([x, -x, x * 40000])

    def chain(x):
        wide = x.astype(jnp.float32)
        return (wide - 1e-3 * wide.mean(-1, keepdims=True)).astype(jnp.float16)

    call = as_call(chain, (x,))
    assert call is not None
    found = np.asarray(jax.jit(call)(x), np.float64)
    expected = np.asarray(jax.jit(chain)(x), np.float64)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2.0**-24)
    assert (found[:32] != 0).all()


def test_a_batch_norm_computes_its_statistics_over_other_axes() -> None:
    def chain(x):
        mean = x.mean((0, 1, 2))
        variance = ((x - mean) ** 2).mean((0, 1, 2))
        return (x - mean) * jax.lax.rsqrt(variance + 1e-3)

    agree(chain, (jax.random.normal(jax.random.key(0), (2, 4, 5, 6)),))


@pytest.mark.parametrize(
    "chain",
    [
        lambda x: x @ x.swapaxes(-1, -2),
        lambda x: jnp.cumsum(x, 0),
        lambda x: jnp.sort(x),
        lambda x: x[..., ::2] * 2,
        lambda x: jnp.sin(x),
        lambda x: jax.nn.softmax(x) + jax.nn.softmax(x, 1),
        lambda x: x.astype(jnp.int8) + 1,
        lambda x: jnp.where((x > 0) < (x > 1), x, 0),
    ],
)
def test_what_programs_cannot_express_is_left_to_xla(chain) -> None:
    assert as_call(chain, (operands()[0],)) is None


def test_the_operand_that_may_be_overwritten_is_read_element_by_element() -> None:
    assert made_of(softmax, operands()).overwritable == (0,)
    twice = made_of(lambda x: x + x.T, (jnp.ones((4, 4)),))
    assert twice.overwritable == ()
    made = made_of(layer_norm, operands(jnp.bfloat16))
    assert made.dtype == jnp.float32 and made.overwritable == ()


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
