"""`jax.device_put` inside of a step, array by array.

JAX makes one equation of a pytree that is put somewhere. As one operation, all of its
arrays would be moved before the first is read, and be alive together.
"""

from collections.abc import Iterator
from typing import Any

import jax

NAME = "device_put"


def is_unchanged(eqn: Any) -> bool:
    """Whether an equation puts an array where it is: to a memory that it is in."""
    (device,) = eqn.params["devices"]
    is_to_memory = device is None or isinstance(device, jax.memory.Space)
    return is_to_memory and eqn.invars[0].aval == eqn.outvars[0].aval


def one_by_one(eqn: Any) -> Iterator[Any]:
    """The equation, as one for each of its arrays."""
    for k, (operand, result) in enumerate(zip(eqn.invars, eqn.outvars, strict=True)):
        params = {name: (each[k],) for name, each in eqn.params.items()}
        yield eqn.replace(invars=[operand], outvars=[result], params=params)
