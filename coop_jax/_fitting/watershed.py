"""The watershed of a plan: where XLA's clock is put forward for its buffer assignment.

Longest first, XLA places buffers by how many others come and go meanwhile
(`_planning/buffer_assignment`). A call of many results of a byte each, which nothing
reads, is as many buffers, there and gone at once, in 16 KiB. XLA:GPU has a target for
calls that only need bytes, `AllocateBuffer` (`kNopCustomCallTarget`,
`xla/service/collective_ops_utils.h`), and runs nothing for one. So what is alive across
some of them outlasts all else, and no time goes by.

They start after all that comes before the watershed, and what comes behind starts after
them: both pass barriers, together with a byte that the first reads and one of the last.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .._planning.buffer_assignment import schedule_buffers, watersheds
from .._planning.packed_size import packed_size
from .._planning.types import OpId, Problem

_TARGET = "AllocateBuffer"
_BYTE = jax.ShapeDtypeStruct((1,), jnp.uint8)
_RESULTS = 64
# XLA has more buffers than the plan knows of, such as scalars.
_MORE_BUFFERS = 2
# Starts of parts on either side of the planner's place.
_NEAREST = 2


class Watershed:
    """The watershed while a program is emitted part by part.

    Args:
      problem: what is planned.
      parts: ops, in the order they run.
      tied: numbers of the parts that wait for what comes before them.
    """

    def __init__(
        self, problem: Problem, parts: Sequence[Sequence[OpId]], tied: Sequence[int]
    ) -> None:
        self._part, self._buffers = _chosen(problem, parts, tied)
        self._byte: jax.Array | None = None

    def is_at(self, part: int) -> bool:
        """Whether it is in front of this part."""
        return part == self._part

    def pass_over(self, before: Sequence[jax.Array]) -> list[jax.Array]:
        """Puts the clock forward once `before` is there; returns it from behind."""
        *behind, byte = lax.optimization_barrier([*before, jnp.zeros(1, jnp.uint8)])
        for _ in range(0, _MORE_BUFFERS * self._buffers, _RESULTS):
            byte, *_ = _call(byte, _RESULTS)
        self._byte = byte
        return behind

    def touched(self) -> Any:
        """What has to pass the next barrier, if anything."""
        return self._byte

    def passed(self, byte: Any) -> None:
        """Takes what `touched` said, from behind the barrier."""
        if self._byte is not None:
            # XLA takes what nothing reads out of a barrier.
            _call(byte, 1)
            self._byte = None


def _call(byte: jax.Array, results: int) -> Sequence[jax.Array]:
    """Buffers that come and go; a call of one is there to read, and stays."""
    call = jax.ffi.ffi_call(_TARGET, [_BYTE] * results, has_side_effect=results == 1)
    return call(byte)


def _chosen(
    problem: Problem, parts: Sequence[Sequence[OpId]], tied: Sequence[int]
) -> tuple[int | None, int]:
    """The part with the watershed in front, if it gains enough, and all buffers.

    The planner's place may be inside a part, or in front of one that is not tied. So it
    is that of the nearest tied ones with which the block is smallest.
    """
    schedule = tuple(chain.from_iterable(parts))
    buffers = schedule_buffers(problem, schedule)
    wanted = watersheds(problem, buffers)
    if not wanted or not tied:
        return None, 0
    starts = list(accumulate(map(len, parts), initial=0))
    behind = bisect_right([starts[part] for part in tied], wanted[0])
    near = tied[max(0, behind - _NEAREST) : behind + _NEAREST]
    sizes = {part: packed_size(problem, schedule, [starts[part]]) for part in near}
    best = min(sizes, key=sizes.__getitem__)
    gains = sizes[best] < packed_size(problem, schedule)
    return best if gains else None, len(buffers)
