"""Chooses what a pair of scans stacks, within one iteration. Imports no JAX.

The joint body of a scan pair is a straight line with a seam: ops before it run in the
forward scan, ops after it in the backward scan, and what is alive across it is stacked,
one row per iteration. That is a planning problem of which only the bytes at one
position count, and so it has an exact solution at every price per byte (`min_cut`).
Those solutions are the corners of the best trade; what lies between two corners is
found by branching (`scan_branch`). As a planning problem the seam is an op whose
workspace is larger than all else.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from .._planning.min_cut import FlowNetwork
from .._planning.retention import Edit, Retention
from .._planning.types import Op, OpId, Problem, Value, ValueId

_UNITS = 1 << 40
_MOST_CORNERS = 24


@dataclass(frozen=True, slots=True)
class SeamProblem:
    """A joint body with its seam.

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


def corners(body: SeamProblem) -> list[Keeping]:
    """Choices that are best at some price per byte, most bytes first.

    The first recomputes nothing that costs anything; the last stacks the fewest bytes.
    """
    ends = [
        keep_at_price(body, body.lowest_price),
        keep_at_price(body, body.highest_price),
    ]
    found = {keeping.row: keeping for keeping in ends}
    todo = [tuple(ends)]
    while todo and len(found) < _MOST_CORNERS:
        many, few = todo.pop(0)
        if many.row <= few.row or few.cost <= many.cost:
            continue
        price = (few.cost - many.cost) / (many.row - few.row)
        between = keep_at_price(body, price)
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
    return as_keeping(body, choose_at_price(body, price).repeated)


def as_keeping(body: SeamProblem, repeated: Set[OpId]) -> Keeping:
    """The choice that repeats these ops, which are enough."""
    state = Retention(body.problem)
    first_read = _first_reads(body.problem, body.seam, repeated)
    log: list[Edit] = []
    for op in sorted(repeated):
        state.insert(op, first_read[op], log)
    state.sweep(sorted(repeated), log)
    row = state.peak() - body.workspace
    return Keeping(state.snapshot(), max(row, 0), state.cost)


def choose_at_price(
    body: SeamProblem,
    price: float,
    carried: Set[ValueId] = frozenset(),
    gone: Set[ValueId] = frozenset(),
) -> Choice:
    """The cheapest choice at `price` seconds per byte, by a minimum cut.

    Args:
      carried: values carried across the seam whatever they cost.
      gone: values that are not, if there is any other way.
    """
    problem, seam = body.problem, body.seam
    source, sink = 0, 1
    value_node = {
        v: 2 + i
        for i, v in enumerate(v for op in problem.ops[:seam] for v in op.outputs)
    }
    op_node = {op: 2 + len(value_node) + op for op in range(seam)}
    network = FlowNetwork(2 + len(value_node) + seam)
    unit = _UNITS / body.highest_price
    must_run = _must_run(problem, seam)
    shut = body.never_kept | gone
    for k, op in enumerate(problem.ops[:seam]):
        # A value that the first half does without is not computed there, but here.
        cost = op.cost * unit if k in must_run else 0
        capacity = round(cost) + 1 if op.is_recomputable else None
        network.add(op_node[k], sink, capacity)
        for v in op.outputs:
            bytes_cost = 0 if v in carried else price * problem.values[v].size * unit
            capacity = None if v in shut else round(bytes_cost)
            network.add(value_node[v], op_node[k], capacity)
        for v in op.inputs:
            if v in value_node:
                network.add(op_node[k], value_node[v], None)
    for op in problem.ops[seam + 1 :]:
        for v in op.inputs:
            if v in value_node:
                network.add(source, value_node[v], None)
    side = network.source_side(source, sink)
    repeated = frozenset(k for k, node in op_node.items() if node in side)
    kept = carried | {
        v
        for v, node in value_node.items()
        if node in side and problem.producer[v] not in repeated
    }
    return Choice(
        frozenset(kept),
        repeated,
        sum(problem.values[v].size for v in kept),
        sum(problem.ops[k].cost for k in repeated & must_run),
    )


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


def _first_reads(problem: Problem, seam: OpId, repeated: Set[OpId]) -> dict[OpId, int]:
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
