"""Bytes per device of a partitioned step, on programs that a reader checks by eye."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from coop_jax._program.flatten import flatten
from coop_jax._program.gathering import gathered, held
from coop_jax._program.hlo import OwnedBuffer
from coop_jax._program.roots import choose_roots
from coop_jax._program.shards import communicates, localized
from coop_jax._program.trace import Program
from coop_jax._program.units import Graph

MESH = AbstractMesh((4,), ("d",), axis_types=(AxisType.Auto,))
X = jax.ShapeDtypeStruct((8, 8), jnp.float32)
WHOLE, QUARTER = 256, 64


def constrained(x: Any, *spec: Any) -> Any:
    return lax.with_sharding_constraint(x, NamedSharding(MESH, PartitionSpec(*spec)))


def program_of(function: Callable, *args: Any, argument: int = WHOLE) -> Program:
    """On four devices, each with `argument` bytes of every argument."""
    traced = jax.jit(function).trace(*args)
    program = flatten(traced.jaxpr, [False] * len(args))
    sizes = dict.fromkeys(program.arguments, argument)
    return replace(program, partitions=4, sizes=sizes)


def owned(opcode: str, size: int) -> list[OwnedBuffer]:
    return [OwnedBuffer("", opcode, size, 0, 0, True)]


def per_device(program: Program, buffers: dict[int, list[OwnedBuffer]] = {}) -> dict:  # noqa: B006
    """Bytes of each equation's result, by the equation's name."""
    sizes = localized(program, buffers).sizes
    return {e.primitive.name: sizes[e.outputs[0]] for e in program.equations}


def test_what_owns_a_share_is_split_so_and_what_owns_none_like_what_it_reads() -> None:
    program = program_of(lambda x: jnp.tanh(jnp.sin(x)), X)
    assert per_device(program) == {"sin": WHOLE, "tanh": WHOLE}
    found = per_device(program, {0: owned("fusion", QUARTER)})
    assert found == {"sin": QUARTER, "tanh": QUARTER}
    assert per_device(program, {1: owned("fusion", QUARTER)})["sin"] == WHOLE
    # No share of a whole array on four devices.
    assert per_device(program, {0: owned("fusion", WHOLE // 8)})["sin"] == WHOLE


def test_a_constraint_says_how_its_result_is_split() -> None:
    program = program_of(lambda x: jnp.tanh(constrained(x, "d")), X)
    assert per_device(program) == {"sharding_constraint": QUARTER, "tanh": QUARTER}
    free = PartitionSpec.UNCONSTRAINED
    program = program_of(lambda x: constrained(x, "d", free), X, argument=QUARTER // 2)
    assert per_device(program) == {"sharding_constraint": QUARTER // 2}


def test_uneven_parts_are_not_counted() -> None:
    program = program_of(lambda x: constrained(x[:6], "d"), X)
    assert per_device(program)["sharding_constraint"] == 6 * 8 * 4


def test_what_is_spread_from_a_scalar_is_split_like_what_it_meets() -> None:
    def chain(x, scale):
        return jnp.broadcast_to(scale, x.shape) * jnp.sin(x)

    scale = jax.ShapeDtypeStruct((), jnp.float32)
    program = program_of(chain, X, scale, argument=QUARTER)
    assert per_device(program)["mul"] == QUARTER


@pytest.mark.parametrize(
    ("buffers", "is_unit"),
    [([], False), (owned("fusion", 8), False), (owned("all-to-all", 8), True)],
)
def test_a_constraint_is_a_unit_only_where_devices_communicate(
    buffers: list[OwnedBuffer], is_unit: bool
) -> None:
    program = program_of(lambda x: constrained(x, "d") * 2, X)
    program = localized(program, {})
    roots = choose_roots(Graph(program), {0: buffers}, "cpu")
    assert communicates(buffers) == is_unit
    assert (0 in roots) == is_unit


def weights_and_batch(weight: Any, batch: Any) -> Any:
    return (batch @ weight.astype(jnp.bfloat16).astype(jnp.float32)) * jnp.sin(weight)


@pytest.mark.parametrize(
    ("opcode", "name", "found"),
    [
        # Position of the argument, or of the equation that casts it.
        ("all-gather", "values[0]", True),
        ("collective-permute", "jit(f)/coop_eqn_0/convert_element_type", True),
        ("all-reduce", "values[0]", False),
        ("fusion", "values[0]", False),
        ("all-gather", "jit(f)/coop_eqn_2/dot_general", False),
    ],
)
def test_an_argument_is_gathered_if_it_is_moved_by_its_own_name(
    opcode: str, name: str, found: bool
) -> None:
    program = program_of(weights_and_batch, X, X, argument=QUARTER)
    buffers = [replace(owned(opcode, WHOLE)[0], op_name=name)]
    place = name.partition("coop_eqn_")[2][:1]
    by_equation = {int(place): buffers} if place else {}
    weight, batch = program.arguments
    moved = gathered(program, buffers, by_equation)
    assert batch not in moved
    assert (weight in moved) == found
    # The casts and the sine of the weight are made of it alone.
    assert len(moved) == (4 if found else 0)
    assert held(program, buffers, by_equation, moved) == tuple(buffers * found)


def test_what_is_whole_on_each_device_is_not_gathered() -> None:
    program = program_of(weights_and_batch, X, X)
    # Names count the arguments of the step, of which a mapped program may have fewer.
    for name in ("values[0]", "values[7]"):
        buffers = [replace(owned("all-gather", WHOLE)[0], op_name=name)]
        moved = gathered(program, buffers, {})
        assert not moved
        assert held(program, buffers, {}, moved) == ()


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
