"""A step's first half in segments between which little crosses. Imports no JAX.

Up to its fullest place, where the backward pass begins, a step is cut where fewest
bytes cross: a network between its layers. What lies behind that place reads of one
segment after the other, the last one first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .types import Op, OpId, Problem, ValueId
from .validate import live_bytes

_MOST_SEGMENTS = 40  # of one length; more where the thin places lie otherwise

type Reads = list[tuple[OpId, int]]
"""Ops that read values, and the bytes of these."""


@dataclass(frozen=True, slots=True)
class Segment:
    """What lies between two thin places.

    Attributes:
      first: its first op.
      end: the op behind its last.
      turn: the first op behind the fullest place that reads what only it has made;
        the number of ops if none does.
      cost: seconds of one run.
      made: bytes of its own that anything behind it reads.
    """

    first: OpId
    end: OpId
    turn: OpId
    cost: float
    made: int


def segments(problem: Problem) -> tuple[Segment, ...]:
    """Up to the fullest place in program order, those whose turns come one by one."""
    alive = live_bytes(problem, problem.program_order)
    end = int(np.argmax(alive)) + 1 if alive else 0
    last = _last_reads(problem.ops)
    crossing = _crossing(problem, end)
    firsts = [0, *_thin(crossing, _lengths(problem.ops[:end], problem.pool_sizes))]
    turns = _turns(_reads(problem, firsts, end), end, len(problem.ops))
    while None in turns:
        # The first stays the first; others without a turn go with the one before.
        joined = [k for k in range(1, len(firsts)) if turns[k] is None]
        firsts = [first for k, first in enumerate(firsts) if k not in (joined or [1])]
        turns = _turns(_reads(problem, firsts, end), end, len(problem.ops))
    found = []
    for turn, first, stop in zip(turns, firsts, [*firsts[1:], end], strict=True):
        assert turn is not None
        ops = problem.ops[first:stop]
        seconds = sum(op.cost for op in ops)
        outputs = (v for op in ops for v in op.outputs)
        made = sum(problem.values[v].size for v in outputs if last.get(v, -1) >= stop)
        found.append(Segment(first, stop, turn, seconds, made))
    return tuple(found)


def _crossing(problem: Problem, end: OpId) -> np.ndarray:
    """Bytes in front of each op up to `end` that it or a later one of them reads."""
    change = np.zeros(end + 1, np.int64)
    for v, reader in _last_reads(problem.ops[:end]).items():
        if (producer := problem.producer[v]) >= 0:
            change[producer + 1] += problem.values[v].size
            change[reader + 1] -= problem.values[v].size
    return np.cumsum(change[:end])


def _thin(crossing: np.ndarray, length: np.ndarray) -> list[OpId]:
    """Ops in front of which least crosses for half a segment's length around.

    That is the next op either way at least.

    Args:
      crossing: bytes in front of each op.
      length: up to each op, as a share of the whole.
    """
    reach = 0.5 / _MOST_SEGMENTS
    ops = np.arange(len(length))
    low = np.minimum(np.searchsorted(length, length - reach), np.maximum(ops - 1, 0))
    high = np.maximum(np.searchsorted(length, length + reach, side="right"), ops + 2)
    found: list[OpId] = []
    for k in range(1, len(length)):
        is_apart = length[k] - (length[found[-1]] if found else 0.0) > reach
        if is_apart and crossing[k] == crossing[low[k] : high[k]].min():
            found.append(k)
    return found


def _lengths(ops: Sequence[Op], sizes: Sequence[int]) -> np.ndarray:
    """Up to each op, by seconds and by bytes made alike, as a share of the whole."""
    seconds = np.cumsum([0.0, *(op.cost for op in ops)])
    made = np.cumsum([0, *(sum(sizes[v] for v in op.outputs) for op in ops)])
    return ((seconds / (seconds[-1] or 1) + made / (made[-1] or 1)) / 2)[:-1]


def _reads(problem: Problem, firsts: Sequence[OpId], end: OpId) -> list[Reads]:
    """Per segment, what only it has made, by the op from `end` on that first reads it.

    What crosses into the next one is there when that has its turn.
    """
    segment = np.searchsorted(firsts, np.arange(end), side="right") - 1
    last = _last_reads(problem.ops[:end])
    reads: list[Reads] = [[] for _ in firsts]
    for v, reader in _first_reads(problem, end).items():
        producer = problem.producer[v]
        if segment[last.get(v, producer)] == segment[producer]:
            reads[segment[producer]].append((reader, problem.values[v].size))
    return [sorted(each) for each in reads]


def _last_reads(ops: Sequence[Op]) -> dict[ValueId, OpId]:
    """Of what these ops read, the last of them that reads it."""
    return {v: k for k, op in enumerate(ops) for v in op.inputs}


def _first_reads(problem: Problem, end: OpId) -> dict[ValueId, OpId]:
    """Of what is made before `end`, the first op from there on that reads it."""
    found: dict[ValueId, OpId] = {}
    for k in range(end, len(problem.ops)):
        for v in problem.ops[k].inputs:
            if 0 <= problem.producer[v] < end and problem.values[v].size:
                found.setdefault(v, k)
    return found


def _turns(reads: Sequence[Reads], end: OpId, never: OpId) -> list[OpId | None]:
    """Per segment, an op before which it runs again, earlier than the one before's.

    The first that reads of it, for as many segments as can be; of others the first in
    between, if few bytes are read outside, and else none.
    """
    first = [each[0][0] if each else never for each in reads]
    chosen = _falling(first)
    turns: list[OpId | None] = [None] * len(reads)
    low, high = end - 1, [never, *(first[k] for k in chosen)]
    for k in reversed(range(len(reads))):
        if k == (chosen[-1] if chosen else None):
            turns[k] = first[chosen.pop()]
            high.pop()
        else:
            between = [read for read in reads[k] if low < read[0] < high[-1]]
            if 2 * _bytes(between) > _bytes(reads[k]):
                turns[k] = between[0][0]
        low = turns[k] or low
    return turns


def _bytes(reads: Reads) -> int:
    return sum(size for _, size in reads)


def _falling(turns: Sequence[OpId]) -> list[int]:
    """The most segments of which each has its turn after the next one's."""
    length, before = [1] * len(turns), [-1] * len(turns)
    for k, turn in enumerate(turns):
        for j in range(k):
            if turns[j] > turn and length[j] >= length[k]:
                length[k], before[k] = length[j] + 1, j
    k = max(range(len(turns)), key=length.__getitem__, default=-1)
    chosen: list[int] = []
    while k >= 0:
        chosen.append(k)
        k = before[k]
    return chosen[::-1]


def kept_bytes(problem: Problem, chain: Sequence[Segment]) -> np.ndarray:
    """Bytes made from one segment on that cross the place in front of another.

    Those that another segment reads; what was made before crosses the first as well.
    """
    firsts = [segment.first for segment in chain]
    made = np.zeros((len(chain), len(chain)), np.int64)
    for v, reader in _last_reads(problem.ops[: chain[-1].end]).items():
        if (producer := problem.producer[v]) >= 0:
            home, to = np.searchsorted(firsts, (producer, reader), side="right") - 1
            made[home, home + 1 : to + 1] += problem.values[v].size
    return np.cumsum(made[::-1], axis=0)[::-1]
