"""What XLA holds alive where a compiled step is fullest, by its own account.

XLA packs temporaries by simulating a heap (`xla/service/heap_simulator`), and writes
down each call: what is allocated, what is freed, and what takes over the bytes of
something else. Played again, this says what is alive, where packing says only how much
room that took.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from coop_jax._program.hlo_messages import parse

_ALLOC, _FREE = 0, 1


@dataclass(frozen=True, slots=True)
class Held:
    """An array that is alive.

    Attributes:
      size: bytes.
      instruction: that wrote it; of what took its bytes over since, the first.
    """

    size: int
    instruction: str


@dataclass(frozen=True, slots=True)
class Fullest:
    """The place of a module where most bytes are alive.

    Attributes:
      bytes: alive there.
      held: what is alive.
      came: instructions whose arrays came until then, the last one first.
    """

    bytes: int
    held: tuple[Held, ...]
    came: tuple[str, ...]


def fullest(serialized: bytes) -> Fullest:
    """Where a module is fullest; of its blocks of temporaries, in the largest.

    Args:
      serialized: an `HloProto` that XLA dumped after its optimizations.
    """
    assignment = parse("Hlo", serialized).buffer_assignment
    sizes = {buffer.id: buffer.size for buffer in assignment.logical_buffers}
    traces = (
        _played(trace.events, sizes) for trace in assignment.heap_simulator_traces
    )
    return max(traces, key=lambda found: found.bytes, default=Fullest(0, (), ()))


def _played(events: Iterable[Any], sizes: dict[int, int]) -> Fullest:
    shares: dict[int, int] = {}
    users: dict[int, int] = {}
    alive: dict[int, Held] = {}
    came: list[str] = []
    now, most = 0, Fullest(0, (), ())
    for event in events:
        if event.kind == _FREE:
            first = shares[event.buffer_id]
            users[first] -= 1
            if not users[first]:
                now -= alive.pop(first).size
            continue
        is_new = event.kind == _ALLOC
        first = event.buffer_id if is_new else shares[event.share_with_canonical_id]
        shares[event.buffer_id] = first
        came.append(event.instruction_name)
        users[first] = users.get(first, 0) + 1
        if users[first] == 1:
            alive[first] = Held(sizes[first], event.instruction_name)
            now += sizes[first]
        if now > most.bytes:
            most = Fullest(now, tuple(alive.values()), tuple(reversed(came)))
    return most
