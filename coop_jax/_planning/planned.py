"""What a planner is asked for and what it answers. Imports no JAX."""

from dataclasses import dataclass, replace

from .types import Problem, Schedule

LONG = 20_000
"""Ops of a program in which searches leave out what takes long and seldom matters."""

_LEAST_MOVES = 4000
_MOVES_PER_OP = 8

type Positions = tuple[tuple[int, ...], ...]
"""Per op, where it runs."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to search.

    Attributes:
      rounds: refinement rounds without improvement before stopping, and at most ten
        times as many in all; problems of few ops, which take no time, get more, and so
        does the last refinement.
      moves: steps tried at most from a seed, refinement but the last included, or one
        for each op where there are more of them; bounds the time.
      many_ops: problems of more ops get a shorter last refinement, in proportion.
      time_limit: seconds after which refinement, and the search for other schedules
        that fit, stop wherever they are.
    """

    rounds: int = 20
    moves: int = 12_000
    many_ops: int = 4000
    time_limit: float = 20.0


@dataclass(frozen=True, slots=True)
class Planned:
    """Result of `plan`.

    Attributes:
      schedule: ops in the order they run.
      positions: per op, where it runs (its own position first if it runs at home).
      peak: most bytes alive in the pool at once.
      size: bytes that count against the pool: `peak`, or the packed block's.
      cost: seconds by the cost model.
      fits: whether `size` is within the pool asked for.
      nearby: cheaper plans a little larger than the smallest, if that was asked for.
    """

    schedule: Schedule
    positions: Positions
    peak: int
    size: int
    cost: float
    fits: bool
    nearby: tuple[Positions, ...] = ()

    def beats(self, other: "Planned") -> bool:
        """Whether it is cheaper and fits, or else comes nearer to the pool."""
        if self.fits and other.fits:
            return self.cost < other.cost
        return self.fits or (not other.fits and self.size < other.size)


def most_moves(problem: Problem, effort: Effort) -> int:
    """Steps to try from a seed: compiling a small step is quick, so planning is too."""
    ops = len(problem.ops)
    return min(max(effort.moves, ops), _LEAST_MOVES + _MOVES_PER_OP * ops)


def little(effort: Effort) -> Effort:
    """Of refinement, as much as serves to compare."""
    return replace(effort, rounds=effort.rounds // 4)


def program_order(problem: Problem) -> Positions:
    """Positions of the unplanned schedule."""
    return tuple((k,) for k in range(len(problem.ops)))
