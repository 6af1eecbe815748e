"""The order in which the ops of a program are planned. Imports no JAX.

A training step computes all gradients and then updates all weights, so that every
gradient waits for the end. XLA's schedulers do not leave it at that, and no plan should
have to undo it step by step: what takes no bytes of the pool runs as soon as it can.
"""

import heapq
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import replace

from .types import OpId, Problem, Schedule, ValueId

_MOST_SCALARS = 4
"""That an op may wait for: more are looked at in vain."""


def early_order(problem: Problem, *, scalars_too: bool = False) -> Schedule:
    """The program's order, but for ops that run as soon as they can.

    These are the ops whose results take no bytes of the pool, as they overwrite donated
    arguments or are outputs, and that read the result of another op: above all, updates
    of weights, which let go of the gradients.

    Args:
      problem: ops in any order in which they can run.
      scalars_too: also run what such an op waits for if that are values as small as an
        address is aligned to, made of arguments alone: corrections by the number of the
        step. Where XLA writes several results in one kernel, a weight is then updated
        in that of its moments, and these need not be read again.

    Returns:
      Every op once. An op that overwrites an argument comes after all that read it, and
      ops that may run only once stay in their order.
    """
    return tuple(_Order(problem, scalars_too).run())


def in_order(problem: Problem, order: Schedule) -> Problem:
    """The same program with its ops in another order."""
    return replace(problem, ops=tuple(problem.ops[op] for op in order))


def _scalars(problem: Problem) -> set[OpId]:
    """Ops that make small values of arguments alone, and may run at any time."""
    found: set[OpId] = set()
    for k, op in enumerate(problem.ops):
        is_small = all(problem.values[v].size <= problem.alignment for v in op.outputs)
        from_arguments = found.issuperset(
            {problem.producer[v] for v in op.inputs} - {-1}
        )
        if is_small and from_arguments and op.is_recomputable:
            found.add(k)
    return found


class _Order:
    """What has run so far."""

    def __init__(self, problem: Problem, scalars_too: bool) -> None:
        self.problem = problem
        self._scalars = _scalars(problem) if scalars_too else set()
        self._sizes = problem.pool_sizes
        self._readers: dict[ValueId, list[OpId]] = defaultdict(list)
        self._overwriter: dict[ValueId, OpId] = {}
        for k, op in enumerate(problem.ops):
            for v in op.inputs:
                self._readers[v].append(k)
            for v in op.outputs:
                if (argument := problem.values[v].overwrites) is not None:
                    self._overwriter[argument] = k
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
                    for early in self._early(reached, done):
                        heapq.heappush(todo, early)
        return schedule

    def _step(self, op: OpId) -> set[OpId]:
        """Counts one op as run; returns those that this may have made ready."""
        spec = self.problem.ops[op]
        reached: set[OpId] = set()
        for v in spec.outputs:
            for reader in self._readers[v]:
                self._lacks[reader] -= 1
                reached.add(reader)
        reached |= {self._overwriter[v] for v in spec.inputs if v in self._overwriter}
        return reached

    def _early(self, op: OpId, done: Set[OpId]) -> list[OpId]:
        """An op that can run early, and the scalars that it waits for; or nothing."""
        if not self._may_run_early(op):
            return []
        found, todo = {op}, [op]
        while todo:
            spec = self.problem.ops[todo.pop()]
            before = {self.problem.producer[v] for v in spec.inputs} - done - {-1}
            if not before <= self._scalars:
                return []
            todo += before - found
            found |= before
        outputs = (v for each in found for v in self.problem.ops[each].outputs)
        arguments = (self.problem.values[v].overwrites for v in outputs)
        read = {k for a in arguments if a is not None for k in self._readers[a]}
        return sorted(found) if read <= done | found else []

    def _may_run_early(self, op: OpId) -> bool:
        spec = self.problem.ops[op]
        lacks = self._lacks[op]
        return (
            (lacks == 0 or (bool(self._scalars) and lacks <= _MOST_SCALARS))
            and spec.is_recomputable
            and not any(self._sizes[v] for v in spec.outputs)
            and any(
                self.problem.producer[v] >= 0
                and self.problem.producer[v] not in self._scalars
                for v in spec.inputs
            )
        )


def longest_in_order(turns: Sequence[int]) -> set[int]:
    """The most ops that keep their order among each other.

    Args:
      turns: per op, in the order of the program, when it runs.

    Returns:
      Numbers of the ops of a longest sequence of turns that never falls.
    """
    # Per length, the op that ends such a sequence the earliest.
    last: list[int] = []
    before = [-1] * len(turns)
    for op, turn in enumerate(turns):
        length = bisect_right(last, turn, key=turns.__getitem__)
        before[op] = last[length - 1] if length else -1
        last[length : length + 1] = [op]
    found, op = set[int](), last[-1] if last else -1
    while op >= 0:
        found.add(op)
        op = before[op]
    return found
