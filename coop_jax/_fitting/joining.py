"""Parts put together as far as the order inside does not matter. Imports no JAX.

XLA:GPU makes several results in one kernel, and puts what follows a matrix product into
it, where no barrier is in between. So parts are joined while there is room for all that
they make, in whatever order they run. Where the room ends is anywhere in a layer, and
in each of many layers alike at another place. So the cut is made a little earlier if
what comes next there is a kernel of its own anyway, and reads what is written anyway;
of several such places, where what comes next is like what did at other cuts. For layers
cut at other places XLA would compile other kernels.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import ceil

from .._planning.types import OpId, Problem, ValueId
from .._planning.validate import live_bytes
from .handing import Handing
from .parts import bytes_before, bytes_made, is_read_aside, overwriting

LEAST_JOINED = 0.7
"""Of the parts that fit into one, the share that an earlier cut leaves together."""

_NO_SHARES: Mapping[OpId, Set[Hashable]] = {}


def joined(
    problem: Problem,
    parts: Sequence[Sequence[OpId]],
    apart: Set[OpId] = frozenset(),
    spreading: Set[OpId] = frozenset(),
    alone: Set[OpId] = frozenset(),
    sharing: Mapping[OpId, Set[Hashable]] = _NO_SHARES,
    kinds: Sequence[Hashable] | None = None,
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
      kinds: what each op computes; by default no two are alike.
    """
    schedule = tuple(chain(*parts))
    handing = Handing(problem, schedule, alone)
    parts = [piece for part in parts for piece in handing.set_apart(part)]
    before = bytes_before(problem, parts)
    most = max(live_bytes(problem, schedule), default=0)
    rules = _Rules(problem, most, apart, spreading, sharing, handing)
    places = _places(parts, kinds or range(len(problem.ops)))

    def grown(start: int, stop: int) -> tuple[_Part, int]:
        part = _Part(rules, parts[start], before[start])
        for end in range(start + 1, stop):
            if not (part.can_join(parts[end]) and part.has_room_for(parts[end])):
                return part, end
            part.join(parts[end])
        return part, stop

    def worth_cutting(place: int) -> tuple[bool, int, int]:
        return parts[place][0] in alone, cuts[places[place]], place

    found: list[list[OpId]] = []
    cuts = Counter[Hashable]()
    start = 0
    while start < len(parts):
        part, stop = grown(start, len(parts))
        if stop < len(parts) and part.can_join(parts[stop]):
            least = start + ceil(LEAST_JOINED * (stop - start))
            part, stop = grown(start, max(range(least, stop + 1), key=worth_cutting))
        found += part.pieces
        cuts.update(places[stop : stop + 1])
        start = stop
    return found


def _places(
    parts: Sequence[Sequence[OpId]], kinds: Sequence[Hashable]
) -> list[Hashable]:
    """What comes next at a cut in front of each part: an op, for the first time or not.

    Ops of one kind are alike.
    """
    found: list[Hashable] = []
    done = set[OpId]()
    for part in parts:
        found.append((kinds[part[0]], part[0] in done))
        done.update(part)
    return found


@dataclass(frozen=True)
class _Rules:
    """What decides whether parts may be joined.

    Attributes:
      most: bytes that may be alive at once.
      problem, apart, spreading, sharing, handing: as in `joined`.
    """

    problem: Problem
    most: int
    apart: Set[OpId]
    spreading: Set[OpId]
    sharing: Mapping[OpId, Set[Hashable]]
    handing: Handing

    @cached_property
    def updates(self) -> set[OpId]:
        """Updates of donated arguments."""
        return overwriting(self.problem)


class _Part:
    """A part while others join it.

    Args:
      rules: what decides.
      first: what it starts with.
      alive: bytes alive before it.
    """

    def __init__(self, rules: _Rules, first: Sequence[OpId], alive: int) -> None:
        self._rules = rules
        self._ops: list[OpId] = []
        self._late: list[OpId] = []
        self._inside = set[OpId]()
        self._shared = set[Hashable]()
        self._held, self._workspace = alive, 0
        self._is_open = rules.apart.isdisjoint(first)
        self._add(first)

    @property
    def pieces(self) -> list[list[OpId]]:
        """The part, and the updates that have to wait until it is done."""
        return [piece for piece in (self._ops, self._late) if piece]

    def can_join(self, part: Sequence[OpId]) -> bool:
        """Whether the part may join it, if there is room."""
        rules = self._rules
        return (
            self._is_open
            and rules.apart.isdisjoint(part)
            and self._inside.isdisjoint(part)
            and self._shared.isdisjoint(self._shares(part))
            and not any(rules.handing.is_broken_by(op, self._inside) for op in part)
            and self._waiting(part) is not None
        )

    def has_room_for(self, part: Sequence[OpId]) -> bool:
        """Whether all that both make fits at once."""
        workspace = max(self._workspace, self._needed(part))
        return self._held + self._made(part) + workspace <= self._rules.most

    def join(self, part: Sequence[OpId]) -> None:
        """Takes the part in; it can join."""
        waits = self._waiting(part)
        self._add(part)
        if waits:
            rules = self._rules
            late = _with_sources(rules.problem, rules.updates, waits, self._ops)
            self._ops = [op for op in self._ops if op not in late]
            self._late += late

    def _add(self, part: Sequence[OpId]) -> None:
        self._held += self._made(part)
        self._workspace = max(self._workspace, self._needed(part))
        self._ops += part
        self._inside.update(part)
        self._shared |= self._shares(part)

    def _made(self, part: Sequence[OpId]) -> int:
        return bytes_made(self._rules.problem, part, self._rules.spreading)

    def _needed(self, part: Sequence[OpId]) -> int:
        return max(self._rules.problem.ops[op].workspace for op in part)

    def _shares(self, part: Sequence[OpId]) -> set[Hashable]:
        return {each for op in part for each in self._rules.sharing.get(op, ())}

    def _waiting(self, part: Sequence[OpId]) -> list[OpId] | None:
        """The updates of a part that have to wait until this one is done.

        They overwrite what is read here for something else, or read what waits. None
        if something else reads that.
        """
        problem, updates = self._rules.problem, self._rules.updates
        found: list[OpId] = []
        made = {v for op in self._late for v in problem.ops[op].outputs}
        for op in part:
            reads = not made.isdisjoint(problem.ops[op].inputs)
            if op in updates and (reads or is_read_aside(problem, op, self._ops)):
                found.append(op)
                made.update(problem.ops[op].outputs)
            elif reads:
                return None
        return found


def _with_sources(
    problem: Problem, updates: Set[OpId], waits: Sequence[OpId], part: Sequence[OpId]
) -> list[OpId]:
    """Updates with those that they alone read: XLA makes one kernel of them."""
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
