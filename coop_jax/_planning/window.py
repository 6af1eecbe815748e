"""The sliding window: the cheapest run of adjacent chunks that is large enough. No JAX.

Costs are not negative, so of the windows that end at one chunk only the shortest
sufficient one can win: n candidates, found and compared in time linear in the chunks.

The published search (OneFlow, `EvictAndFindPieceOnce`) keeps one running sum, misses
windows at the end of the pool, and is poisoned by `inf - inf`. Here the sums are
differences of prefix sums, made anew for every search, so that nothing drifts; whatever
their rounding could have hidden is summed again from its own chunks, and a chunk that
must stay only cuts the pool in two.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

TIE = 1e-12
"""Windows whose costs differ by less than this, relatively, cost the same."""

LAST_CHOICE = 1e300
"""Stands for an infinite cost of a chunk that may go; 10^8 of them can be added."""

type Floats = NDArray[np.float64]
type Integers = NDArray[np.int64]
type Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Window:
    """Adjacent chunks, `start` to `end` (half open), and what evicting them costs."""

    start: int
    end: int
    cost: float


def cheapest_window(sizes: ArrayLike, costs: ArrayLike, need: int) -> Window | None:
    """Returns the cheapest run of adjacent chunks of at least `need` bytes.

    Ties go to the smaller surplus, then to the lower address.

    Args:
      sizes: bytes of each chunk, in address order.
      costs: of evicting each chunk: 0 if free, inf if it must stay.
      need: bytes, at least 1.

    Returns:
      The window, or None if there is none.

    Raises:
      ValueError: need is less than 1, or a cost is negative or not a number.
    """
    size, cost = np.asarray(sizes, np.int64), np.asarray(costs, np.float64)
    if need < 1 or not np.all(cost >= 0):
        raise ValueError("a window has at least one byte and costs that are >= 0")
    offsets = np.concatenate(([0], np.cumsum(size)))
    return WindowSearch().cheapest(offsets, cost, need)


class WindowSearch:
    """The search with its work arrays, which only grow.

    Its loops are NumPy's. A search allocates two arrays of positions: the chunks that
    may be in a window, and where the window that ends with each begins.
    """

    def __init__(self) -> None:
        self._room = 0

    def cheapest(self, offsets: Integers, costs: Floats, need: int) -> Window | None:
        """As `cheapest_window`, without its checks.

        Args:
          offsets: of the n chunks in address order, and where the last one ends.
          costs: of evicting each of the n chunks, inf if it must stay.
          need: bytes, at least 1.
        """
        if len(costs) == 0:
            return None
        self._reserve(len(costs))
        places = np.flatnonzero(np.isfinite(costs, out=self._flags[: len(costs)]))
        if len(places) == 0:
            return None
        starts, has_window = self._starts_of(offsets, places, need)
        totals, error = self._totals(costs, places, starts)
        totals[~has_window] = math.inf
        best = float(totals.min())
        if math.isfinite(error):
            limit = best * (1 + 2 * TIE) + 5 * error
            candidates = np.flatnonzero((totals <= limit) & has_window)
        else:
            candidates = np.flatnonzero(has_window)
        if len(candidates) == 0:
            return None
        first, last = places[starts[candidates]], places[candidates] + 1
        winner = 0
        if len(candidates) > 1:
            winner = _cheapest_of(offsets, costs, first, last)
        start, end = int(first[winner]), int(last[winner])
        return Window(start, end, _exact_sum(costs[start:end]))

    def _reserve(self, count: int) -> None:
        if count <= self._room:
            return
        self._room = room = 2 * count
        self._flags = np.empty(room, bool)
        self._has_window = np.empty(room, bool)
        self._numbers = np.arange(room)
        self._lows = np.empty(room, np.int64)
        self._limits = np.empty(room, np.int64)
        self._costs = np.empty(room)
        self._sums = np.zeros(room + 1)
        self._differences = np.empty(room)

    def _starts_of(
        self, offsets: Integers, places: Integers, need: int
    ) -> tuple[Integers, Flags]:
        """Per chunk that may go, where the shortest window that ends with it begins.

        Also whether there is one. Positions are in `places`.
        """
        count = len(places)
        lows, limits = self._lows[:count], self._limits[:count]
        has_window, is_cut = self._has_window[:count], self._flags[:count]
        np.take(offsets[1:], places, out=limits, mode="clip")
        limits -= need
        np.take(offsets, places, out=lows, mode="clip")
        starts = lows.searchsorted(limits, side="right")
        starts -= 1
        # A window must not reach back over a chunk that has to stay.
        is_cut[0] = False
        np.subtract(places[1:], places[:-1], out=limits[1:])
        np.greater(limits[1:], 1, out=is_cut[1:])
        np.multiply(is_cut, self._numbers[:count], out=limits)
        np.maximum.accumulate(limits, out=limits)
        np.greater_equal(starts, limits, out=has_window)
        return starts, has_window

    def _totals(
        self, costs: Floats, places: Integers, starts: Integers
    ) -> tuple[Floats, float]:
        """Costs of the windows, and by how much they may be off."""
        count = len(places)
        each, sums = self._costs[:count], self._sums[: count + 1]
        totals = self._differences[:count]
        np.take(costs, places, out=each, mode="clip")
        with np.errstate(over="ignore", invalid="ignore"):
            np.cumsum(each, out=sums[1:])
            np.take(sums, starts, out=totals, mode="clip")
            np.subtract(sums[1:], totals, out=totals)
        return totals, count * float(np.finfo(np.float64).eps) * float(sums[-1])


def _cheapest_of(
    offsets: Integers, costs: Floats, starts: Integers, ends: Integers
) -> int:
    """Which of a few windows, each summed from its own chunks, is the cheapest."""
    low, high = int(starts.min()), int(ends.max())
    totals = _sums_of(costs[low:high], starts - low, ends - low)
    tied = np.flatnonzero(totals <= float(totals.min()) * (1 + TIE))
    surplus = offsets[ends[tied]] - offsets[starts[tied]]
    return int(tied[np.argmin(surplus)])


def _sums_of(terms: Floats, starts: Integers, ends: Integers) -> Floats:
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


def _exact_sum(terms: Floats) -> float:
    try:
        return math.fsum(terms.tolist())
    except OverflowError:
        return math.inf
