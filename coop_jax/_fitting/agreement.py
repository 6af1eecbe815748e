"""Makes sure that all processes of a step run the same plan.

Every process plans on its own; what they compile must match, or their collectives would
wait for each other for ever. So each tells the others the digest of its plan, or that
it has none, before any of them runs it.
"""

import hashlib

import jax
import numpy as np
from jax.experimental import multihost_utils

from .._errors import PlanError
from .compile import FlatStep

_BYTES = 8
_NO_PLAN = "0" * 2 * _BYTES


def is_shared(step: FlatStep) -> bool:
    """Whether the step runs on devices of several processes."""
    if jax.process_count() == 1:
        return False
    own = jax.process_index()
    return any(
        device.process_index != own
        for leaf in step.leaves
        if leaf.sharding is not None
        for device in leaf.sharding.device_set
    )


def agree(fingerprint: str | None, program: str) -> None:
    """Compares this process's plan with those of all others.

    Args:
      fingerprint: digest of the plan, or None if there is none.
      program: digest of what was planned.

    Raises:
      PlanError: they differ, or another process has no plan.
    """
    text = "" if fingerprint is None else f"{program} {fingerprint}"
    digest = hashlib.sha256(text.encode()).digest()[:_BYTES] if text else bytes(_BYTES)
    mine = np.frombuffer(digest, np.uint8).astype(np.int32)
    everyone = np.asarray(multihost_utils.process_allgather(mine))
    digests = [bytes(row.astype(np.uint8)).hex() for row in everyone]
    if len(set(digests)) > 1:
        raise PlanError("the processes do not have the same plan", _listed(digests))


def _listed(digests: list[str]) -> list[str]:
    """One sentence for each digest, with the processes that have it."""
    processes: dict[str, list[int]] = {}
    for process, digest in enumerate(digests):
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
