"""One contiguous pool of bytes, and the search for what to evict from it. No JAX.

Address-ordered chunks, free or used, tile the pool exactly; free neighbours are always
merged. Allocation is best fit by size, from the low or the high end of the chosen
chunk: Coop's cheap tensor partitioning (NeurIPS 2023, arXiv 2311.00591), in which
expensive values grow from the low end and cheap ones from the high end.
`cheapest_window` is its sliding window: the run of adjacent chunks that is large enough
and cheapest to evict.

The arena moves bytes and never asks what is in them: costs and pins are passed in.

The published search keeps one running sum, misses windows at the end of the pool, and
is poisoned by `inf - inf`. Here every window is summed from its own chunks, by doubling
and without subtraction, so neither can happen and nothing drifts.
"""

import math
import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

TIE = 1e-12
"""Windows whose costs differ by less than this, relatively, cost the same."""

_LAST_CHOICE = 1e300
"""Stands for an infinite cost of a chunk that may go; 10^8 of them can be added."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of the pool; `offset` and `size` in bytes."""

    offset: int
    size: int
    is_free: bool


@dataclass(frozen=True, slots=True)
class Window:
    """Adjacent chunks, `start` to `end` (half open), and what evicting them costs."""

    start: int
    end: int
    cost: float


@dataclass(frozen=True, slots=True)
class Eviction:
    """The outcome of `Arena.cheapest_window`.

    Attributes:
      offsets: of the used chunks in the window, in address order.
      size: bytes of the window, free chunks included.
      cost: sum over the used chunks.
    """

    offsets: tuple[int, ...]
    size: int
    cost: float


def cheapest_window(sizes: ArrayLike, costs: ArrayLike, need: int) -> Window | None:
    """Returns the cheapest run of adjacent chunks of at least `need` bytes.

    Costs are not negative, so of the windows that end at one chunk only the shortest
    sufficient one can win: n candidates. Ties go to the smaller surplus, then to the
    lower address.

    Args:
      sizes: bytes of each chunk, in address order.
      costs: of evicting each chunk: 0 if free, inf if it must stay.
      need: bytes, at least 1.

    Returns:
      The window, or None if there is none.
    """
    size, cost = np.asarray(sizes, np.int64), np.asarray(costs, np.float64)
    if need < 1 or not np.all(cost >= 0):
        raise ValueError("a window has at least one byte and costs that are >= 0")
    count = len(size)
    before = np.zeros(count + 1, np.int64)
    np.cumsum(size, out=before[1:])
    starts = np.searchsorted(before, before[1:] - need, side="right") - 1
    barriers = np.where(np.isinf(cost), np.arange(1, count + 1), 0)
    starts[starts < np.maximum.accumulate(barriers)] = -1
    ends = np.flatnonzero(starts >= 0) + 1
    if not len(ends):
        return None
    starts = starts[ends - 1]
    total = _sums(cost, starts, ends)
    tied = np.flatnonzero(total <= float(total.min()) * (1 + TIE))
    surplus = before[ends[tied]] - before[starts[tied]]
    winner = tied[np.argmin(surplus)]
    start, end = int(starts[winner]), int(ends[winner])
    return Window(start, end, _exact_sum(cost[start:end]))


def _sums(
    terms: NDArray[np.float64], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Sums of `terms[start:end]`, each from runs of 1, 2, 4, ... terms."""
    total = np.zeros(len(starts))
    at, left = starts.copy(), ends - starts
    longest = int(left.max())
    runs = terms
    step = 1
    # Sums of huge costs may become inf, which only means that they are the last choice.
    with np.errstate(over="ignore"):
        while True:
            chosen = np.flatnonzero(left & step)
            total[chosen] += runs[at[chosen]]
            at[chosen] += step
            step *= 2
            if step > longest:
                return total
            runs = runs[: -(step // 2)] + runs[step // 2 :]


def _exact_sum(terms: NDArray[np.float64]) -> float:
    try:
        return math.fsum(terms.tolist())
    except OverflowError:
        return math.inf


class Arena:
    """The pool. Sizes are rounded up to multiples of `alignment`, bytes."""

    def __init__(self, capacity: int, alignment: int = 1) -> None:
        self.alignment = alignment
        self.capacity = max(0, capacity) // alignment * alignment
        self.free_bytes = self.capacity
        self._offsets: list[int] = []
        self._sizes: dict[int, int] = {}
        self._free: list[tuple[int, int]] = []
        self._free_offsets: set[int] = set()
        if self.capacity:
            self._offsets.append(0)
            self._add_free(0, self.capacity)

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[Chunk]:
        for offset in self._offsets:
            yield Chunk(offset, self._sizes[offset], offset in self._free_offsets)

    def rounded(self, size: int) -> int:
        """Bytes that an allocation of `size` takes."""
        return -(-size // self.alignment) * self.alignment

    def allocate(self, size: int, low: bool = True) -> int | None:
        """Takes `size` bytes of the smallest free chunk that has them.

        Args:
          size: bytes, at least 1.
          low: take the low end of the chunk, and of equal chunks the lowest; otherwise
            the high end, and of equal chunks the highest.

        Returns:
          The offset, or None if no free chunk is large enough.
        """
        if size < 1:
            raise ValueError(f"cannot allocate {size} bytes")
        size = self.rounded(size)
        index = bisect_left(self._free, (size, -1))
        if index == len(self._free):
            return None
        found, offset = self._free[index]
        if not low:
            index = bisect_right(self._free, (found, sys.maxsize)) - 1
            found, offset = self._free[index]
        self._take_free(offset)
        self.free_bytes -= size
        if found == size:
            self._sizes[offset] = size
            return offset
        taken, rest = offset, offset + size
        if not low:
            taken, rest = offset + found - size, offset
        insort(self._offsets, max(taken, rest))
        self._sizes[taken] = size
        self._add_free(rest, found - size)
        return taken

    def free(self, offset: int) -> None:
        """Gives back the used chunk at `offset`."""
        if offset not in self._sizes or offset in self._free_offsets:
            raise ValueError(f"no used chunk is at offset {offset}")
        size = self._sizes.pop(offset)
        self.free_bytes += size
        index = bisect_left(self._offsets, offset)
        last = index + 1
        if last < len(self._offsets) and self._offsets[last] in self._free_offsets:
            size += self._take_free(self._offsets[last])
            last += 1
        if index > 0 and self._offsets[index - 1] in self._free_offsets:
            index -= 1
            size += self._take_free(self._offsets[index])
        start = self._offsets[index]
        self._offsets[index:last] = [start]
        self._add_free(start, size)

    def free_beside(self, offset: int) -> int:
        """Free bytes directly next to the used chunk at `offset`, on both sides."""
        index = bisect_left(self._offsets, offset)
        beside = self._offsets[max(0, index - 1) : index + 2]
        return sum(self._sizes[o] for o in beside if o in self._free_offsets)

    def cheapest_window(
        self, need: int, cost: Callable[[int], float], is_pinned: Callable[[int], bool]
    ) -> Eviction | None:
        """Finds the cheapest run of adjacent chunks that can hold `need` bytes.

        Args:
          need: bytes.
          cost: of evicting the used chunk at an offset, at least 0. If inf, the chunk
            is the last choice, but not a barrier.
          is_pinned: whether the used chunk at an offset must stay.

        Returns:
          The used chunks to free, or None if pinned chunks leave no room.
        """
        sizes = [self._sizes[offset] for offset in self._offsets]
        costs = [0.0] * len(sizes)
        for index, offset in enumerate(self._offsets):
            if offset not in self._free_offsets:
                pinned = is_pinned(offset)
                costs[index] = math.inf if pinned else min(cost(offset), _LAST_CHOICE)
        window = cheapest_window(sizes, costs, self.rounded(need))
        if window is None:
            return None
        inside = self._offsets[window.start : window.end]
        size = sum(self._sizes[offset] for offset in inside)
        used = tuple(offset for offset in inside if offset not in self._free_offsets)
        return Eviction(used, size, window.cost)

    def check(self) -> None:
        """Asserts that the chunks tile the pool, merged and in order."""
        chunks = list(self)
        assert self._offsets == sorted(self._sizes), "chunks and sizes disagree"
        at = 0
        for chunk in chunks:
            assert chunk.offset == at and chunk.size > 0, f"gap or overlap at {at}"
            assert chunk.size % self.alignment == 0, f"chunk at {at} is not aligned"
            at += chunk.size
        assert at == self.capacity, f"chunks come to {at} of {self.capacity} bytes"
        for one, other in pairwise(chunks):
            assert not (one.is_free and other.is_free), f"not merged at {other.offset}"
        free = sorted((chunk.size, chunk.offset) for chunk in chunks if chunk.is_free)
        assert self._free == free, "the list of free chunks is wrong"
        assert self._free_offsets == {at for _, at in free}, "their offsets are wrong"
        assert self.free_bytes == sum(size for size, _ in free), "free bytes are wrong"

    def _add_free(self, offset: int, size: int) -> None:
        self._sizes[offset] = size
        self._free_offsets.add(offset)
        insort(self._free, (size, offset))

    def _take_free(self, offset: int) -> int:
        size = self._sizes.pop(offset)
        self._free_offsets.remove(offset)
        del self._free[bisect_left(self._free, (size, offset))]
        return size
