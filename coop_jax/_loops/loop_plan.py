"""Chooses what becomes of every scan pair of a program. Imports no JAX.

A pair offers a frontier of *variants*: rows that keep more or less, for every iteration
or for one chunk of iterations at a time (then only the carry at each chunk's start is
kept, and the forward scan runs twice: Chen et al., "Training Deep Nets with Sublinear
Memory Cost", 2016). The pairs of a program share its bytes; at a common price per byte
each takes its best variant, and the price is the lowest at which the program fits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from .._planning.seam import SeamProblem
from .scan_plan import Keeping, corners
from .scan_policies import keep_by_rule

_PRICE_STEPS = 60
_NEAR = 2.0
"""A factor between the best length of a chunk and one that serves as well."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a pair.

    Attributes:
      chunk: iterations between the carries that are kept; 0 keeps a row for each.
      size: bytes held between (and, with chunks, during) the scans.
      cost: seconds beyond those of the pair as written, by the cost model.
    """

    keeping: Keeping
    chunk: int
    size: int
    cost: float


class PairChoices:
    """The variants of one pair.

    Args:
      body: the joint body.
      length: iterations.
      carry: bytes carried from one iteration to the next.
      forward: seconds of one iteration of the forward scan.
      can_chunk: whether the scans run in opposite directions.
      times: how often the pair runs, in loops around it.
    """

    def __init__(
        self,
        body: SeamProblem,
        length: int,
        carry: int,
        forward: float,
        can_chunk: bool,
        times: int = 1,
    ):
        self.body = body
        self.length = length
        self.carry = carry
        self.forward = forward
        self.iterations = length * times
        self.chunks = _chunks(length) if can_chunk else []

    @cached_property
    def corners(self) -> list[Keeping]:
        """The best trades within one iteration."""
        return corners(self.body)

    @cached_property
    def variants(self) -> list[Variant]:
        """From the one that keeps most to the one that keeps least."""
        found = [
            self._variant(keeping, chunk)
            for chunk in (0, *self.chunks)
            for keeping in self.corners
        ]
        found.sort(key=lambda v: (v.size, v.cost))
        best: list[Variant] = []
        for variant in found:
            if not best or variant.cost < best[-1].cost:
                best.append(variant)
        return best[::-1]

    def within(self, size: int) -> Variant:
        """The cheapest variant found of at most `size` bytes, else the smallest."""
        rooms = [(chunk, self._row_for(chunk, size)) for chunk in (0, *self.chunks)]
        options = [
            (keeping, chunk, row)
            for chunk, row in rooms
            for keeping in self.corners
            if keeping.row <= row
        ]
        if not options:
            return self.variants[-1]
        corner, chunk, row = min(options, key=lambda o: self._variant(*o[:2]).cost)
        return self._variant(keep_by_rule(self.body, row) or corner, chunk)

    def _row_for(self, chunk: int, size: int) -> int:
        if not chunk:
            return size // self.length
        return (size - self.length // chunk * self.carry) // chunk

    def _variant(self, keeping: Keeping, chunk: int) -> Variant:
        cost = (keeping.cost - self.corners[0].cost) * self.iterations
        if not chunk:
            return Variant(keeping, 0, keeping.row * self.length, cost)
        # What is left over after the last whole chunk keeps its rows and runs once.
        again = self.length // chunk * chunk / self.length
        size = self.length // chunk * self.carry + chunk * keeping.row
        cost += self.forward * self.iterations * again
        return Variant(keeping, chunk, size, cost)


def choose(
    pairs: Sequence[PairChoices],
    fits: Callable[[Sequence[int]], bool],
) -> list[Variant]:
    """The cheapest variants that fit, or the smallest of each pair.

    Args:
      pairs: of one program.
      fits: whether the program would fit if the pairs held these bytes.
    """
    smallest = [pair.variants[-1] for pair in pairs]
    if not fits([v.size for v in smallest]):
        return smallest
    low, high = 1e-24, 1e6
    chosen = smallest
    for _ in range(_PRICE_STEPS):
        price = (low * high) ** 0.5
        at_price = [_best_at(pair, price) for pair in pairs]
        if fits([v.size for v in at_price]):
            high, chosen = price, at_price
        else:
            low = price
    return _use_slack(pairs, chosen, fits)


def _best_at(pair: PairChoices, price: float) -> Variant:
    return min(pair.variants, key=lambda v: (v.cost + price * v.size, v.size))


def _use_slack(
    pairs: Sequence[PairChoices],
    chosen: list[Variant],
    fits: Callable[[Sequence[int]], bool],
) -> list[Variant]:
    """Lets each pair in turn have the bytes that are left."""
    for i, pair in enumerate(pairs):
        sizes = [variant.size for variant in chosen]
        low, high = sizes[i], pair.variants[0].size
        while high - low > max(1, high // 1000):
            middle = (low + high) // 2
            if fits([*sizes[:i], middle, *sizes[i + 1 :]]):
                low = middle
            else:
                high = middle
        variant = pair.within(low)
        if variant.size <= low:
            chosen = [*chosen[:i], variant, *chosen[i + 1 :]]
    return chosen


def _chunks(length: int) -> list[int]:
    """Divisors of the length; if none is near its root, all numbers up to half of it.

    Iterations left over after the last whole chunk take two more loops to compile.
    """
    numbers = range(2, length // 2 + 1)
    divisors = [k for k in numbers if length % k == 0]
    root = length**0.5
    if any(root / _NEAR <= k <= root * _NEAR for k in divisors):
        return divisors
    return list(numbers)
