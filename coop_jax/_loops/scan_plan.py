"""Chooses what a pair of scans stacks, within one iteration. Imports no JAX.

The joint body of a scan pair is a straight line with a seam: ops before it run in the
forward scan, ops after it in the backward scan, and what is alive across it is stacked,
one row per iteration. That is a planning problem of which only the bytes at one
position count, and so it has an exact solution at every price per byte (`min_cut`).
Those solutions are the corners of the best trade; between two corners the planner's own
moves (`search`) take back what the bytes allowed leave room for. For them the seam is
an op whose workspace is larger than all else, and the pool is that workspace plus the
bytes allowed.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .._planning.min_cut import FlowNetwork
from .._planning.retention import Edit, Retention
from .._planning.search import Effort, Search
from .._planning.types import Op, OpId, Problem, Value, ValueId

_EFFORT = Effort(rounds=0, moves=2_000)
_NEAR_TRIES = 32
_NEAR_SCALES = (0.4, 1.6)
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
    """

    problem: Problem
    seam: OpId
    workspace: int
    never_kept: frozenset[ValueId] = frozenset()


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
) -> SeamProblem:
    """Puts a seam before op `boundary`."""
    # For moves, what must not be kept is as large as all that there is.
    total = 1 + sum(value.size for value in values)
    values = [
        replace(value, size=total) if v in never_kept and value.size else value
        for v, value in enumerate(values)
    ]
    workspace = 1 + sum(value.size for value in values)
    seam = Op("seam", (), (), 0.0, workspace=workspace, is_recomputable=False)
    problem = Problem((*ops[:boundary], seam, *ops[boundary:]), tuple(values))
    return SeamProblem(problem, boundary, workspace, never_kept)


def corners(body: SeamProblem) -> list[Keeping]:
    """Choices that are best at some price per byte, most bytes first.

    The first recomputes nothing that costs anything; the last stacks the fewest bytes.
    """
    total = body.problem.cost(body.problem.program_order)
    dear = max(total, 1e-30)
    ends = [
        keep_at_price(body, dear * 1e-6 / body.workspace),
        keep_at_price(body, dear),
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


def keep_within(body: SeamProblem, known: Sequence[Keeping], row: int) -> Keeping:
    """The cheapest choice found that stacks at most `row` bytes per iteration.

    Args:
      known: `corners(body)`.
      row: at least the bytes of the last corner.
    """
    below = next(keeping for keeping in known if keeping.row <= row)
    above = min((k for k in known if k.row > row), key=lambda k: k.row, default=below)
    found = [below]
    for corner in (above, below, *_near(body, below, above)):
        state = Retention(body.problem)
        state.restore(corner.positions)
        search = Search(state, body.workspace + row, _EFFORT)
        if search.relieve():
            search.trim()
            found.append(_keeping(body, state))
    return min(found, key=lambda keeping: (keeping.cost, keeping.row))


def _near(body: SeamProblem, below: Keeping, above: Keeping) -> list[Keeping]:
    """Choices near the edge between two corners, best at slightly other sizes."""
    if above.row <= below.row:
        return []
    rng = random.Random(0)
    price = (below.cost - above.cost) / (above.row - below.row)
    found = {}
    for _ in range(_NEAR_TRIES):
        scale = [rng.uniform(*_NEAR_SCALES) for _ in body.problem.values]
        keeping = keep_at_price(body, price, scale)
        found[keeping.positions] = keeping
    return list(found.values())


def keep_at_price(
    body: SeamProblem, price: float, scale: Sequence[float] | None = None
) -> Keeping:
    """The choice with the least cost at `price` seconds per byte of a row.

    Args:
      scale: factors on the price, per value.
    """
    problem, seam = body.problem, body.seam
    repeated = _repeated(body, price, scale or [1.0] * len(problem.values))
    state = Retention(problem)
    first_read = _first_reads(problem, seam, repeated)
    log: list[Edit] = []
    for op in sorted(repeated):
        state.insert(op, first_read[op], log)
    state.sweep(sorted(repeated), log)
    return _keeping(body, state)


def _keeping(body: SeamProblem, state: Retention) -> Keeping:
    row = state.peak() - body.workspace
    return Keeping(state.snapshot(), max(row, 0), state.cost)


def _repeated(body: SeamProblem, price: float, scale: Sequence[float]) -> set[OpId]:
    """Ops of the first half that run behind the seam, by a minimum cut."""
    problem, seam = body.problem, body.seam
    source, sink = 0, 1
    value_node = {
        v: 2 + i
        for i, v in enumerate(v for op in problem.ops[:seam] for v in op.outputs)
    }
    op_node = {op: 2 + len(value_node) + op for op in range(seam)}
    network = FlowNetwork(2 + len(value_node) + seam)
    unit = _UNITS / max(problem.cost(problem.program_order), 1e-30)
    must_run = _must_run(problem, seam)
    for k, op in enumerate(problem.ops[:seam]):
        # A value that the first half does without is not computed there, but here.
        cost = op.cost * unit if k in must_run else 0
        capacity = round(cost) + 1 if op.is_recomputable else None
        network.add(op_node[k], sink, capacity)
        for v in op.outputs:
            carried = price * scale[v] * problem.values[v].size * unit
            is_open = v not in body.never_kept
            network.add(value_node[v], op_node[k], round(carried) if is_open else None)
        for v in op.inputs:
            if v in value_node:
                network.add(op_node[k], value_node[v], None)
    for op in problem.ops[seam + 1 :]:
        for v in op.inputs:
            if v in value_node:
                network.add(source, value_node[v], None)
    chosen = network.source_side(source, sink)
    return {k for k, node in op_node.items() if node in chosen}


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


def _first_reads(problem: Problem, seam: OpId, repeated: set[OpId]) -> dict[OpId, int]:
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
