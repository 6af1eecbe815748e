"""What of a chain to keep, and what to run again and when, exactly. Imports no JAX.

A chain runs from its first segment to its last; then each has its turn, the last one
first, for which it must have run since, with what crosses into it kept. Of a part of
the chain into which what crosses is kept, either all of the first segment is kept until
its turn, or what crosses some place further on: then the part behind that comes first,
with so much less room, and the part in front runs again after it. This is the dynamic
program of chains (Griewank and Walther, ACM TOMS 2000; Beaumont et al., arXiv
1911.13214), with bytes counted in units.
"""

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .segments import Segment

_UNITS = 64


class Checkpoints:
    """Least seconds to run a chain's segments again, each at its turn.

    Per share of what readers take, and per bytes left.
    """

    def __init__(
        self,
        chain: Sequence[Segment],
        kept: np.ndarray,
        inside: Sequence[int],
        pool: int,
        shares: Sequence[float],
    ) -> None:
        """Fills the table.

        Args:
          chain: segments in order.
          kept: bytes made from one of them on that cross into another (`kept_bytes`).
          inside: per segment, bytes that its turn takes beside what is kept.
          pool: bytes there are.
          shares: of `inside`; for each there is a table.
        """
        self.chain = chain
        pool = max(1, pool)
        self.kept = -(-kept * _UNITS // pool)
        self.made = [-(-segment.made * _UNITS // pool) for segment in chain]
        self.starts = np.cumsum([0.0, *(segment.cost for segment in chain)])
        takes = np.multiply.outer(inside, shares)[..., None]
        left = np.arange(_UNITS + 1)
        self.room = np.where(takes * _UNITS <= left * pool, 0.0, np.inf)
        # Of a part of the chain, by its first and its last.
        count = len(chain)
        shape = count, count, len(shares)
        self.place = np.zeros((*shape, len(left)), np.int16)
        # With as many in front that are out of reach, what is left after some is kept
        # is a window further in front.
        cost = np.full((*shape, 2 * len(left)), np.inf)
        self.windows = sliding_window_view(cost, len(left), axis=-1)
        self.cost = cost[..., len(left) :]
        for k, segment in enumerate(chain):
            self.cost[k, k] = segment.cost + self.room[k]
        for length in range(1, count):
            for first in range(count - length):
                self._part(first, first + length)

    def _part(self, first: int, last: int) -> None:
        # All of the first one is kept, or what crosses some place behind it.
        whole = self._behind(first + 1, last, self.made[first])
        whole = whole + self.chain[first].cost + self.room[first]
        places = np.arange(first + 1, last + 1)
        behind = self._behind(places, last, self.kept[first, places])
        before = self.cost[first, first:last]
        again = (self.starts[places] - self.starts[first])[:, None, None]
        costs = np.concatenate([whole[None], again + before + behind])
        self.cost[first, last] = costs.min(axis=0)
        self.place[first, last] = first + costs.argmin(axis=0)

    def _behind[T: (int, np.ndarray)](self, first: T, last: int, kept: T) -> np.ndarray:
        """Seconds for parts of the chain, with so many units less."""
        return self.windows[first, last, :, np.maximum(_UNITS + 1 - kept, 0)]

    def runs_again(self, share: int) -> list[list[int]] | None:
        """Per segment, those at whose turn it runs again; None if there is no way."""
        last = len(self.chain) - 1
        if np.isinf(self.cost[0, last][share, _UNITS]):
            return None
        again: list[list[int]] = [[] for _ in self.chain]
        todo = [(0, last, _UNITS, True)]
        while todo:
            first, last, left, is_first_time = todo.pop()
            if first == last:
                again[first] += [] if is_first_time else [last]
                continue
            place = int(self.place[first, last][share, left])
            for k in () if is_first_time else range(first, max(place, first + 1)):
                again[k].append(last)
            if place == first:
                todo.append((first + 1, last, left - self.made[first], is_first_time))
            else:
                todo.append((first, place - 1, left, False))
                left -= int(self.kept[first, place])
                todo.append((place, last, left, is_first_time))
        return again
