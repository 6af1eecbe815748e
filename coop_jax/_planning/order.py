"""The order in which the ops of a program are planned. Imports no JAX.

A training step computes all gradients and then updates all weights, so that every
gradient waits for the end. XLA's schedulers do not leave it at that, and no plan should
have to undo it step by step: what takes no bytes of the pool runs as soon as it can.
"""

import heapq
from collections import Counter, defaultdict

from .types import OpId, Problem, Schedule, ValueId


def early_order(problem: Problem) -> Schedule:
    """The program's order, but for ops that run as soon as they can.

    These are the ops whose results take no bytes of the pool, as they overwrite donated
    arguments or are outputs, and that read the result of another op: above all, updates
    of weights, which let go of the gradients.

    Args:
      problem: ops in any order in which they can run.

    Returns:
      Every op once. An op that overwrites an argument comes after all that read it, and
      ops that may run only once stay in their order.
    """
    return tuple(_Order(problem).run())


def in_order(problem: Problem, order: Schedule) -> Problem:
    """The same program with its ops in another order."""
    return Problem(
        tuple(problem.ops[op] for op in order),
        problem.values,
        problem.fixed,
        problem.alignment,
    )


class _Order:
    """What has run so far."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._sizes = problem.pool_sizes
        self._readers: dict[ValueId, list[OpId]] = defaultdict(list)
        self._overwriter: dict[ValueId, OpId] = {}
        for k, op in enumerate(problem.ops):
            for v in op.inputs:
                self._readers[v].append(k)
            for v in op.outputs:
                if (argument := problem.values[v].overwrites) is not None:
                    self._overwriter[argument] = k
        self._reads_left = Counter({v: len(r) for v, r in self._readers.items()})
        self._lacks = [
            sum(problem.producer[v] >= 0 for v in op.inputs) for op in problem.ops
        ]

    def run(self) -> list[OpId]:
        """Takes each op of the program, then all that it lets run early."""
        schedule: list[OpId] = []
        done: set[OpId] = set()
        for op in range(len(self.problem.ops)):
            todo = [] if op in done else [op]
            while todo:
                following = heapq.heappop(todo)
                if following in done:
                    continue
                schedule.append(following)
                done.add(following)
                for reached in self._step(following):
                    if self._runs_early(reached):
                        heapq.heappush(todo, reached)
        return schedule

    def _step(self, op: OpId) -> set[OpId]:
        """Counts one op as run; returns those that this may have made ready."""
        spec = self.problem.ops[op]
        reached: set[OpId] = set()
        for v in spec.outputs:
            for reader in self._readers[v]:
                self._lacks[reader] -= 1
                reached.add(reader)
        for v in spec.inputs:
            self._reads_left[v] -= 1
            if v in self._overwriter:
                reached.add(self._overwriter[v])
        return reached

    def _runs_early(self, op: OpId) -> bool:
        spec = self.problem.ops[op]
        return (
            self._lacks[op] == 0
            and spec.is_recomputable
            and not any(self._sizes[v] for v in spec.outputs)
            and any(self.problem.producer[v] >= 0 for v in spec.inputs)
            and all(self._may_overwrite(op, v) for v in spec.outputs)
        )

    def _may_overwrite(self, op: OpId, value: ValueId) -> bool:
        argument = self.problem.values[value].overwrites
        return argument is None or (
            self._reads_left[argument] == (op in self._readers[argument])
        )
