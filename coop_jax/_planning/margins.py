"""Smaller schedules by leaving room where nothing needs it. Imports no JAX.

In many steps bytes pile up towards one place, the fullest: gradients, until their norm
is known. A search that only knows the pool keeps values elsewhere up to the pool too,
since they are in nobody's way there. XLA's packing then puts what piles up in between,
one by one, and loses bytes around each. So a schedule is also looked for with less room
the less has piled up yet (`with_margins`): idle ops take up a share of what is missing.
"""

from dataclasses import dataclass, replace

import numpy as np

from .planned import Planned, Positions
from .types import Op, Problem

_EVERY = 2


@dataclass(frozen=True, slots=True)
class Margins:
    """A problem with less room at some of its places.

    Attributes:
      problem: the ops, with idle ones between them that only take room.
      homes: where in it each op of the original is.
    """

    problem: Problem
    homes: tuple[int, ...]

    def without(self, positions: Positions) -> Positions:
        """The same schedule of the original: what ran at idle ops runs at the next."""
        places = np.searchsorted(self.homes, range(len(self.problem.ops)))
        places = np.minimum(places, len(self.homes) - 1).tolist()
        return tuple(
            tuple(sorted({places[position] for position in positions[home]}))
            for home in self.homes
        )


def with_margins(problem: Problem, planned: Planned, share: float) -> Margins:
    """Leaves room by what piles up in a schedule.

    Args:
      problem: ops in program order.
      planned: a schedule of it, whose fullest place counts.
      share: of what has not piled up yet.

    Returns:
      The problem in which every other place has as many bytes less as that share of
      those values of the fullest place that are not yet, or no more, alive there.
    """
    piled = _piled_up(problem, planned)
    most = max(piled, default=0)
    ops: list[Op] = []
    homes: list[int] = []
    for k, op in enumerate(problem.ops):
        margin = int(share * (most - piled[k]))
        if margin and k % _EVERY == 0:
            ops.append(Op("idle", (), (), 0.0, margin, is_recomputable=False))
        homes.append(len(ops))
        ops.append(op)
    return Margins(replace(problem, ops=tuple(ops)), tuple(homes))


def _piled_up(problem: Problem, planned: Planned) -> list[int]:
    """Per position, bytes of values that are alive there and at the fullest place."""
    steps = len(planned.schedule)
    segments = _segments(problem, planned)
    alive = _sums(segments, steps)
    fullest = int(alive.argmax()) if steps else 0
    piled = _sums([s for s in segments if s[1] <= fullest <= s[2]], steps)
    order = sorted(p for positions in planned.positions for p in positions)
    most = [0] * len(problem.ops)
    for step, position in enumerate(order):
        most[position] = max(most[position], int(piled[step]))
    return most


def _segments(problem: Problem, planned: Planned) -> list[tuple[int, int, int]]:
    """Bytes of each instance of a value, and its first and last step."""
    latest: dict[int, int] = {}
    found: list[tuple[int, int, int]] = []
    sizes = problem.pool_sizes
    for step, op in enumerate(planned.schedule):
        for v in problem.ops[op].inputs:
            if v in latest:
                found[latest[v]] = (*found[latest[v]][:2], step)
        for v in problem.ops[op].outputs:
            latest[v] = len(found)
            found.append((sizes[v], step, step))
    for v, k in latest.items():
        if problem.values[v].is_output:
            found[k] = (*found[k][:2], len(planned.schedule) - 1)
    return found


def _sums(segments: list[tuple[int, int, int]], steps: int) -> np.ndarray:
    """Bytes of the segments at each step."""
    change = np.zeros(steps + 1, np.int64)
    for size, start, end in segments:
        change[start] += size
        change[end + 1] -= size
    return np.cumsum(change)[:steps]
