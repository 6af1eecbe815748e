"""Chooses what becomes of every scan pair of a program. Imports no JAX.

A pair offers a frontier of *variants*: rows that keep more or less, for every iteration
or for one chunk of iterations at a time (then only the carry at each chunk's start is
kept, and the forward scan runs twice: Chen et al., "Training Deep Nets with Sublinear
Memory Cost", 2016). The rows of a chunk are there while the second scan runs, the
carries all the time between the two. The pairs of a program share its bytes; at a
common price per byte each takes its best variant, and the price is the lowest at which
the program fits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from .._planning.seam import SeamProblem
from .scan_plan import Keeping, corners
from .scan_policies import keep_by_rule

type Held = tuple[int, int]
"""Bytes between the scans of a pair, and while the second runs."""

type Fits = Callable[[Sequence[Held]], bool]
"""Whether a program would fit if its pairs held these bytes."""

_PRICE_STEPS = 60
_WEIGHTS = (1.0, 0.5, 0.0)
"""Of the bytes while the second scan runs: the peak may be there or before."""
_NEAR = 2.0
"""A factor between the best length of a chunk and one that serves as well."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a pair.

    Attributes:
      chunk: iterations between the carries that are kept; 0 keeps a row for each.
      size: bytes held while the second scan runs.
      cost: seconds beyond those of the pair as written, by the cost model.
      between: bytes held between the scans.
    """

    keeping: Keeping
    chunk: int
    size: int
    cost: float
    between: int = 0

    @property
    def held(self) -> Held:
        """Bytes between the scans, and while the second runs."""
        return self.between, self.size


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
        found.sort(key=lambda v: (v.size, v.cost, v.held))
        best: list[Variant] = []
        for variant in found:
            if not any(_is_better(other, variant) for other in best):
                best.append(variant)
        return best[::-1]

    def with_rows(self, rows: Mapping[int, int]) -> Variant | None:
        """The cheapest variant found with rows of at most these bytes, per chunk."""
        options = [
            (keeping, chunk, row)
            for chunk, row in rows.items()
            for keeping in self.corners
            if keeping.row <= row
        ]
        if not options:
            return None
        corner, chunk, row = min(options, key=lambda o: self._variant(*o[:2]).cost)
        return self._variant(keep_by_rule(self.body, row) or corner, chunk)

    def held(self, chunk: int, row: int) -> Held:
        """Bytes between the scans, and while the second runs, with rows of `row`."""
        if not chunk:
            return row * self.length, row * self.length
        # What is left over after the last whole chunk keeps its rows and runs once.
        carries, left = self.length // chunk * self.carry, self.length % chunk
        return carries + left * row, carries + chunk * row

    def _variant(self, keeping: Keeping, chunk: int) -> Variant:
        cost = (keeping.cost - self.corners[0].cost) * self.iterations
        between, size = self.held(chunk, keeping.row)
        if chunk:
            again = self.length // chunk * chunk / self.length
            cost += self.forward * self.iterations * again
        return Variant(keeping, chunk, size, cost, between)


def choose(pairs: Sequence[PairChoices], fits: Fits) -> list[Variant]:
    """The cheapest variants that fit, or the smallest of each pair.

    Args:
      pairs: of one program.
      fits: whether the program would fit if the pairs held these bytes.
    """
    found = [
        chosen
        for weight in _WEIGHTS
        if (chosen := _at_lowest_price(pairs, weight, fits)) is not None
    ]
    if not found:
        return [pair.variants[-1] for pair in pairs]
    return min(
        (_use_slack(pairs, chosen, fits) for chosen in found),
        key=lambda chosen: sum(variant.cost for variant in chosen),
    )


def _at_lowest_price(
    pairs: Sequence[PairChoices], weight: float, fits: Fits
) -> list[Variant] | None:
    low, high = 1e-24, 1e6
    chosen = [_best_at(pair, high, weight) for pair in pairs]
    if not fits([v.held for v in chosen]):
        return None
    for _ in range(_PRICE_STEPS):
        price = (low * high) ** 0.5
        at_price = [_best_at(pair, price, weight) for pair in pairs]
        if fits([v.held for v in at_price]):
            high, chosen = price, at_price
        else:
            low = price
    return chosen


def _best_at(pair: PairChoices, price: float, weight: float) -> Variant:
    def size(variant: Variant) -> float:
        between, during = variant.held
        return weight * during + (1 - weight) * between

    return min(pair.variants, key=lambda v: (v.cost + price * size(v), v.size))


def _use_slack(
    pairs: Sequence[PairChoices], chosen: list[Variant], fits: Fits
) -> list[Variant]:
    """Lets each pair in turn have the bytes that are left."""
    for i, pair in enumerate(pairs):
        rows = _largest_rows(pair, i, [variant.held for variant in chosen], fits)
        variant = pair.with_rows(rows)
        if variant is not None and variant.cost <= chosen[i].cost:
            chosen = [*chosen[:i], variant, *chosen[i + 1 :]]
    return chosen


def _largest_rows(
    pair: PairChoices, i: int, held: Sequence[Held], fits: Fits
) -> dict[int, int]:
    """Bytes of the largest row that fits, per chunk, of the pair at place `i`."""
    rows: dict[int, int] = {}
    for chunk in (0, *pair.chunks):
        low, high = -1, pair.corners[0].row
        while low < high:
            middle = (low + high + 1) // 2
            own = pair.held(chunk, middle)
            if fits([*held[:i], own, *held[i + 1 :]]):
                low = middle
            else:
                high = middle - 1
        rows[chunk] = low
    return rows


def _is_better(one: Variant, other: Variant) -> bool:
    """Whether it holds no more anywhere, for no more."""
    no_more = all(a <= b for a, b in zip(one.held, other.held, strict=True))
    return no_more and one.cost <= other.cost


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
