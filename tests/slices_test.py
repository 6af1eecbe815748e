"""On GPU, slices of which there are many alike are taken by an index."""

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from coop_jax._fitting.compile import flat_step
from coop_jax._fitting.emit import emit
from coop_jax._fitting.slices import with_slices_by_index
from coop_jax._program.profile import Profile, profile

STEPS = 9
KEY = jax.random.key(0)


def profiled(step: Callable[..., object], shape: Sequence[int]) -> Profile:
    args = [jax.ShapeDtypeStruct(tuple(shape), jnp.float32)]
    program = flat_step(jax.jit(step).trace(*args), args).program
    return profile(program, [], 0, "gpu")


def taken_by_index(found: Profile) -> int:
    """Equations that `with_slices_by_index` changed."""
    count = 0

    def trace() -> None:
        nonlocal count
        laid = with_slices_by_index(found)
        pairs = zip(found.program.equations, laid.program.equations, strict=True)
        count = sum(before is not after for before, after in pairs)

    jax.eval_shape(trace)
    return count


def columns(x: jax.Array, count: int) -> list[jax.Array]:
    return [x[:, t] for t in range(count)]


def every_second(x: jax.Array, start: int) -> jax.Array:
    """One of two columns, by a slice that goes over both."""
    return lax.slice(x, (0, start, 0), (8, start + 2, 4), (1, 2, 1))


def test_slices_of_an_unrolled_loop_are() -> None:
    shape = (8, STEPS, 4)
    assert taken_by_index(profiled(lambda x: columns(x, STEPS), shape)) == STEPS


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (lambda x: columns(x, 7), "there are few"),
        (lambda x: [x[t] for t in range(8)], "they are whole rows"),
        (lambda x: [x[t, 3] for t in range(8)], "they are parts of rows"),
        (lambda x: [every_second(x, t) for t in range(8)], "they have steps"),
        (lambda x: [x[:, : t + 1] for t in range(8)], "they differ in shape"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_others_are_not_as(step: Callable[..., object], why: str) -> None:
    assert taken_by_index(profiled(step, (8, STEPS, 4))) == 0, why


def split(key: jax.Array, count: int) -> list[jax.Array]:
    return list(jax.random.split(key, count))


@pytest.mark.parametrize(("count", "taken"), [(STEPS, 1), (3, 0)])
def test_keys_are_where_many_come_from_one(count: int, taken: int) -> None:
    program = flat_step(
        jax.jit(functools.partial(split, count=count)).trace(KEY), [KEY]
    ).program
    found = profile(program, [], 0, "gpu")
    assert taken_by_index(found) == taken
    planned = emit(found, [(op,) for op in range(len(found.units))])
    wanted = [jax.random.key_data(key) for key in split(KEY, count)]
    for got, each in zip(planned(KEY), wanted, strict=True):
        np.testing.assert_array_equal(jax.random.key_data(got), each)
    text = jax.jit(planned).lower(KEY).as_text()
    assert ("stablehlo.dynamic_slice" in text) == bool(taken)


def test_rows_of_anything_else_that_are_unstacked_are_not() -> None:
    found = profiled(lambda x: [*jnp.unstack(x)], (STEPS, 4))
    assert taken_by_index(found) == 0


def test_columns_that_are_unstacked_are() -> None:
    found = profiled(lambda x: [*jnp.unstack(x, axis=1)], (8, STEPS, 4))
    planned = emit(found, [(op,) for op in range(len(found.units))])
    x = jnp.arange(8 * STEPS * 4, dtype=jnp.float32).reshape(8, STEPS, 4)
    assert "stablehlo.dynamic_slice" in jax.jit(planned).lower(x).as_text()
    for got, wanted in zip(planned(x), columns(x, STEPS), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_slice_that_what_reads_it_computes_itself_is_not() -> None:
    found = profiled(lambda x: sum(jnp.sin(c) for c in columns(x, STEPS)), (8, STEPS))
    assert len(found.units) < STEPS
    assert taken_by_index(found) == 0


@pytest.mark.parametrize("other", [{"platform": "cpu"}, {"partitions": 2}])
def test_not_on_cpu_nor_where_several_devices_hold_parts(other: dict) -> None:
    found = profiled(lambda x: columns(x, STEPS), (8, STEPS, 4))
    if "partitions" in other:
        other = {"program": dataclasses.replace(found.program, **other)}
    assert taken_by_index(dataclasses.replace(found, **other)) == 0


def test_they_are_the_same_numbers_and_their_places_come_from_one_barrier() -> None:
    found = profiled(lambda x: columns(x, STEPS), (8, STEPS, 4))
    planned = emit(found, [(op,) for op in range(len(found.units))])
    x = jnp.arange(8 * STEPS * 4, dtype=jnp.float32).reshape(8, STEPS, 4)
    for got, wanted in zip(planned(x), columns(x, STEPS), strict=True):
        np.testing.assert_array_equal(got, wanted)
    text = jax.jit(planned).lower(x).as_text()
    assert len(re.findall("stablehlo.dynamic_slice", text)) == STEPS
    assert "stablehlo.slice" not in text
    barriers = re.findall("stablehlo.optimization_barrier .*", text)
    assert [line.count("tensor<i32>") for line in barriers] == [STEPS]


def test_one_of_a_mapped_array_varies_as_that_does() -> None:
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    step = jax.shard_map(
        lambda x: columns(x, STEPS), mesh=mesh, in_specs=spec, out_specs=spec
    )
    found = profiled(step, (8, STEPS, 4))
    mapped = found.program.mapped
    assert mapped is not None
    planned = mapped.around(emit(found, [(op,) for op in range(len(found.units))]))
    x = jnp.arange(8 * STEPS * 4, dtype=jnp.float32).reshape(8, STEPS, 4)
    assert "stablehlo.dynamic_slice" in jax.jit(planned).lower(x).as_text()
    for got, wanted in zip(jax.jit(planned)(x), columns(x, STEPS), strict=True):
        np.testing.assert_array_equal(got, wanted)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
