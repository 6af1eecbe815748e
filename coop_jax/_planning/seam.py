"""What to keep across one place of a program, and what to repeat behind it. No JAX.

A problem with a *seam*: what is alive across it costs bytes, or is computed again
behind it. Of all bytes only those at one position count, and so there is an exact
solution at every price per byte, by a minimum cut (`min_cut`). As a planning problem
the seam is an op whose workspace is larger than all else.
"""

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from .min_cut import FlowNetwork
from .types import Op, OpId, Problem, Value, ValueId

_UNITS = 1 << 40
_SOURCE, _SINK = 0, 1


@dataclass(frozen=True, slots=True)
class SeamProblem:
    """A program with its seam.

    Attributes:
      problem: ops before, the seam, ops after.
      seam: the op that stands for it.
      workspace: its bytes.
      never_kept: values that must not be alive across it.
      arithmetic: floating point operations per op.
      policies: sets of values; each is what a policy of `jax.checkpoint` may keep.
    """

    problem: Problem
    seam: OpId
    workspace: int
    never_kept: frozenset[ValueId] = frozenset()
    arithmetic: tuple[float, ...] = ()
    policies: tuple[frozenset[ValueId], ...] = ()

    @property
    def lowest_price(self) -> float:
        """Seconds per byte at which nothing that costs anything is repeated."""
        return self.highest_price * 1e-6 / self.workspace

    @property
    def highest_price(self) -> float:
        """Seconds per byte at which as few bytes as possible are stacked."""
        return max(self.problem.cost(self.problem.program_order), 1e-30)


@dataclass(frozen=True, slots=True)
class Choice:
    """What a cut says: values carried across the seam, ops repeated behind it.

    Attributes:
      row: bytes of the values.
      cost: seconds of the ops that the first half runs too.
    """

    carried: frozenset[ValueId]
    repeated: frozenset[OpId]
    row: int
    cost: float


def with_seam(
    ops: Sequence[Op],
    values: Sequence[Value],
    boundary: int,
    never_kept: frozenset[ValueId] = frozenset(),
    arithmetic: Sequence[float] = (),
    policies: Sequence[frozenset[ValueId]] = (),
) -> SeamProblem:
    """Puts a seam before op `boundary`; for the rest see `SeamProblem`."""
    # For moves, what must not be kept is as large as all that there is.
    total = 1 + sum(value.size for value in values)
    values = [
        replace(value, size=total) if v in never_kept and value.size else value
        for v, value in enumerate(values)
    ]
    workspace = 1 + sum(value.size for value in values)
    seam = Op("seam", (), (), 0.0, workspace=workspace, is_recomputable=False)
    problem = Problem((*ops[:boundary], seam, *ops[boundary:]), tuple(values))
    counted = tuple(arithmetic) or (0.0,) * len(ops)
    counted = (*counted[:boundary], 0.0, *counted[boundary:])
    return SeamProblem(
        problem, boundary, workspace, never_kept, counted, tuple(policies)
    )


class SeamCuts:
    """The cheapest choices for one seam, by minimum cuts."""

    def __init__(self, body: SeamProblem) -> None:
        self.body = body
        problem, seam = body.problem, body.seam
        self._unit = _UNITS / body.highest_price
        self._must_run = _must_run(problem, seam)
        before = [v for op in problem.ops[:seam] for v in op.outputs]
        self._value_node = {v: 2 + i for i, v in enumerate(before)}
        self._first_op = 2 + len(before)
        self._network = FlowNetwork(self._first_op + seam)
        # Per value, the edge that is cut if it is carried.
        self._edges = np.zeros(len(before), np.int64)
        self._sizes = np.array([problem.values[v].size for v in before], float)
        for k, op in enumerate(problem.ops[:seam]):
            self._add(k, op)
        for op in problem.ops[seam + 1 :]:
            for v in op.inputs:
                if v in self._value_node:
                    self._network.add(_SOURCE, self._value_node[v], None)

    def _add(self, k: OpId, op: Op) -> None:
        node = self._first_op + k
        # A value that the first half does without is not computed there, but here.
        cost = op.cost * self._unit if k in self._must_run else 0
        capacity = round(cost) + 1 if op.is_recomputable else None
        self._network.add(node, _SINK, capacity)
        for v in op.outputs:
            value = self._value_node[v]
            self._edges[value - 2] = self._network.add(value, node, 0)
        for v in op.inputs:
            if v in self._value_node:
                self._network.add(node, self._value_node[v], None)

    def at(
        self,
        price: float,
        carried: Set[ValueId] = frozenset(),
        gone: Set[ValueId] = frozenset(),
    ) -> Choice:
        """The cheapest choice at `price` seconds per byte.

        Args:
          carried: values carried across the seam whatever they cost.
          gone: values that are not, if there is any other way.
        """
        capacities = price * self._sizes * self._unit
        capacities[self._places(carried)] = 0
        capacities[self._places(self.body.never_kept | gone)] = np.inf
        self._network.change(self._edges, capacities)
        return self._choice(self._network.source_side(_SOURCE, _SINK), carried)

    def _places(self, values: Set[ValueId]) -> list[int]:
        nodes = self._value_node
        return [nodes[v] - 2 for v in values if v in nodes]

    def _choice(self, side: Set[int], carried: Set[ValueId]) -> Choice:
        problem, seam = self.body.problem, self.body.seam
        repeated = frozenset(k for k in range(seam) if self._first_op + k in side)
        kept = carried | {
            v
            for v, node in self._value_node.items()
            if node in side and problem.producer[v] not in repeated
        }
        return Choice(
            frozenset(kept),
            repeated,
            sum(problem.values[v].size for v in kept),
            sum(problem.ops[k].cost for k in repeated & self._must_run),
        )


def narrowed(
    cut: Callable[[float], Choice], few: Choice, many: Choice, row: int, equal: float
) -> Iterator[tuple[Choice, Choice, float, float]]:
    """Two choices around `row` bytes and closer each time, until they are neighbours.

    The price at which two choices cost the same finds what lies between them.

    Args:
      cut: the cheapest choice at a price.
      few: one within `row`.
      many: one over it.
      equal: seconds below which costs are equal.

    Yields:
      The two, the price, and a bound: no choice within `row` costs less.
    """
    while True:
        price = (few.cost - many.cost) / (many.row - few.row)
        between = cut(price)
        bound = between.cost + price * (between.row - row)
        yield few, many, price, bound
        if few.cost + price * (few.row - row) - bound <= equal:
            return
        few, many = (between, many) if between.row <= row else (few, between)


def _must_run(problem: Problem, seam: OpId) -> set[OpId]:
    """Ops of the first half that its own results need."""
    wanted = {v for v, value in enumerate(problem.values) if value.is_output}
    found = set()
    for k in range(seam - 1, -1, -1):
        op = problem.ops[k]
        if not op.is_recomputable or any(v in wanted for v in op.outputs):
            found.add(k)
            wanted.update(op.inputs)
    return found


def first_reads(problem: Problem, seam: OpId, repeated: Set[OpId]) -> dict[OpId, int]:
    """Where behind the seam each repeated op is first needed."""
    needed: dict[int, int] = {}
    for k in range(len(problem.ops) - 1, seam, -1):
        for v in problem.ops[k].inputs:
            needed[v] = k
    places = {}
    for op in sorted(repeated, reverse=True):
        spec = problem.ops[op]
        place = min(needed[v] for v in spec.outputs if v in needed)
        places[op] = place
        for v in spec.inputs:
            needed[v] = min(needed.get(v, place), place)
    return places
