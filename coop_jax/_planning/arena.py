"""One contiguous pool of bytes. No JAX.

Address-ordered chunks, free or used, tile the pool exactly; free neighbours are always
merged. Allocation is best fit by size, from the low or the high end of the chosen
chunk: Coop's cheap tensor partitioning (NeurIPS 2023, arXiv 2311.00591), in which
expensive values grow from the low end and cheap ones from the high end.

The arena moves bytes and never asks what is in them. A used chunk carries a number, its
owner, and `offsets` and `owners` show all chunks as arrays, so that whoever decides
what to evict can look at the whole pool at once (`window`, `scores`).
"""

import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .window import Window, WindowSearch

FREE = -1
"""The owner of a free chunk."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of the pool; `offset` and `size` in bytes."""

    offset: int
    size: int
    is_free: bool


class Arena:
    """The pool. Sizes are rounded up to multiples of `alignment`, bytes."""

    def __init__(self, capacity: int, alignment: int = 1) -> None:
        self.alignment = alignment
        self.capacity = max(0, capacity) // alignment * alignment
        self.free_bytes = self.capacity
        self.peak = 0
        self._free: list[tuple[int, int]] = []
        self._search = WindowSearch()
        # Behind the last chunk stands the capacity, as if another one began there.
        self._offsets = np.full(64, self.capacity)
        self._owners = np.full(64, FREE)
        self._count = 0
        if self.capacity:
            self._offsets[0] = 0
            self._count = 1
            self._free.append((self.capacity, 0))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Chunk]:
        ends = self.offsets.tolist()
        for (start, end), owner in zip(pairwise(ends), self.owners, strict=True):
            yield Chunk(start, end - start, bool(owner == FREE))

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Of all chunks in address order, and at last the capacity (a view)."""
        return self._offsets[: self._count + 1]

    @property
    def owners(self) -> NDArray[np.int64]:
        """Of all chunks in address order, `FREE` or as allocated (a view)."""
        return self._owners[: self._count]

    def rounded(self, size: int) -> int:
        """Bytes that an allocation of `size` takes."""
        return -(-size // self.alignment) * self.alignment

    def allocate(self, size: int, low: bool = True, owner: int = 0) -> int | None:
        """Takes `size` bytes of the smallest free chunk that has them.

        Args:
          size: bytes, at least 1.
          low: take the low end of the chunk, and of equal chunks the lowest; otherwise
            the high end, and of equal chunks the highest.
          owner: a number of the caller's, at least 0.

        Returns:
          The offset, or None if no free chunk is large enough.
        """
        if size < 1 or owner < 0:
            raise ValueError(f"cannot allocate {size} bytes for owner {owner}")
        size = self.rounded(size)
        place = bisect_left(self._free, (size, -1))
        if place == len(self._free):
            return None
        if not low:
            largest = (self._free[place][0], sys.maxsize)
            place = bisect_right(self._free, largest) - 1
        found, offset = self._free.pop(place)
        index = self._index(offset)
        self.free_bytes -= size
        self.peak = max(self.peak, self.capacity - self.free_bytes)
        if found > size:
            rest = offset + size if low else offset
            insort(self._free, (found - size, rest))
            middle = offset + size if low else offset + found - size
            self._insert(index, middle)
            index += not low
            offset = offset if low else middle
        self._owners[index] = owner
        return offset

    def free(self, offset: int) -> None:
        """Gives back the used chunk at `offset`."""
        index = self._used(offset)
        self._owners[index] = FREE
        start, end = offset, int(self._offsets[index + 1])
        self.free_bytes += end - start
        if index + 1 < self._count and self._owners[index + 1] == FREE:
            end = int(self._offsets[index + 2])
            self._forget(end - int(self._offsets[index + 1]), end)
            self._remove(index + 1)
        if index > 0 and self._owners[index - 1] == FREE:
            self._forget(start - int(self._offsets[index - 1]), start)
            start = int(self._offsets[index - 1])
            self._remove(index)
        insort(self._free, (end - start, start))

    def hand_over(self, offset: int, owner: int) -> None:
        """Gives the used chunk at `offset` another owner."""
        self._owners[self._used(offset)] = owner

    def free_beside(self) -> NDArray[np.int64]:
        """Per chunk, the free bytes directly next to it, on both sides."""
        free = np.where(self.owners == FREE, np.diff(self.offsets), 0)
        beside = np.zeros_like(free)
        beside[1:] += free[:-1]
        beside[:-1] += free[1:]
        return beside

    def cheapest_window(self, need: int, costs: NDArray[np.float64]) -> Window | None:
        """Finds the cheapest run of adjacent chunks that can hold `need` bytes.

        Args:
          need: bytes.
          costs: of evicting each chunk: 0 if it is free, inf if it must stay.

        Returns:
          The window, as positions in `owners`, or None if there is none.
        """
        return self._search.cheapest(self.offsets, costs, self.rounded(need))

    def check(self) -> None:
        """Asserts that the chunks tile the pool, merged and in order."""
        at = 0
        chunks = list(self)
        for chunk in chunks:
            assert chunk.offset == at and chunk.size > 0, f"gap or overlap at {at}"
            assert chunk.size % self.alignment == 0, f"chunk at {at} is not aligned"
            at += chunk.size
        assert at == self.capacity, f"chunks come to {at} of {self.capacity} bytes"
        for one, other in pairwise(chunks):
            assert not (one.is_free and other.is_free), f"not merged at {other.offset}"
        free = sorted((chunk.size, chunk.offset) for chunk in chunks if chunk.is_free)
        assert self._free == free, "the list of free chunks is wrong"
        assert self.free_bytes == sum(size for size, _ in free), "free bytes are wrong"

    def _index(self, offset: int) -> int:
        return int(self.offsets.searchsorted(offset))

    def _used(self, offset: int) -> int:
        index = self._index(offset)
        is_used = index < self._count and self._offsets[index] == offset
        if not is_used or self._owners[index] == FREE:
            raise ValueError(f"no used chunk is at offset {offset}")
        return index

    def _insert(self, index: int, offset: int) -> None:
        """Splits the free chunk at `index` at this offset."""
        if self._count + 2 > len(self._owners):
            self._offsets = np.concatenate((self._offsets, self._offsets))
            self._owners = np.concatenate((self._owners, self._owners))
        self._count += 1
        end = self._count
        self._offsets[index + 2 : end + 1] = self._offsets[index + 1 : end]
        self._owners[index + 2 : end] = self._owners[index + 1 : end - 1]
        self._offsets[index + 1] = offset
        self._owners[index + 1] = FREE

    def _remove(self, index: int) -> None:
        """Joins the free chunk at `index` to the free one before it."""
        end = self._count
        self._offsets[index:end] = self._offsets[index + 1 : end + 1]
        self._owners[index : end - 1] = self._owners[index + 1 : end]
        self._count -= 1

    def _forget(self, size: int, end: int) -> None:
        """Takes a free chunk, given by its end, off the list."""
        del self._free[bisect_left(self._free, (size, end - size))]
