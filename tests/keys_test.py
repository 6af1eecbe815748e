"""Random keys are passed on from behind barriers, on GPU."""

import re
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import pytest

from coop_jax._fitting.compile import flat_step
from coop_jax._fitting.emit import emit
from coop_jax._fitting.keys import keys_taken
from coop_jax._program.profile import Profile, profile

SHAPE = (64, 64)


def profiled(
    step: Callable[..., object], args: Sequence[object], platform: str = "gpu"
) -> Profile:
    program = flat_step(jax.jit(step).trace(*args), list(args)).program
    return profile(program, [], 0, platform)


def drawn(key: jax.Array) -> list[jax.Array]:
    return [jax.random.normal(each, SHAPE) for each in jax.random.split(key, 3)]


def names(found: Profile) -> list[str]:
    equations = found.program.equations
    return [
        equations[found.units[op].root].primitive.name
        for op in sorted(keys_taken(found))
    ]


@pytest.mark.parametrize(("platform", "taken"), [("gpu", ["unstack"]), ("cpu", [])])
def test_keys_that_another_was_split_into_are(platform: str, taken: list[str]) -> None:
    assert names(profiled(drawn, [jax.random.key(0)], platform)) == taken


def test_a_key_made_of_another_is_not() -> None:
    def step(key: jax.Array) -> jax.Array:
        return jax.random.normal(jax.random.fold_in(key, 1), SHAPE)

    assert names(profiled(step, [jax.random.key(0)])) == []


def test_parts_of_other_arrays_are_not() -> None:
    found = profiled(lambda x: [*jnp.unstack(x)], [jnp.ones((3, 8))])
    assert found.units
    assert names(found) == []


def test_what_has_no_results_is_not() -> None:
    def step(x: jax.Array) -> jax.Array:
        jax.debug.callback(lambda seen: None, x)
        return 2 * x

    found = profiled(step, [jnp.ones((3, 8))])
    equations = found.program.equations
    assert not all(equations[unit.root].outputs for unit in found.units)
    assert names(found) == []


def test_what_draws_reads_them_from_behind_a_barrier_of_their_own() -> None:
    found = profiled(drawn, [jax.random.key(0)])
    planned = emit(found, [(op,) for op in range(len(found.units))])
    text = jax.jit(planned).lower(jax.random.key(0)).as_text()
    barriers = re.findall("stablehlo.optimization_barrier .*", text)
    assert [line.count("tensor<2xui32>") for line in barriers] == [3]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
