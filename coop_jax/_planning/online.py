"""Coop as published: evicts and rematerializes while the program runs. Imports no JAX.

The program runs in its own order in an `Arena` of `budget - fixed` bytes. When an
allocation fails, values are evicted; when an op needs an evicted value, the op that
computed it runs again. Nothing looks ahead, save that a value is freed after its last
use. Policies (`eviction`) are Coop (NeurIPS 2023, arXiv 2311.00591), its ablations,
DTR (arXiv 2006.09616) and DTE (MegTaiChi, ICS 2022), all in the same arena and with the
same neighbour costs, as the authors compare them (OneFlow, branch `dtr2`).

Unlike OneFlow, the window search is exact, the outputs of an op are pinned while it
runs, its cost counts once and not per output, and staleness is never 0. An output takes
its input's bytes whenever that input is dead, in a recomputation too: the input's value
is then a ghost, without bytes, that its own op can compute again somewhere else.

What is needed beyond the turn in which it can last be computed again (`deadlines`) is
materialized by then and stays, as outputs do.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from .arena import Arena
from .deadlines import Lifetimes, deadlines
from .eviction import COOP, Policy
from .scores import Scores
from .types import Op, OpId, Problem, Schedule, ValueId
from .validate import WORKSPACE

BEFORE = -1
"""The step before the first, in which arguments with bytes in the pool are placed."""


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
      offsets: (step, value or `WORKSPACE`) -> offset in the pool, bytes. Arguments that
        live in the pool are placed in step `BEFORE`.
      failure: None if the program ran to its end.
      cost: seconds of all steps by the cost model.
      evictions: values evicted to make room.
      eager_frees: values freed because nothing needed them.
      rematerializations: steps beyond each op's first.
      depth: most ops waiting for each other at once; 1 without rematerialization.
      peak: most bytes of the pool in use at once.
      peak_pinned: most bytes that ops waited for or held on to at once.
      fragmentation: free share of the pool after each allocation that had to evict.
      chunks_searched: chunks visited while looking for what to evict.
      search_seconds: processor time of each of these searches, freeing included.
    """

    schedule: Schedule
    offsets: dict[tuple[int, ValueId], int]
    failure: Failure | None
    cost: float
    evictions: int
    eager_frees: int
    rematerializations: int
    depth: int
    peak: int
    peak_pinned: int
    fragmentation: tuple[float, ...]
    chunks_searched: int
    search_seconds: tuple[float, ...] = field(compare=False)

    @property
    def is_feasible(self) -> bool:
        return self.failure is None


def run_online(
    problem: Problem,
    budget: int,
    policy: Policy = COOP,
    steps_per_op: int = 50,
    lifetimes: Lifetimes | None = None,
    progress: Callable[[OpId], None] | None = None,
) -> OnlineRun:
    """Runs the program within a budget, deciding as it goes.

    Args:
      budget: bytes, `Problem.fixed` included.
      policy: what to evict, and where values go.
      steps_per_op: gives up when the steps come to this many times the ops.
      lifetimes: what the problem does not say about its values, if there is anything.
      progress: called with each op of the program that has run.
    """
    executor = _Executor(problem, budget, policy, lifetimes or Lifetimes())
    return executor.run(steps_per_op * len(problem.ops), progress)


class _Stop(Exception):
    """Ends a run from within; its argument is the `Failure`."""


class _Executor:
    """The state of one run. A turn is what happens up to the program's next op."""

    def __init__(
        self,
        problem: Problem,
        budget: int,
        policy: Policy,
        lifetimes: Lifetimes,
    ) -> None:
        self.problem, self.policy = problem, policy
        self.lacking = problem.fixed - budget
        self.arena = Arena(budget - problem.fixed, problem.alignment)
        limits = deadlines(problem, lifetimes)
        self.due = limits.due
        self.scores = Scores(problem, policy, limits.stays_after)
        self.is_resident, self.pins = self.scores.resident, self.scores.pins
        self.offset: dict[ValueId, int] = {}
        self.uses_left = Counter(v for op in problem.ops for v in op.inputs)
        self.uses_left.update(limits.held.keys())
        self.uses_left.update(v for v, x in enumerate(problem.values) if x.is_output)
        self.uses_again: Counter[ValueId] = Counter()
        self.expected: set[OpId] = set()
        self.released: dict[OpId, list[ValueId]] = defaultdict(list)
        for v, turn in limits.held.items():
            self.released[turn].append(v)
        self.turn = -1
        self.clock = 0.0
        self.schedule: list[OpId] = []
        self.offsets: dict[tuple[int, ValueId], int] = {}
        self.evictions = self.eager_frees = self.depth = self.chunks_searched = 0
        self.pinned = self.peak_pinned = 0
        self.fragmentation: list[float] = []
        self.search_seconds: list[float] = []

    def run(
        self, most_steps: int, progress: Callable[[OpId], None] | None
    ) -> OnlineRun:
        """Runs the whole workload, or up to what cannot be done.

        Args:
          most_steps: executions, repeats included, after which it gives up.
          progress: called with each op of the workload once it has run.
        """
        failure = None
        self.most_steps = most_steps
        try:
            if self.lacking > 0:
                raise _Stop(Failure("no room", None, self.lacking))
            self._place_arguments()
            for op in range(len(self.problem.ops)):
                self._take_turn(op)
                if progress is not None:
                    progress(op)
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
            peak=self.arena.peak,
            peak_pinned=self.peak_pinned,
            fragmentation=tuple(self.fragmentation),
            chunks_searched=self.chunks_searched,
            search_seconds=tuple(self.search_seconds),
        )

    def _place_arguments(self) -> None:
        for v, value in enumerate(self.problem.values):
            if not value.is_argument:
                continue
            if value.size > 0:
                offset = self.arena.allocate(value.size, owner=v)
                if offset is None:
                    raise _Stop(self._no_room(None, value.size))
                self.offset[v] = self.offsets[BEFORE, v] = offset
            self.is_resident[v] = True

    def _take_turn(self, op: OpId) -> None:
        """Runs the program's next op, and before it whatever computes its inputs."""
        self.turn = op
        self.scores.take_turn(op, self.problem.ops[op].inputs)
        stack = [(op, self._pinned(op, also=self.due.get(op, ())))]
        while stack:
            self.depth = max(self.depth, len(stack))
            _, needs = stack[-1]
            missing = next((v for v in needs if not self.is_resident[v]), None)
            if missing is None:
                self._step(*stack.pop())
            else:
                self._expect(missing)
                source = self.problem.producer[missing]
                stack.append((source, self._pinned(source)))
        assert not self.expected, "an op that was to run again has not"
        for v in self.released.get(op, ()):
            self.uses_left[v] -= 1
            self._free_if_dead(v)

    def _expect(self, missing: ValueId) -> None:
        """Counts who reads what in the recomputation of a value, inputs included.

        What two of these ops read is not dropped after the first: over a chain of
        skips, it would be computed 2, 4, 8, ... times.
        """
        todo = [missing]
        while todo:
            op = self.problem.producer[todo.pop()]
            if op not in self.expected:
                self.expected.add(op)
                inputs = self.problem.ops[op].inputs
                self.uses_again.update(inputs)
                todo += [v for v in inputs if not self.is_resident[v]]

    def _pinned(self, op: OpId, also: Iterable[ValueId] = ()) -> tuple[ValueId, ...]:
        """What the op waits for; none of it may go until the op has run."""
        needs = tuple(dict.fromkeys((*self.problem.ops[op].inputs, *also)))
        self._pin(needs)
        return needs

    def _pin(self, values: Iterable[ValueId]) -> None:
        for v in values:
            if not self.pins[v]:
                self.pinned += self.problem.values[v].size
            self.pins[v] += 1
        self.peak_pinned = max(self.peak_pinned, self.pinned)

    def _unpin(self, values: Iterable[ValueId]) -> None:
        for v in values:
            self.pins[v] -= 1
            if not self.pins[v]:
                self.pinned -= self.problem.values[v].size
                self._free_if_dead(v)

    def _step(self, op: OpId, needs: tuple[ValueId, ...]) -> None:
        spec = self.problem.ops[op]
        if len(self.schedule) >= self.most_steps:
            raise _Stop(Failure("too many steps", op, 0))
        if op == self.turn:
            self.uses_left.subtract(spec.inputs)
        elif op in self.expected:
            self.expected.remove(op)
            self.uses_again.subtract(spec.inputs)
        self._pin(spec.outputs)
        self._place_outputs(op, spec)
        for v in spec.outputs:
            if v in self.offset:
                self.offsets[len(self.schedule), v] = self.offset[v]
        self.schedule.append(op)
        self.scores.sets.restore(op)
        self.scores.touch((*spec.inputs, *spec.outputs), self.clock)
        self.clock += spec.cost
        self._unpin((*needs, *spec.outputs))

    def _place_outputs(self, op: OpId, spec: Op) -> None:
        for source, target in spec.in_place if self.policy.is_in_place else ():
            if self._may_hand_over(source, target):
                offset = self._drop(source)
                self.arena.hand_over(offset, target)
                self.offset[target] = offset
                self.is_resident[target] = True
        for v in spec.outputs:
            size = self.problem.values[v].size
            if size > 0 and not self.is_resident[v]:
                self.offset[v] = self._allocate(size, op, v)
            self.is_resident[v] = True
        if spec.workspace:
            # It has no owner: it is gone before anything else can be evicted.
            offset = self._allocate(spec.workspace, op, len(self.problem.values))
            self.offsets[len(self.schedule), WORKSPACE] = offset
            self.arena.free(offset)

    def _may_hand_over(self, source: ValueId, target: ValueId) -> bool:
        if source not in self.offset or self.is_resident[target]:
            return False
        values, rounded = self.problem.values, self.arena.rounded
        is_dead = self.pins[source] == 1 and not self._is_wanted(source)
        return is_dead and rounded(values[source].size) == rounded(values[target].size)

    def _drop(self, value: ValueId) -> int:
        """Makes a value absent; its bytes, at the offset returned, stay taken."""
        self.is_resident[value] = False
        op = self.problem.producer[value]
        if op >= 0:
            self.scores.sets.evict(op, self._evicted_inputs(op))
        return self.offset.pop(value)

    def _allocate(self, size: int, op: OpId, owner: ValueId) -> int:
        low = self.problem.ops[op].is_expensive or not self.policy.is_partitioned
        if (offset := self.arena.allocate(size, low, owner)) is not None:
            return offset
        started = time.thread_time()
        while offset is None:
            victims = self._victims(size)
            if not victims:
                raise _Stop(self._no_room(op, size))
            for v in victims:
                self.arena.free(self._drop(v))
            self.evictions += len(victims)
            offset = self.arena.allocate(size, low, owner)
        self.search_seconds.append(time.thread_time() - started)
        self.fragmentation.append(self.arena.free_bytes / self.arena.capacity)
        return offset

    def _victims(self, size: int) -> list[ValueId]:
        """The values in the cheapest window of this many bytes, or the cheapest one."""
        self.chunks_searched += len(self.arena)
        costs = self.scores.of(self.arena, self.clock, self.turn)
        owners = self.arena.owners
        if self.policy.is_windowed:
            window = self.arena.cheapest_window(size, costs)
            inside = owners[window.start : window.end] if window else owners[:0]
            return inside[inside >= 0].tolist()
        costs[owners < 0] = np.inf
        place = int(costs.argmin()) if len(costs) else 0
        return [int(owners[place])] if len(costs) and np.isfinite(costs[place]) else []

    def _free_if_dead(self, value: ValueId) -> None:
        is_needed = self.pins[value] or self._is_wanted(value)
        if value in self.offset and not is_needed:
            self.arena.free(self._drop(value))
            self.eager_frees += 1

    def _is_wanted(self, value: ValueId) -> bool:
        """Whether the program or the recomputation under way reads it again."""
        return self.uses_left[value] > 0 or self.uses_again[value] > 0

    def _evicted_inputs(self, op: OpId) -> set[OpId]:
        """Ops that computed the inputs which are absent now."""
        absent = (v for v in self.problem.ops[op].inputs if not self.is_resident[v])
        return {self.problem.producer[v] for v in absent} - {-1}

    def _no_room(self, op: OpId | None, request: int) -> Failure:
        stays_after = self.scores.stays_after
        pinned = tuple(
            sorted(v for v in self.offset if self.pins[v] or stays_after[v] < self.turn)
        )
        size = sum(self.problem.values[v].size for v in pinned)
        return Failure("no room", op, request, self.arena.free_bytes, pinned, size)
