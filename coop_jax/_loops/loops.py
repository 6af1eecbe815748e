"""Re-emits a scan so that the arrays it stacks begin when the plan says.

`lax.scan` fills its stacked outputs into arrays of zeros that depend on nothing, so XLA
makes them at the very start of the program, however late the loop runs. Carried through
the loop instead, they start from a zero that the caller has tied to the loop's place.
The loop that XLA sees is otherwise the one `lax.scan` makes.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core as jexc
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from .._program.trace import Equation
from .bodies import split


def stacks(equation: Equation) -> bool:
    """Whether the equation is a scan with stacked outputs that can be carried."""
    if equation.instead is not None or equation.primitive.name != "scan":
        return False
    if equation.params["length"] == 0:
        return False
    return any(map(_is_numeric, _stacked(equation.params)))


def scan_from(equation: Equation, operands: Sequence[Any], zero: Any) -> list[Any]:
    """Runs the scan on `operands`, its stacks starting as copies of `zero`."""
    params = equation.params
    jaxpr, length = params["jaxpr"], params["length"]
    consts, init, xs = split(operands, [len(part) for part in params["ft_in"].unpack()])
    body = jexc.jaxpr_as_fun(jaxpr)
    carried = [_is_numeric(aval) for aval in _stacked(params)]
    first_stacks = [
        placed_like(
            aval, jnp.broadcast_to(zero.astype(aval.dtype), (length, *aval.shape))
        )
        for aval in _stacked(params)
        if _is_numeric(aval)
    ]

    def step(state: Any, slices: Any) -> Any:
        at, carry, so_far = state
        outputs = body(*consts, *carry, *slices)
        carry, rows = outputs[: len(init)], outputs[len(init) :]
        place = length - 1 - at if params["reverse"] else at
        numeric = [y for y, is_carried in zip(rows, carried, strict=True) if is_carried]
        filled = [
            lax.dynamic_update_index_in_dim(stack, row, place, 0)
            for stack, row in zip(so_far, numeric, strict=True)
        ]
        others = [
            y for y, is_carried in zip(rows, carried, strict=True) if not is_carried
        ]
        return (at + 1, carry, filled), others

    start = (jnp.zeros((), jnp.int32), init, first_stacks)
    with equation.entered():
        (_, carry, filled), others = lax.scan(
            step,
            start,
            xs,
            length=length,
            reverse=params["reverse"],
            unroll=params["unroll"],
        )
    rows, rest = iter(filled), iter(others)
    return [
        *carry,
        *(next(rows) if is_carried else next(rest) for is_carried in carried),
    ]


def placed_like(aval: Any, array: jax.Array) -> jax.Array:
    """The array, in the types of JAX where values of type `aval` are.

    It varies over the axes of `jax.shard_map` that they vary over, is split, over
    explicit axes of a mesh, as they are, in its last dimensions, and lies where they
    do, in the memory of the device or of the host.
    """
    missing = varying(aval) - varying(jax.typeof(array))
    array = lax.pcast(array, tuple(missing), to="varying") if missing else array
    if any(aval.sharding.spec):
        whole = (None,) * (array.ndim - aval.ndim)
        spec = PartitionSpec(*whole, *aval.sharding.spec)
        array = jax.sharding.reshard(array, spec)
    if aval.memory_space == jax.typeof(array).memory_space:
        return array
    return jax.device_put(array, aval.memory_space)


def varying(aval: Any) -> frozenset[str]:
    """Axes over which values of a type vary; jax 0.12 keeps them one level down."""
    axes = getattr(aval, "manual_axis_type", None)
    return getattr(aval, "vma", frozenset()) if axes is None else axes.varying


def _stacked(params: dict[str, Any]) -> list[Any]:
    """Types of one row of each stacked output."""
    carry = len(params["ft_in"].unpack()[1])
    return list(params["jaxpr"].out_avals[carry:])


def _is_numeric(aval: Any) -> bool:
    return not jnp.issubdtype(aval.dtype, jax.dtypes.extended)
