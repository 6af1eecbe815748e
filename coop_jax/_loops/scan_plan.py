"""Chooses what a pair of scans stacks, within one iteration. Imports no JAX.

The joint body of a scan pair is a straight line with a seam (`_planning/seam`): ops
before it run in the forward scan, ops after it in the backward scan, and what is alive
across it is stacked, one row per iteration. The exact solutions at every price per byte
are the corners of the best trade; what lies between two corners is found by branching
(`scan_branch`).
"""

from collections.abc import Set
from dataclasses import dataclass

from .._planning.retention import Edit, Retention
from .._planning.seam import SeamCuts, SeamProblem, first_reads
from .._planning.types import OpId

_MOST_CORNERS = 24


@dataclass(frozen=True, slots=True)
class Keeping:
    """One choice of what to stack.

    Attributes:
      positions: per op of the seam problem, where it runs.
      row: bytes stacked per iteration.
      cost: seconds of one iteration of both scans, by the cost model.
    """

    positions: tuple[tuple[int, ...], ...]
    row: int
    cost: float


def corners(body: SeamProblem) -> list[Keeping]:
    """Choices that are best at some price per byte, most bytes first.

    The first recomputes nothing that costs anything; the last stacks the fewest bytes.
    """
    cuts = SeamCuts(body)

    def keep_at(price: float) -> Keeping:
        return as_keeping(body, cuts.at(price).repeated)

    ends = [keep_at(body.lowest_price), keep_at(body.highest_price)]
    found = {keeping.row: keeping for keeping in ends}
    todo = [tuple(ends)]
    while todo and len(found) < _MOST_CORNERS:
        many, few = todo.pop(0)
        if many.row <= few.row or few.cost <= many.cost:
            continue
        price = (few.cost - many.cost) / (many.row - few.row)
        between = keep_at(price)
        if few.row < between.row < many.row and between.row not in found:
            found[between.row] = between
            todo += [(many, between), (between, few)]
    kept: list[Keeping] = []
    for row in sorted(found, reverse=True):
        while kept and kept[-1].cost >= found[row].cost:
            kept.pop()
        kept.append(found[row])
    return kept


def keep_at_price(body: SeamProblem, price: float) -> Keeping:
    """The choice with the least cost at `price` seconds per byte of a row."""
    return as_keeping(body, SeamCuts(body).at(price).repeated)


def as_keeping(body: SeamProblem, repeated: Set[OpId]) -> Keeping:
    """The choice that repeats these ops, which are enough."""
    state = Retention(body.problem)
    first_read = first_reads(body.problem, body.seam, repeated)
    log: list[Edit] = []
    for op in sorted(repeated):
        state.insert(op, first_read[op], log)
    state.sweep(sorted(repeated), log)
    row = state.peak() - body.workspace
    return Keeping(state.snapshot(), max(row, 0), state.cost)
