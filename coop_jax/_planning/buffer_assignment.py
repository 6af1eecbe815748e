"""Packs live ranges into one block of bytes as XLA does. Imports no JAX.

XLA puts all temporaries of a module into one preallocated block with
`GlobalDecreasingSizeBestFitHeap` (`xla/service/heap_simulator/heap_simulator.cc`):
buffers in a fixed order, each into the smallest free gap among those already placed
that are alive at the same time, of equal gaps the lowest; above the last of them the
gap is endless. It does so twice (`xla/service/buffer_assignment.cc`), by size and then
duration and by duration and then size, and keeps the smaller block. How long a buffer
lasts is counted in ticks: XLA's clock goes on with each call of `Alloc`, `Free` and
`ShareWith`, so twice where something takes over the bytes of what dies there. By size,
of what does so only the first counts for how long, by duration all
(`GetSpatialBufferIntervalCompare` knows no colocations). With many arrays of one size
that decides: taken for all, U-Net's plans were predicted up to 12 % low, and without
the ticks of what takes bytes over those of a stack of eight layers up to 24 %.

That clock can be put forward: many buffers that come and go at one place, the
*watershed*, make what is alive across it outlast all else, and be placed before it. So
it lies together, where else what is yet to come leaves gaps in between (one plan of a
GPT-3 for a described H200: 17.0 GB for 18.4). `_fitting/watershed` says how.

On GPU the packing by duration counts only so (`Problem.has_durations`). XLA orders what
is inside of a part by itself and turns operands around in arrays of their own, so that
ticks are not as planned; by size they decide among equals alone. A search that counts
both finds plans that are small by duration by luck (of a U-Net 1,970 MB, by size 2,146:
XLA's durations gave 2,328, and it took 2,147).

Left out: memory spaces (colours), constraints on the size of a block, and buffers that
XLA places in arguments or outputs. What shares bytes must come as one buffer, which is
what `schedule_buffers` returns.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .types import LiveRange, OpId, Problem, Schedule, ValueId

_LEAST_GAIN = 100
"""Of this many bytes of the block, what a watershed saves is at least one."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """`size` bytes that are in use over `live_range` (positions in the schedule).

    Attributes:
      takeovers: the positions at which something takes its bytes over, in order.
    """

    size: int
    live_range: LiveRange
    takeovers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where each buffer lies.

    Attributes:
      offsets: bytes from the start of the block, in the order of the buffers.
      peak: bytes of the block.
      live_peak: most bytes alive at once, which no assignment can beat.
      watershed: the position in front of which the clock is put forward, if it is.
    """

    offsets: tuple[int, ...]
    peak: int
    live_peak: int
    watershed: int | None = None

    @property
    def fragmentation(self) -> int:
        """Bytes of the block that packing loses."""
        return self.peak - self.live_peak


type _Packing = tuple[list[int], int, int | None]
"""Offsets, peak, watershed."""


def assign(
    buffers: Sequence[Buffer],
    alignment: int = 64,
    watersheds: Sequence[int] = (),
    *,
    has_durations: bool = True,
) -> Assignment:
    """Returns XLA's packing of the buffers.

    Args:
      buffers: what to place; ties keep this order, as XLA's keep that of its values.
      alignment: offsets are multiples of it, bytes (64 on CPU, 256 on GPU).
      watersheds: positions in front of one of which the clock may be put forward, if
        the block is a hundredth smaller for it.
      has_durations: whether the packing by duration counts without one, too.
    """
    sizes = [buffer.size for buffer in buffers]
    first_durations, durations = _durations(buffers)

    def across_first(i: int, watershed: int) -> tuple[bool, int, int]:
        return not _crosses(buffers[i], watershed), -durations[i], -sizes[i]

    def pack(order: Sequence[int], at: int | None = None) -> _Packing:
        return (*_pack(buffers, order, alignment), at)

    numbers = range(len(buffers))
    spatial = sorted(numbers, key=lambda i: (-sizes[i], -first_durations[i]))
    temporal = sorted(numbers, key=lambda i: (-durations[i], -sizes[i]))
    # Of equal peaks XLA keeps the first.
    orders = (spatial, temporal) if has_durations else (spatial,)
    plain = min(map(pack, orders), key=_peak)
    across = [
        pack(sorted(numbers, key=lambda i: across_first(i, at)), at)
        for at in watersheds
    ]
    found = min((plain, *across), key=_peak)
    if _peak(found) > _peak(plain) - _peak(plain) // _LEAST_GAIN:
        found = plain
    offsets, peak, watershed = found
    return Assignment(tuple(offsets), peak, live_peak(buffers), watershed)


def _peak(packing: _Packing) -> int:
    return packing[1]


def packed(problem: Problem, schedule: Schedule) -> Assignment:
    """Returns XLA's packing of what a schedule needs in the pool.

    The watershed, if there can be one, is in front of the fullest step or behind it.
    """
    buffers = schedule_buffers(problem, schedule)
    return assign(
        buffers,
        problem.alignment,
        watersheds(problem, buffers),
        has_durations=problem.has_durations,
    )


def watersheds(problem: Problem, buffers: Sequence[Buffer]) -> tuple[int, ...]:
    """Positions for the watershed of what the buffers belong to."""
    if not problem.has_watershed or not buffers:
        return ()
    fullest = int(np.argmax(_alive(buffers)))
    return fullest, fullest + 1


def _crosses(buffer: Buffer, watershed: int) -> bool:
    return buffer.live_range.start < watershed < buffer.live_range.end


def _durations(buffers: Sequence[Buffer]) -> tuple[list[int], list[int]]:
    """Per buffer, the ticks of XLA's clock until its first owner goes, and its last.

    Within a step what comes does so before what goes, in the order of the buffers.
    """
    ticks = [
        tick
        for i, buffer in enumerate(buffers)
        if buffer.size
        for tick in (
            (buffer.live_range.start, 0, i),
            *((at, 0, i) for at in buffer.takeovers for _ in ("Free", "ShareWith")),
            (buffer.live_range.end - 1, 1, i),
        )
    ]
    clock: list[list[int]] = [[] for _ in buffers]
    for time, (_, _, i) in enumerate(sorted(ticks)):
        clock[i].append(time)
    first = [times[1] - times[0] if times else 0 for times in clock]
    return first, [times[-1] - times[0] if times else 0 for times in clock]


def live_peak(buffers: Sequence[Buffer]) -> int:
    """Returns the most bytes alive at once."""
    return int(_alive(buffers).max()) if buffers else 0


def _alive(buffers: Sequence[Buffer]) -> np.ndarray:
    """Bytes alive at each position."""
    sizes = np.array([buffer.size for buffer in buffers], np.int64)
    starts = np.array([buffer.live_range.start for buffer in buffers], np.int64)
    ends = np.array([buffer.live_range.end for buffer in buffers], np.int64)
    change = np.zeros(int(max(ends.max(), starts.max())) + 1, np.int64)
    is_alive = starts < ends
    np.add.at(change, starts[is_alive], sizes[is_alive])
    np.add.at(change, ends[is_alive], -sizes[is_alive])
    return np.cumsum(change)


@dataclass(frozen=True, slots=True)
class Tenancy:
    """One stretch over which one buffer holds one thing.

    Attributes:
      value: what it holds, or None for an op's workspace.
      op: what writes it.
      buffer: number of the buffer.
      start, end: half-open range of positions in the schedule.
    """

    value: ValueId | None
    op: OpId
    buffer: int
    start: int
    end: int


def schedule_buffers(problem: Problem, schedule: Schedule) -> tuple[Buffer, ...]:
    """Returns what a schedule needs in the pool, values in place as one buffer.

    An output takes the bytes of an input that is dead after the step, if the op allows
    it and both have the same size. Each piece of a step's workspace is one of its own.
    """
    return schedule_tenancies(problem, schedule)[0]


def schedule_tenancies(
    problem: Problem, schedule: Schedule
) -> tuple[tuple[Buffer, ...], tuple[Tenancy, ...]]:
    """As `schedule_buffers`, and what each buffer holds when."""
    last_reads = _last_reads(problem, schedule)
    found: list[Buffer] = []
    takeovers = defaultdict[int, list[int]](list)
    latest: dict[ValueId, int] = {}
    starts: list[tuple[ValueId | None, OpId, int, int]] = []
    for step, op in enumerate(schedule):
        spec = problem.ops[op]
        for value in spec.inputs:
            if value in latest:
                _extend(found, latest[value], step + 1)
        successors = _in_place(problem, op, step, last_reads, latest)
        for value in spec.outputs:
            if value in successors:
                index = latest[value] = latest.pop(successors[value])
                takeovers[index].append(step)
            elif problem.values[value].size > 0:
                latest[value] = len(found)
                found.append(
                    Buffer(problem.values[value].size, LiveRange(step, step + 1))
                )
            else:
                continue
            starts.append((value, op, latest[value], step))
        for size in spec.workspaces:
            starts.append((None, op, len(found), step))
            found.append(Buffer(size, LiveRange(step, step + 1)))
    for value, index in latest.items():
        if problem.values[value].is_output:
            _extend(found, index, len(schedule) + 1)
    for index, steps in takeovers.items():
        found[index] = replace(found[index], takeovers=tuple(steps))
    return tuple(found), _tenancies(found, starts)


def _tenancies(
    buffers: Sequence[Buffer], starts: Sequence[tuple[ValueId | None, OpId, int, int]]
) -> tuple[Tenancy, ...]:
    """Each tenant stays until the next one of its buffer comes."""
    end = [buffer.live_range.end for buffer in buffers]
    found = []
    for value, op, index, start in reversed(starts):
        found.append(Tenancy(value, op, index, start, end[index]))
        end[index] = start
    return tuple(reversed(found))


def taken_over(problem: Problem, schedule: Schedule) -> set[ValueId]:
    """Values that are computed into the bytes of an input, whenever they are."""
    _, tenancies = schedule_tenancies(problem, schedule)
    first: set[int] = set()
    found: set[ValueId] = set()
    for tenancy in tenancies:
        if tenancy.buffer in first and tenancy.value is not None:
            found.add(tenancy.value)
        first.add(tenancy.buffer)
    return found


def _extend(buffers: list[Buffer], index: int, end: int) -> None:
    start = buffers[index].live_range.start
    buffers[index] = replace(buffers[index], live_range=LiveRange(start, end))


def _last_reads(problem: Problem, schedule: Schedule) -> set[tuple[int, ValueId]]:
    """(Step, value) for each step that is the last to read an instance."""
    found: set[tuple[int, ValueId]] = set()
    is_wanted = [value.is_output for value in problem.values]
    # Backwards: what is read or an output before it is computed again is wanted.
    for step in range(len(schedule) - 1, -1, -1):
        op = problem.ops[schedule[step]]
        for value in op.outputs:
            is_wanted[value] = False
        for value in op.inputs:
            if not is_wanted[value]:
                found.add((step, value))
            is_wanted[value] = True
    return found


def _in_place(
    problem: Problem,
    op: OpId,
    step: int,
    last_reads: set[tuple[int, ValueId]],
    latest: dict[ValueId, int],
) -> dict[ValueId, ValueId]:
    """Outputs that take over an input's bytes -> that input."""
    found: dict[ValueId, ValueId] = {}
    for source, target in problem.ops[op].in_place:
        is_dead = (step, source) in last_reads and source in latest
        is_same = problem.values[source].size == problem.values[target].size
        is_first = target not in found and source not in found.values()
        if is_dead and is_same and is_first:
            found[target] = source
    return found


_START, _END, _LOW, _HIGH = range(4)


def _pack(
    buffers: Sequence[Buffer], order: Sequence[int], alignment: int
) -> tuple[list[int], int]:
    """Offsets and peak when buffers are placed in this order."""
    offsets = [0] * len(buffers)
    # Columns are placed buffers by offset: live range, first and last byte + 1.
    placed = np.zeros((4, len(buffers)), np.int64)
    count = 0
    for index in order:
        size, range_ = buffers[index].size, buffers[index].live_range
        if size == 0:
            continue
        here = placed[:, :count]
        is_overlapping = (here[_START] < range_.end) & (here[_END] > range_.start)
        overlapping = here[:, is_overlapping]
        offset = _best_gap(overlapping[_LOW], overlapping[_HIGH], size, alignment)
        offsets[index] = offset
        at = int(np.searchsorted(here[_LOW], offset))
        placed[:, at + 1 : count + 1] = placed[:, at:count]
        placed[:, at] = range_.start, range_.end, offset, offset + size
        count += 1
    return offsets, int(placed[_HIGH].max(initial=0))


def _best_gap(low: np.ndarray, high: np.ndarray, size: int, alignment: int) -> int:
    """Offset of the smallest sufficient gap between chunks that are sorted by `low`."""
    if not len(low):
        return 0
    # A chunk may end below one that began before it, so look at the highest so far.
    ends = -(-np.maximum.accumulate(high) // alignment) * alignment
    starts = np.concatenate(([0], ends))
    gaps = low - starts[:-1]
    fits = np.flatnonzero(gaps >= size)
    if not len(fits):
        return int(starts[-1])
    return int(starts[fits[np.argmin(gaps[fits])]])
