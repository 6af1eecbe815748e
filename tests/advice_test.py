"""What an error advises is what would help that step."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import SingleDeviceSharding

from coop_jax._fitting.advice import advise
from coop_jax._fitting.compile import flat_step

WEIGHT = jax.ShapeDtypeStruct((16, 16), jnp.float32)
X = jax.ShapeDtypeStruct((64, 16), jnp.float32)
HELD = [("tanh", 2048, "")]


def loss(w: Any, x: Any) -> Any:
    return jnp.mean(jnp.tanh(x @ w) ** 2)


def update(w: Any, x: Any) -> Any:
    return w - 0.1 * jax.grad(loss)(w, x)


def accumulated(w: Any, x: Any) -> Any:
    def add(total: Any, x: Any) -> Any:
        return total + jax.grad(loss)(w, x), None

    return w - lax.scan(add, jnp.zeros((16, 16)), x.reshape(4, 16, 16))[0]


def advice(
    step: Callable[..., Any],
    held: Any = HELD,
    looked_inside: bool = False,
    **options: Any,
) -> str:
    traced = jax.jit(step, **options).trace(WEIGHT, X)
    flat = flat_step(traced, [WEIGHT, X])
    return "\n".join(advise(flat, 100, 4096, held, False, looked_inside))


def test_a_state_that_comes_back_is_to_be_donated_with_its_bytes() -> None:
    assert "`donate_argnums`): 1,024 bytes are held twice" in advice(update)
    assert "donate" not in advice(update, donate_argnums=0)
    assert "donate" not in advice(loss), "nothing of an argument's type comes back"


@pytest.mark.parametrize(
    ("step", "is_told"), [(loss, True), (update, False), (accumulated, False)]
)
def test_a_step_without_a_gradient_is_told_so(step: Any, is_told: bool) -> None:
    assert ("No gradient is taken" in advice(step)) == is_told


def test_a_loop_is_named_where_it_holds_what_is_alive_at_the_peak() -> None:
    inside = [("inside scan", 2048, ""), ("tanh", 1024, "")]
    assert "A `scan` takes 2,048 bytes inside: apply" in advice(accumulated, inside)
    assert "scan" not in advice(accumulated, [("tanh", 2048, "")])
    assert "scan" not in advice(accumulated, inside, looked_inside=True)


def test_a_nested_jit_with_shardings_is_named() -> None:
    where = SingleDeviceSharding(jax.devices()[0])
    nested = jax.jit(update, out_shardings=where)
    told = advice(lambda w, x: nested(w, x), [("inside jit", 2048, "")])
    assert "A `jit` takes 2,048 bytes inside: pass the function beneath" in told


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
