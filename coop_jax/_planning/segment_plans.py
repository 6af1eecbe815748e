"""Plans that run segments again, to begin a search with. Imports no JAX.

What to keep between segments and when to run them again is exact (`checkpoints`) for
what a segment's turn takes if none of its own bytes are let go of. A search knows how
to let go of some, so for shares of that there are other plans: over the pool at first,
and cheaper.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from .checkpoints import Checkpoints
from .planned import Positions, program_order
from .retention import movability
from .segments import Segment, kept_bytes, segments
from .types import Problem
from .validate import live_bytes

_SHARES = (1.0, 0.85, 0.7, 0.55, 0.4, 0.25)
_NEAR = 1.3


def segment_plans(problem: Problem, pool: int) -> Iterator[Positions]:
    """Plans for less and less of what turns take, those that come near the pool.

    Args:
      problem: ops in program order.
      pool: bytes that may be alive at once.
    """
    chain = segments(problem)
    if len(chain) < 2:
        return
    runs = Runs(problem, chain)
    kept = kept_bytes(problem, chain)
    table = Checkpoints(chain, kept, runs.inside(kept), pool, _SHARES)
    seen = set()
    for share in range(len(_SHARES)):
        if (again := table.runs_again(share)) is None:
            continue
        plan = runs.at(again)
        if plan not in seen and runs.peak(plan) <= _NEAR * pool:
            seen.add(plan)
            yield plan


class Runs:
    """Where the ops of a chain's segments run."""

    def __init__(self, problem: Problem, chain: Sequence[Segment]) -> None:
        self.problem, self.chain = problem, chain
        self.is_fixed, self.deadline = movability(problem)
        producer = problem.producer
        self._reads = [[v for v in op.inputs if producer[v] >= 0] for op in problem.ops]

    def at(self, again: Sequence[Sequence[int]]) -> Positions:
        """Segments run at the given ones' turns too; what nothing reads does not."""
        places = [list(home) for home in program_order(self.problem)]
        for segment, turns in zip(self.chain, again, strict=True):
            where = [self.chain[k].turn for k in turns]
            where = [k for k in where if k < len(places)]
            for op in range(segment.first, segment.end):
                if not self.is_fixed[op]:
                    places[op] += [k for k in where if k <= self.deadline[op]]
        return self._read(places)

    def _read(self, places: list[list[int]]) -> Positions:
        ops = self.problem.ops
        wanted = {v for v, value in enumerate(self.problem.values) if value.is_output}
        kept: list[list[int]] = [[] for _ in ops]
        steps = sorted(((k, op) for op, where in enumerate(places) for k in where))
        for position, op in reversed(steps):
            outputs = ops[op].outputs
            is_last_chance = position == op and not kept[op]
            if is_last_chance or not wanted.isdisjoint(outputs):
                kept[op].append(position)
                wanted.difference_update(outputs)
                wanted.update(self._reads[op])
        return tuple(tuple(where[::-1]) for where in kept)

    def inside(self, kept: np.ndarray) -> list[int]:
        """Per segment, bytes alive from its turn to the next beside what is kept.

        Counted where each runs again by itself, with what crosses each place kept.
        """
        alive = self._alive(self.at([[k] for k in range(len(self.chain))]))
        turns = [len(alive), *(segment.turn for segment in self.chain)]
        beside = np.cumsum([0, *np.diagonal(kept, 1)])
        return [
            max(alive[now:before], default=0) - int(held)
            for now, before, held in zip(turns[1:], turns, beside, strict=False)
        ]

    def peak(self, plan: Positions) -> int:
        """Bytes alive at once."""
        return max(self._alive(plan))

    def _alive(self, plan: Positions) -> list[int]:
        """Most bytes at each position."""
        steps = sorted((k, op) for op, where in enumerate(plan) for k in where)
        alive = live_bytes(self.problem, tuple(op for _, op in steps))
        most = [0] * len(self.problem.ops)
        for (position, _), size in zip(steps, alive, strict=True):
            most[position] = max(most[position], size)
        return most
