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

    Its loops are NumPy's; a search allocates one array, the starts of the windows.
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
        count = len(costs)
        if count == 0 or offsets[-1] - offsets[0] < need:
            return None
        self._reserve(count)
        starts = self._starts_of(offsets, costs, need)
        totals, error = self._totals(costs, starts)
        best = float(totals.min())
        if math.isinf(best) and not np.any(self._is_window[:count]):
            return None
        if math.isfinite(error):
            candidates = np.flatnonzero(totals <= best * (1 + 2 * TIE) + 5 * error)
        else:
            candidates = np.flatnonzero(self._is_window[:count])
        starts, ends = starts[candidates], candidates + 1
        winner = 0
        if len(candidates) > 1:
            winner = _cheapest_of(offsets, costs, starts, ends)
        start, end = int(starts[winner]), int(ends[winner])
        return Window(start, end, _exact_sum(costs[start:end]))

    def _reserve(self, count: int) -> None:
        if count <= self._room:
            return
        self._room = room = 2 * count
        self._numbers = np.arange(1, room + 1)
        self._limits = np.empty(room, np.int64)
        self._is_window = np.empty(room, bool)
        self._finite = np.empty(room)
        self._sums = np.zeros(room + 1)
        self._differences = np.empty(room)

    def _starts_of(self, offsets: Integers, costs: Floats, need: int) -> Integers:
        """Per chunk the start of the shortest window that ends with it.

        Leaves in `_is_window` where there is one.
        """
        count = len(costs)
        limits, is_window = self._limits[:count], self._is_window[:count]
        np.subtract(offsets[1:], need, out=limits)
        starts = offsets.searchsorted(limits, side="right")
        starts -= 1
        # The first chunk behind the last one that must stay.
        np.isinf(costs, out=is_window)
        np.multiply(is_window, self._numbers[:count], out=limits)
        np.maximum.accumulate(limits, out=limits)
        np.greater_equal(starts, limits, out=is_window)
        return starts

    def _totals(self, costs: Floats, starts: Integers) -> tuple[Floats, float]:
        """Costs of the windows, inf where there is none, and what they may be off."""
        count = len(costs)
        finite, sums = self._finite[:count], self._sums[: count + 1]
        totals, is_window = self._differences[:count], self._is_window[:count]
        np.copyto(finite, costs)
        finite[np.isinf(costs)] = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            np.cumsum(finite, out=sums[1:])
            np.take(sums, starts, out=totals, mode="clip")
            np.subtract(sums[1:], totals, out=totals)
        totals[~is_window] = math.inf
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
