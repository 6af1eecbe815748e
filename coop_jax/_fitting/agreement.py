"""Makes sure that all processes of a step run the same plan.

Every process plans on its own; what they compile must match, or their collectives would
wait for each other for ever. So each tells the others the digest of its plan, or that
it has none, before any of them runs it. Processes that have no device of the step are
not asked: they may be idle, or run another.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .._errors import PlanError
from .compile import FlatStep

_BYTES = 8
_NO_PLAN = "0" * 2 * _BYTES


def speakers(step: FlatStep) -> tuple[Any, ...]:
    """One device for each process that runs the step; none if that is one alone."""
    if jax.process_count() == 1:
        return ()
    arguments = [leaf.sharding for leaf in step.leaves]
    # A mesh that only a constraint names is among those that JAX settled on.
    shardings = jax.tree.leaves([arguments, step.jit_options])
    devices = {d for s in shardings for d in getattr(s, "device_set", ())}
    ordered = sorted(devices, key=lambda d: (d.process_index, d.id), reverse=True)
    of_process = {device.process_index: device for device in ordered}
    is_shared = len(of_process) > 1 and jax.process_index() in of_process
    return tuple(of_process[p] for p in sorted(of_process)) if is_shared else ()


def agree(fingerprint: str | None, program: str, speakers: Sequence[Any]) -> None:
    """Compares this process's plan with those of the others that run the step.

    Args:
      fingerprint: digest of the plan, or None if there is none.
      program: digest of what was planned.
      speakers: what `speakers` gives.

    Raises:
      PlanError: they differ, or another process has no plan.
    """
    text = "" if fingerprint is None else f"{program} {fingerprint}"
    digest = hashlib.sha256(text.encode()).digest()[:_BYTES] if text else bytes(_BYTES)
    mine = np.frombuffer(digest, np.uint8).astype(np.int32)
    digests = {
        device.process_index: bytes(row.astype(np.uint8)).hex()
        for device, row in zip(speakers, _gathered(mine, speakers), strict=True)
    }
    if len(set(digests.values())) > 1:
        raise PlanError(
            "the processes do not have the same plan",
            _listed(digests),
            "Or plan in one of them, save the plan, and pass it as `plan=` in all.",
        )


def _gathered(mine: np.ndarray, speakers: Sequence[Any]) -> np.ndarray:
    """What each of the processes passes as `mine`, in the order of the devices."""
    mesh = Mesh(np.array(speakers), ("processes",))
    (own,) = (d for d in speakers if d.process_index == jax.process_index())
    everyone = jax.make_array_from_single_device_arrays(
        (len(speakers), *mine.shape),
        NamedSharding(mesh, PartitionSpec("processes")),
        [jax.device_put(mine[None], own)],
    )
    whole = NamedSharding(mesh, PartitionSpec())
    gathered = jax.jit(lambda rows: rows, out_shardings=whole)(everyone)
    return np.asarray(gathered.addressable_data(0))


def _listed(digests: Mapping[int, str]) -> list[str]:
    """One sentence for each digest, with the processes that have it."""
    processes: dict[str, list[int]] = {}
    for process, digest in digests.items():
        processes.setdefault(digest, []).append(process)
    found = []
    for digest, who in processes.items():
        names = ", ".join(map(str, who))
        has = "no plan" if digest == _NO_PLAN else f"plan {digest}"
        found.append(f"Process {names}: {has}.")
    found.append(
        "The step, its arguments, budget and options, and the versions of jax and "
        "coop_jax have to be the same in every process."
    )
    return found
