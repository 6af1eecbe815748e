"""Times the ops of a problem on the device, for `cost_model="measured"`.

Each distinct op (equal equations on equal shapes count once) is compiled alone and run
a few times; its cost is the fastest run. Ops with effects keep their roofline cost.
"""

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp

from .._fitting.emit import compute_unit
from .profile import Profile
from .units import Unit

_RUNS = 3


def with_measured_costs(profile: Profile) -> Profile:
    """The profile with costs in seconds as timed on the default device."""
    known: dict[str, float] = {}
    ops = []
    for op, unit in zip(profile.problem.ops, profile.units, strict=True):
        if op.is_recomputable:
            cost = _seconds(profile, unit, known)
            op = dataclasses.replace(op, cost=cost)
        ops.append(op)
    problem = dataclasses.replace(profile.problem, ops=tuple(ops))
    return dataclasses.replace(profile, problem=problem)


def _seconds(profile: Profile, unit: Unit, known: dict[str, float]) -> float:
    def run(*values: Any) -> list[Any]:
        local = dict(zip(unit.inputs, values, strict=True))
        return compute_unit(profile, unit, local)

    values = [_example(profile.program.avals[v]) for v in unit.inputs]
    signature = str(jax.make_jaxpr(run)(*values))
    if signature not in known:
        compiled = jax.jit(run).lower(*values).compile()
        known[signature] = min(_time_once(compiled, values) for _ in range(_RUNS))
    return known[signature]


def _time_once(compiled: Any, values: list[Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(compiled(*values))
    return time.perf_counter() - start


def _example(aval: Any) -> Any:
    """Some value of this type; times do not depend on which."""
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        keys = jax.random.split(jax.random.key(0), aval.size or 1)
        return keys[: aval.size].reshape(aval.shape)
    return jnp.ones(aval.shape, aval.dtype)
