"""Calls that are like an earlier one run what that one planned, without tracing."""

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax import _remat


@pytest.fixture(name="traced")
def fixture_traced(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """Arguments of the calls that are traced."""
    calls: list[tuple] = []
    trace = _remat.trace_step

    def recorded(jitted: Any, args: tuple, *rest: Any) -> Any:
        calls.append(args)
        return trace(jitted, args, *rest)

    monkeypatch.setattr(_remat, "trace_step", recorded)
    return calls


def scaled(tree: dict, by: Any = 2.0) -> dict:
    return jax.tree.map(lambda x: x * by, tree)


TREE = {"a": jnp.arange(4.0), "b": (jnp.ones((2, 3)), None)}


def test_a_call_like_the_last_is_not_traced(traced: list[tuple]) -> None:
    step = coop_jax.remat(scaled, "1GiB")
    once = step(TREE)
    again = step(once)
    assert len(traced) == 1
    np.testing.assert_array_equal(again["a"], 4 * TREE["a"])
    assert again["b"][1] is None


@pytest.mark.parametrize(
    "other",
    [
        {"a": jnp.arange(5.0), "b": (jnp.ones((2, 3)), None)},
        {"a": jnp.arange(4), "b": (jnp.ones((2, 3)), None)},
        {"a": jnp.arange(4.0), "b": [jnp.ones((2, 3)), None]},
        {"a": 3.0, "b": (jnp.ones((2, 3)), None)},
    ],
    ids=["shape", "type", "structure", "weak type"],
)
def test_a_call_unlike_the_last_is(other: dict, traced: list[tuple]) -> None:
    step = coop_jax.remat(scaled, "1GiB")
    step(TREE)
    found, expected = step(other), jax.jit(scaled)(other)
    assert len(traced) == 2
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (a.dtype, a.weak_type) == (b.dtype, b.weak_type)
        np.testing.assert_array_equal(a, b)


def test_a_setting_that_jax_compiles_by_is_looked_at(traced: list[tuple]) -> None:
    step = coop_jax.remat(lambda x: x @ x, "1GiB")
    step(jnp.ones((2, 2)))
    with jax.default_matmul_precision("float32"):
        step(jnp.ones((2, 2)))
    step(jnp.ones((2, 2)))
    assert len(traced) == 2


def test_static_arguments_count_by_their_value(traced: list[tuple]) -> None:
    step = coop_jax.remat(scaled, "1GiB", static_argnames="by")
    for by in (2, 3, 2, 3):
        np.testing.assert_array_equal(step(TREE, by=by)["a"], by * TREE["a"])
    assert len(traced) == 2
    positional = coop_jax.remat(jax.jit(scaled, static_argnums=1), "1GiB")
    for by in (2, 3, 2):
        np.testing.assert_array_equal(positional(TREE, by)["a"], by * TREE["a"])


@pytest.mark.parametrize(
    "static",
    [
        {"static_argnums": 1},
        {"static_argnums": (-2,)},
        {"static_argnames": "by"},
        {"static_argnames": ("by",), "donate_argnums": 0},
    ],
)
def test_numbers_beside_static_numbers_are_told_apart(static: dict) -> None:
    def powered(x, by, plus):
        return x**by + plus

    step = coop_jax.remat(powered, "1GiB", **static)
    for by, plus in ((2, 3), (3, 2), (2, 2), (2, jnp.int32(5))):
        assert step(jnp.float32(3), by, plus) == 3**by + plus


def test_static_arguments_may_be_anywhere_among_many() -> None:
    """As JAX counts them: among the arguments of the call."""
    last = coop_jax.remat(lambda *a: a[0] - a[1] * a[2], "1GiB", static_argnums=-1)
    first = coop_jax.remat(lambda *a: a[1] - a[2] * a[0], "1GiB", static_argnums=0)
    for _ in range(2):
        assert last(jnp.float32(7), jnp.float32(2), 3) == 1
        assert first(3, jnp.float32(7), jnp.float32(2)) == 1
    among = coop_jax.remat(
        lambda x, *a: x * a[0] - a[1] + a[2], "1GiB", static_argnums=2
    )
    for y in (5, 6):
        assert among(jnp.float32(3), 4, y, 7) == 12 - y + 7


def test_a_static_argument_may_be_any_object(traced: list[tuple]) -> None:
    def signed(x, how):
        return -x if how == ("minus", 1) else x

    step = coop_jax.remat(signed, "1GiB", static_argnums=1)
    for how, expected in ((("plus", 1), 1), (("minus", 1), -1), (("plus", 1), 1)):
        assert step(jnp.ones(()), how) == expected
    assert len(traced) == 2
    assert coop_jax.remat(jax.jit(signed, static_argnums=1), "1GiB")(1.0, "plus") == 1


def test_what_jax_forgets_is_forgotten() -> None:
    """`jax.clear_caches` frees memory, programs of planned steps included."""
    captured = jnp.ones((8, 8))
    step = coop_jax.remat(lambda x: x @ captured, "1GiB")
    for _ in range(3):
        step(jnp.ones((2, 8)))
        jax.clear_caches()
    step(jnp.ones((2, 8)))
    gc.collect()
    assert len(step._known) == len(step._fitted) == 1


def test_inside_a_trace_every_call_is_part_of_it() -> None:
    step = coop_jax.remat(scaled, "1GiB")
    step(TREE)
    np.testing.assert_array_equal(jax.jit(step)(TREE)["a"], 2 * TREE["a"])
    np.testing.assert_array_equal(step(TREE)["a"], 2 * TREE["a"])


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
