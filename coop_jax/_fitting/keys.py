"""Random keys passed on from behind barriers, on GPU.

XLA:GPU computes small values in whatever reads them. A key is a slice of the array that
another was split into, and in each kernel that reads one from there its place is
compiled in: as many kernels as there are keys, which differ in nothing else.
"""

from typing import Any

import jax
import jax.numpy as jnp

from .._planning.types import OpId
from .._program.fusing import SLICES, VIEWS
from .._program.profile import Profile
from .._program.units import Unit


def keys_taken(profile: Profile) -> set[OpId]:
    """Ops that take keys out of an array of them; none but on GPU."""
    if profile.platform != "gpu":
        return set()
    equations, avals = profile.program.equations, profile.program.avals

    def takes_keys(unit: Unit) -> bool:
        computed = [equations[k] for k in (*unit.inlined, unit.root)]
        made = computed[-1].outputs
        only_takes = {each.primitive.name for each in computed} <= VIEWS | SLICES
        return only_takes and bool(made) and are_keys(avals[made[0]])

    return {op for op, unit in enumerate(profile.units) if takes_keys(unit)}


def are_keys(aval: Any) -> bool:
    """Whether values of this type are random keys."""
    return jnp.issubdtype(aval.dtype, jax.dtypes.prng_key)
