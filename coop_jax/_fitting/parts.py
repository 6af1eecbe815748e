"""Cuts a plan into the parts that run one after the other.

All steps at one position of the plan (the rematerializations for an op, then the op)
form a group. A group is cut after each op that XLA computes on its own, as nothing
orders what is in one part but data, and on CPU after each op that several others read,
which XLA would compute in each of them, of operands that stay alive. An update of
donated arguments stays with what runs before it, for XLA to fuse: a gradient need not
be written in its final layout.

On GPU, parts are joined again as far as the order inside does not matter (`joined`):
there XLA makes several results in one kernel, and puts what follows a matrix product
into it, where no barrier is in between.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence, Set
from itertools import accumulate, chain

from .._planning.types import OpId, Problem, ValueId
from .._planning.validate import live_bytes, live_ranges
from .handing import Handing

type Positions = Sequence[Sequence[int]]
"""Per op, the positions it runs at (`_planning.planner.Planned.positions`)."""

_NO_SHARES: Mapping[OpId, Set[Hashable]] = {}


def parts(problem: Problem, positions: Positions, ends: Set[OpId]) -> list[list[OpId]]:
    """The parts of a plan, in the order they run.

    Args:
      problem: what is planned.
      positions: where each op runs.
      ends: the ops that end the part they are in.
    """
    updates = overwriting(problem)
    found: list[list[OpId]] = []
    for group in groups(positions):
        is_open = bool(found) and all(
            op in updates and not _is_read_aside(problem, op, found[-1]) for op in group
        )
        for op in group:
            if not is_open:
                found.append([])
            found[-1].append(op)
            is_open = op not in ends
    return found


def joined(
    problem: Problem,
    parts: Sequence[Sequence[OpId]],
    apart: Set[OpId] = frozenset(),
    spreading: Set[OpId] = frozenset(),
    alone: Set[OpId] = frozenset(),
    sharing: Mapping[OpId, Set[Hashable]] = _NO_SHARES,
) -> list[list[OpId]]:
    """Parts put together while they fit the plan's own peak in whatever order they run.

    What a joined part makes is all taken to be alive at once, with all that was alive
    before it. What runs twice does so in two parts: XLA would merge it with itself. So
    do products that it would make one of. An update of what a part reads for something
    else is a part after it. What has to be a kernel of its own (`handing`) is a part
    without what it would be one with.

    Args:
      problem: what is planned.
      parts: in the order they run.
      apart: ops that stay in the parts they are in.
      spreading: ops whose workspace XLA may write before all else of a part.
      alone: ops that XLA fuses with no other.
      sharing: per product, what another has to share with it for XLA to merge the two.
    """
    schedule = tuple(chain(*parts))
    most = max(live_bytes(problem, schedule), default=0)
    handing = Handing(problem, schedule, alone)
    parts = [piece for part in parts for piece in handing.set_apart(part)]
    before = bytes_before(problem, parts)
    updates = overwriting(problem)
    found: list[list[OpId]] = []
    late: list[OpId] = []
    inside, held, workspace, is_open = set[OpId](), 0, 0, False
    shared = set[Hashable]()
    for part, alive in zip(parts, before, strict=True):
        can_join = apart.isdisjoint(part)
        keeps = any(handing.is_broken_by(op, inside) for op in part)
        shares = {each for op in part for each in sharing.get(op, ())}
        made = bytes_made(problem, part, spreading)
        needed = max(problem.ops[op].workspace for op in part)
        fits = held + made + max(workspace, needed) <= most
        waits = _waiting(problem, updates, part, late, found[-1]) if is_open else None
        is_new = inside.isdisjoint(part) and not keeps and shared.isdisjoint(shares)
        if waits is not None and can_join and fits and is_new:
            found[-1] += part
            waits = _with_sources(problem, updates, waits, found[-1])
            found[-1] = [op for op in found[-1] if op not in waits]
            late += waits
        else:
            found += [late, list(part)] if late else [list(part)]
            inside, held, workspace, late = set(), alive, 0, []
            shared = set()
        inside |= set(part)
        shared |= shares
        held, workspace, is_open = held + made, max(workspace, needed), can_join
    return [*found, late] if late else found


def _waiting(
    problem: Problem,
    updates: Set[OpId],
    part: Sequence[OpId],
    late: Sequence[OpId],
    before: Sequence[OpId],
) -> list[OpId] | None:
    """The updates of a part that have to wait for the part after that it joins.

    They overwrite what `before` reads for something else, or read what waits. None if
    something else reads that.
    """
    found: list[OpId] = []
    made = {v for op in late for v in problem.ops[op].outputs}
    for op in part:
        reads = not made.isdisjoint(problem.ops[op].inputs)
        if op in updates and (reads or _is_read_aside(problem, op, before)):
            found.append(op)
            made.update(problem.ops[op].outputs)
        elif reads:
            return None
    return found


def _with_sources(
    problem: Problem, updates: Set[OpId], waits: Sequence[OpId], part: Sequence[OpId]
) -> list[OpId]:
    """Updates with those that they alone read: XLA makes one kernel of them."""
    if not waits:
        return []
    moved = set(waits)
    readers: dict[ValueId, set[OpId]] = defaultdict(set)
    for op in part:
        for v in problem.ops[op].inputs:
            readers[v].add(op)
    for op in reversed(part):
        reading = {k for v in problem.ops[op].outputs for k in readers[v]}
        if op in updates and reading and reading <= moved:
            moved.add(op)
    return [op for op in part if op in moved]


def bytes_made(problem: Problem, part: Sequence[OpId], spreading: Set[OpId]) -> int:
    """Bytes of all that a part makes, and of what XLA may write before that."""
    written = (v for op in part for v in problem.ops[op].outputs)
    early = sum(problem.ops[op].workspace for op in part if op in spreading)
    return early + sum(problem.values[v].size for v in written)


def bytes_before(problem: Problem, parts: Sequence[Sequence[OpId]]) -> list[int]:
    """Per part, bytes of values made before it and read in it or later."""
    starts = [0, *accumulate(map(len, parts))]
    change = [0] * (starts[-1] + 2)
    for v, alive in live_ranges(problem, tuple(chain(*parts))):
        if alive.start + 1 < alive.end:
            change[alive.start + 1] += problem.values[v].size
            change[alive.end] -= problem.values[v].size
    across = list(accumulate(change))
    return [across[start] for start in starts[:-1]]


def groups(positions: Positions) -> list[list[OpId]]:
    """Ops that run at each position, in op order: the op itself comes last."""
    at: list[list[OpId]] = [[] for _ in positions]
    for op, places in enumerate(positions):
        for position in places:
            at[position].append(op)
    return at


def overwriting(problem: Problem) -> set[OpId]:
    """Ops whose results all take the bytes of donated arguments."""
    return {
        k
        for k, op in enumerate(problem.ops)
        if op.outputs
        and all(problem.values[v].overwrites is not None for v in op.outputs)
    }


def _is_read_aside(problem: Problem, update: OpId, part: Sequence[OpId]) -> bool:
    """Whether the part reads what the update overwrites, and not just for the update.

    XLA would not know that the reader comes first, and copy the argument.
    """
    needs = set(problem.ops[update].inputs)
    overwritten = {problem.values[v].overwrites for v in problem.ops[update].outputs}
    return any(
        overwritten.intersection(problem.ops[op].inputs)
        and needs.isdisjoint(problem.ops[op].outputs)
        for op in part
    )
