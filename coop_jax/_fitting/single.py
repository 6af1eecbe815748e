"""Ops that have to be kernels of their own for a plan to keep to its peak.

XLA gives a result the bytes of an operand that dies only where each is all that its
kernel writes: one of several results is read through an element of a tuple, and its
operands are read for the others (`FusionCanShareBufferHint`). XLA:GPU makes one kernel
of several results in one part of a plan. Where a plan has no room for both arrays, the
one that gives its bytes and the one that takes them are parts of their own.
"""

from collections.abc import Sequence, Set
from itertools import chain

from .._planning.buffer_assignment import schedule_tenancies
from .._planning.types import OpId, Problem
from .._planning.validate import live_bytes

type Parts = Sequence[Sequence[OpId]]


def single_kernels(problem: Problem, parts: Parts, alone: Set[OpId]) -> frozenset[OpId]:
    """The ops that take bytes over, or give theirs, where else the peak would rise.

    Args:
      problem: what is planned.
      parts: in the order they run.
      alone: ops that XLA computes on their own anyway.
    """
    schedule = tuple(chain.from_iterable(parts))
    alive = live_bytes(problem, schedule)
    most = max(alive, default=0)
    found: set[OpId] = set()
    _, tenancies = schedule_tenancies(problem, schedule)
    held = {}
    for taking in tenancies:
        giving, held[taking.buffer] = held.get(taking.buffer), taking
        if giving is None or taking.op in alone or taking.value is None:
            continue
        if alive[taking.start] + problem.values[taking.value].size > most:
            found |= {giving.op, taking.op} - alone
    return frozenset(found)


def with_single(parts: Parts, single: Set[OpId]) -> list[list[OpId]]:
    """The parts, with each of these ops in one of its own."""
    found: list[list[OpId]] = []
    for part in parts:
        is_open = False
        for op in part:
            if not is_open or op in single:
                found.append([])
            found[-1].append(op)
            is_open = op not in single
    return found
