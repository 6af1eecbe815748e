"""Bytes of any step, as XLA measures them."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import coop_jax
from coop_jax._measure import device_limit

X = jax.ShapeDtypeStruct((256, 256), jnp.float32)
SIZE = 256 * 256 * 4


def update(w, x):
    return w - 0.1 * jnp.tanh(x @ w).T @ x


def test_bytes_of_a_plain_function() -> None:
    use = coop_jax.measure(update, X, X)
    assert (use.argument, use.output, use.alias) == (2 * SIZE, SIZE, 0)
    assert use.temp >= SIZE
    assert use.total == use.fixed + use.temp == 3 * SIZE + use.temp


def test_a_jitted_function_keeps_its_donation() -> None:
    use = coop_jax.measure(jax.jit(update, donate_argnums=0), X, x=X)
    assert (use.alias, use.fixed) == (SIZE, 2 * SIZE)


def test_a_planned_step_measures_what_its_plan_says() -> None:
    step = coop_jax.remat(update, "1GiB", donate_argnums=0)
    assert coop_jax.measure(step, X, X) == step.plan(X, X).measured


def test_the_limit_is_that_of_a_device_of_this_process() -> None:
    """Devices of others tell nothing; which comes first of a set is chance."""

    class Device:
        def __init__(self, limit: int | None) -> None:
            self.limit = limit

        def memory_stats(self) -> dict[str, int]:
            if self.limit is None:
                raise jax.errors.JaxRuntimeError("only for addressable devices")
            return {"bytes_limit": self.limit}

    other, own = Device(None), Device(1000)
    sharding = SimpleNamespace(device_set=[other, own], addressable_devices={own})
    assert device_limit([None, sharding]) == 1000
    assert device_limit([SimpleNamespace(addressable_devices={other})]) is None


def test_prints_every_part_and_the_sum() -> None:
    lines = str(coop_jax.MemoryUse(2048, 1024, 1024, 512)).splitlines()
    assert [line.split() for line in lines] == [
        ["arguments", "2.0", "KiB", "(2,048", "bytes)"],
        ["outputs", "1.0", "KiB", "(1,024", "bytes)"],
        ["donated", "-1.0", "KiB", "(-1,024", "bytes)"],
        ["temporary", "512", "B", "(512", "bytes)"],
        ["total", "2.5", "KiB", "(2,560", "bytes)"],
    ]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
