"""Coop as published: evicts and rematerializes while the program runs. Imports no JAX.

The program runs in its own order in an `Arena` of `budget - fixed` bytes. When an
allocation fails, values are evicted; when an op needs an evicted value, the op that
computed it runs again. Nothing looks ahead, save that a value is freed after its last
use. Policies (`_eviction`) are Coop (NeurIPS 2023, arXiv 2311.00591), its ablations,
DTR (arXiv 2006.09616) and DTE (MegTaiChi, ICS 2022), all in the same arena and with the
same neighbour costs, as the authors compare them (OneFlow, branch `dtr2`).

Unlike OneFlow, the window search is exact, the outputs of an op are pinned while it
runs, its cost counts once and not per output, and staleness is never 0. An output takes
its input's bytes whenever that input is dead, in a recomputation too.

Each value has a deadline for being computed again: it may need an argument that is
overwritten (OneFlow then reads the new one) or the result of an op that runs once. What
is needed beyond its deadline is materialized by then and stays, as outputs do.
"""

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

from ._arena import Arena
from ._eviction import COOP as COOP
from ._eviction import COPY_ON_WRITE as COPY_ON_WRITE
from ._eviction import DTE as DTE
from ._eviction import DTR as DTR
from ._eviction import NO_PARTITION as NO_PARTITION
from ._eviction import NO_WINDOW as NO_WINDOW
from ._eviction import POLICIES as POLICIES
from ._eviction import Policy as Policy
from ._types import Op, OpId, Problem, Schedule, ValueId
from ._validate import WORKSPACE

_LEAST_STALENESS = 1e-3
"""Added to every staleness, in mean costs of an op (MegEngine: 1e-3 of its units)."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run ended early.

    Attributes:
      reason: "no room", or "too many steps" if recomputation got out of hand.
      op: that was about to run, or None if the budget is less than `Problem.fixed`.
      request: bytes that found no room.
      free: bytes free at that time, not in one place.
      pinned: values in the pool that could not be evicted; they take `pinned_bytes`.
    """

    reason: Literal["no room", "too many steps"]
    op: OpId | None
    request: int
    free: int = 0
    pinned: tuple[ValueId, ...] = ()
    pinned_bytes: int = 0


@dataclass(frozen=True, slots=True)
class OnlineRun:
    """What happened.

    Attributes:
      schedule: ops in the order they ran, up to the failure if there is one.
      offsets: (step, value or `WORKSPACE`) -> offset in the pool, bytes.
      failure: None if the program ran to its end.
      cost: seconds of all steps by the cost model.
      evictions: values evicted to make room.
      eager_frees: values freed because nothing needed them.
      rematerializations: steps beyond each op's first.
      depth: most ops waiting for each other at once; 1 without rematerialization.
      fragmentation: free share of the pool after each allocation that had to evict.
      chunks_searched: chunks visited while looking for what to evict.
      search_seconds: wall time of that, freeing included.
    """

    schedule: Schedule
    offsets: dict[tuple[int, ValueId], int]
    failure: Failure | None
    cost: float
    evictions: int
    eager_frees: int
    rematerializations: int
    depth: int
    fragmentation: tuple[float, ...]
    chunks_searched: int
    search_seconds: float = field(compare=False)

    @property
    def is_feasible(self) -> bool:
        return self.failure is None


def run_online(
    problem: Problem, budget: int, policy: Policy = COOP, steps_per_op: int = 50
) -> OnlineRun:
    """Runs the program within a budget, deciding as it goes.

    Args:
      budget: bytes, `Problem.fixed` included.
      policy: what to evict, and where values go.
      steps_per_op: gives up when the steps come to this many times the ops.
    """
    return _Executor(problem, budget, policy).run(steps_per_op * len(problem.ops))


class _Stop(Exception):
    """Ends a run from within; its argument is the `Failure`."""


class _EvictedSets:
    """Cost of the evicted neighbourhood of each op, by union-find (DTR's h_eq).

    Sets only merge. An op that runs again leaves its set and takes its cost along.
    """

    def __init__(self, costs: Iterable[float]) -> None:
        self._cost = list(costs)
        self._time = list(self._cost)
        self._parent = list(range(len(self._cost)))
        self._node = list(range(len(self._cost)))

    def cost(self, op: OpId) -> float:
        """Of the set that the evicted op is in, seconds."""
        return max(self._time[self._root(op)], self._cost[op])

    def evict(self, op: OpId, neighbours: Iterable[OpId]) -> None:
        """Merges the op's set with those of its evicted neighbours."""
        for other in neighbours:
            one, root = self._root(op), self._root(other)
            if one != root:
                self._time[root] += self._time[one]
                self._parent[one] = root

    def restore(self, op: OpId) -> None:
        """Takes the op out of its set, if it is in one."""
        root = self._root(op)
        self._time[root] = max(0.0, self._time[root] - self._cost[op])
        # Others may hang below the old node, so it stays.
        self._node[op] = len(self._parent)
        self._parent.append(self._node[op])
        self._time.append(self._cost[op])

    def _root(self, op: OpId) -> int:
        node = root = self._node[op]
        parent = self._parent
        while parent[root] != root:
            root = parent[root]
        while parent[node] != root:
            parent[node], node = root, parent[node]
        return root


class _Executor:
    """The state of one run. A turn is what happens up to the program's next op."""

    def __init__(self, problem: Problem, budget: int, policy: Policy) -> None:
        self.problem, self.policy = problem, policy
        self.lacking = problem.fixed - budget
        self.arena = Arena(budget - problem.fixed, problem.alignment)
        self.sets = _EvictedSets(op.cost for op in problem.ops)
        self.is_resident = [producer < 0 for producer in problem.producer]
        self.offset: dict[ValueId, int] = {}
        self.owner: dict[int, ValueId] = {}
        self.pins: Counter[ValueId] = Counter()
        self.uses_left = Counter(v for op in problem.ops for v in op.inputs)
        self.uses: list[list[OpId]] = [[] for _ in problem.values]
        for k, op in enumerate(problem.ops):
            for v in op.inputs:
                self.uses[v].append(k)
        self.elapsed = [0.0, *accumulate(op.cost for op in problem.ops)]
        self.deadline, self.due = _deadlines(problem)
        self.turn = -1
        self.clock = self.search_seconds = 0.0
        self.last_access = [0.0] * len(problem.values)
        mean = problem.cost(problem.program_order) / max(1, len(problem.ops))
        self.least_staleness = _LEAST_STALENESS * (mean or 1.0)
        self.schedule: list[OpId] = []
        self.offsets: dict[tuple[int, ValueId], int] = {}
        self.evictions = self.eager_frees = self.depth = self.chunks_searched = 0
        self.fragmentation: list[float] = []

    def run(self, most_steps: int) -> OnlineRun:
        failure = None
        self.most_steps = most_steps
        try:
            if self.lacking > 0:
                raise _Stop(Failure("no room", None, self.lacking))
            for op in range(len(self.problem.ops)):
                self._take_turn(op)
        except _Stop as stop:
            failure = stop.args[0]
        return OnlineRun(
            schedule=tuple(self.schedule),
            offsets=self.offsets,
            failure=failure,
            cost=self.clock,
            evictions=self.evictions,
            eager_frees=self.eager_frees,
            rematerializations=len(self.schedule) - len(set(self.schedule)),
            depth=self.depth,
            fragmentation=tuple(self.fragmentation),
            chunks_searched=self.chunks_searched,
            search_seconds=self.search_seconds,
        )

    def _take_turn(self, op: OpId) -> None:
        """Runs the program's next op, and before it whatever computes its inputs."""
        self.turn = op
        stack = [(op, self._pinned(op, also=self.due.get(op, ())))]
        while stack:
            self.depth = max(self.depth, len(stack))
            _, needs = stack[-1]
            missing = next((v for v in needs if not self.is_resident[v]), None)
            if missing is None:
                self._step(*stack.pop())
            else:
                source = self.problem.producer[missing]
                stack.append((source, self._pinned(source)))

    def _pinned(self, op: OpId, also: Iterable[ValueId] = ()) -> tuple[ValueId, ...]:
        """What the op waits for; none of it may go until the op has run."""
        needs = tuple(dict.fromkeys((*self.problem.ops[op].inputs, *also)))
        self.pins.update(needs)
        return needs

    def _step(self, op: OpId, needs: tuple[ValueId, ...]) -> None:
        spec = self.problem.ops[op]
        if len(self.schedule) >= self.most_steps:
            raise _Stop(Failure("too many steps", op, 0))
        if op == self.turn:
            self.uses_left.subtract(spec.inputs)
        self.pins.update(spec.outputs)
        self._place_outputs(op, spec)
        for v in spec.outputs:
            if v in self.offset:
                self.offsets[len(self.schedule), v] = self.offset[v]
        self.schedule.append(op)
        self.sets.restore(op)
        for v in (*spec.inputs, *spec.outputs):
            self.last_access[v] = self.clock
        self.clock += spec.cost
        touched = (*needs, *spec.outputs)
        self.pins.subtract(touched)
        for v in touched:
            self._free_if_dead(v)

    def _place_outputs(self, op: OpId, spec: Op) -> None:
        for source, target in spec.in_place if self.policy.is_in_place else ():
            if self._may_hand_over(source, target):
                self._place(target, self._drop(source))
        for v in spec.outputs:
            size = self.problem.values[v].size
            if size > 0 and not self.is_resident[v]:
                self._place(v, self._allocate(size, op))
            self.is_resident[v] = True
        if spec.workspace:
            offset = self._allocate(spec.workspace, op)
            self.offsets[len(self.schedule), WORKSPACE] = offset
            self.arena.free(offset)

    def _may_hand_over(self, source: ValueId, target: ValueId) -> bool:
        if source not in self.offset or self.is_resident[target]:
            return False
        values, rounded = self.problem.values, self.arena.rounded
        is_dead = self.pins[source] == 1 and not self._is_wanted(source)
        return is_dead and rounded(values[source].size) == rounded(values[target].size)

    def _place(self, value: ValueId, offset: int) -> None:
        self.offset[value] = offset
        self.owner[offset] = value
        self.is_resident[value] = True

    def _drop(self, value: ValueId) -> int:
        """Makes a value absent; its bytes, at the offset returned, stay taken."""
        offset = self.offset.pop(value)
        del self.owner[offset]
        self.is_resident[value] = False
        op = self.problem.producer[value]
        self.sets.evict(op, self._evicted_inputs(op))
        return offset

    def _allocate(self, size: int, op: OpId) -> int:
        low = self.problem.ops[op].is_expensive or not self.policy.is_partitioned
        if (offset := self.arena.allocate(size, low)) is not None:
            return offset
        started = time.perf_counter()
        search = self._window if self.policy.is_windowed else self._cheapest
        while offset is None:
            self.chunks_searched += len(self.arena)
            victims = search(size)
            if not victims:
                raise _Stop(self._no_room(op, size))
            for v in victims:
                self.arena.free(self._drop(v))
            self.evictions += len(victims)
            offset = self.arena.allocate(size, low)
        self.search_seconds += time.perf_counter() - started
        self.fragmentation.append(self.arena.free_bytes / self.arena.capacity)
        return offset

    def _window(self, size: int) -> list[ValueId]:
        """The values in the cheapest window of this many bytes, if there is one."""
        found = self.arena.cheapest_window(
            size,
            lambda offset: self._score(self.owner[offset]),
            lambda offset: not self._is_evictable(self.owner[offset]),
        )
        return [self.owner[offset] for offset in found.offsets] if found else []

    def _cheapest(self, size: int) -> list[ValueId]:
        """The single cheapest value, if there is any."""
        evictable = filter(self._is_evictable, self.offset)
        victim = min(evictable, key=lambda v: (self._score(v), v), default=None)
        return [] if victim is None else [victim]

    def _free_if_dead(self, value: ValueId) -> None:
        is_needed = self.pins[value] or self._is_wanted(value)
        if value in self.offset and not is_needed:
            self.arena.free(self._drop(value))
            self.eager_frees += 1

    def _evicted_inputs(self, op: OpId) -> set[OpId]:
        """Ops that computed the inputs which are absent now."""
        absent = (v for v in self.problem.ops[op].inputs if not self.is_resident[v])
        return {self.problem.producer[v] for v in absent}

    def _score(self, value: ValueId) -> float:
        """The lower, the sooner it is evicted."""
        op = self.problem.producer[value]
        cost = self.problem.ops[op].cost
        cost += sum(self.sets.cost(other) for other in self._evicted_inputs(op))
        score = cost / (self._idle(value) + self.least_staleness)
        if self.policy.size_term == "none":
            return score
        size = self.problem.values[value].size
        if self.policy.size_term == "size and free":
            size += self.arena.free_beside(self.offset[value])
        return score / size

    def _idle(self, value: ValueId) -> float:
        """Seconds the value has not been used, or with look-ahead will not be."""
        if not self.policy.looks_ahead:
            return self.clock - self.last_access[value]
        following = bisect_right(self.uses[value], self.turn)
        if following == len(self.uses[value]):
            return self.elapsed[-1]
        return self.elapsed[self.uses[value][following]] - self.elapsed[self.turn]

    def _is_evictable(self, value: ValueId) -> bool:
        stays = self.problem.values[value].is_output
        return not (stays or self.pins[value] or self.deadline[value] < self.turn)

    def _is_wanted(self, value: ValueId) -> bool:
        """Whether the program itself still needs the value."""
        return self.uses_left[value] > 0 or self.problem.values[value].is_output

    def _no_room(self, op: OpId, request: int) -> Failure:
        pinned = tuple(sorted(v for v in self.offset if not self._is_evictable(v)))
        size = sum(self.problem.values[v].size for v in pinned)
        return Failure("no room", op, request, self.arena.free_bytes, pinned, size)


def _deadlines(problem: Problem) -> tuple[list[int], dict[OpId, list[ValueId]]]:
    """Until when values may be computed again, and what must be back by then.

    Returns:
      For each value the last turn in which it may be computed again, and for each turn
      the values that are needed beyond it although it is their last.
    """
    ops, values, end = problem.ops, problem.values, len(problem.ops)
    last_use = {v: k for k, op in enumerate(ops) for v in op.inputs}
    last_use |= {v: end for v, value in enumerate(values) if value.is_output}
    writes = ((values[v].overwrites, k) for k, op in enumerate(ops) for v in op.outputs)
    overwritten_at = {argument: k for argument, k in writes if argument is not None}
    writers = set(overwritten_at.values())
    # What an op needs can be had, computed again or not, until this turn.
    until = [overwritten_at.get(v, end) for v in range(len(values))]
    deadline = [end] * len(values)
    due: dict[OpId, list[ValueId]] = {}
    for k, op in enumerate(ops):
        is_once = not op.is_recomputable or k in writers
        last = k if is_once else min((until[v] for v in op.inputs), default=end)
        for v in op.outputs:
            deadline[v], until[v] = last, max(last, last_use.get(v, k))
            if k < last < until[v] and values[v].size > 0:
                due.setdefault(last, []).append(v)
    return deadline, due
