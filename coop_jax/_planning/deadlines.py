"""Until when each value may be computed again. No JAX.

A value may depend on an argument that is overwritten or given back later on (OneFlow
then reads the new bytes), or on the result of an op that runs once. Whoever executes
the program has to bring such a value back by then, and to keep it: so no recomputation
reads a parameter after its update.

Deadlines are inherited. A random key that the step replaces early on would so pin every
dropout mask, and all that is computed from one. Hence values that are tiny beside what
is made of them are kept as long as any of that may be needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .types import OpId, Problem, ValueId

_TINY = 64
"""A value is tiny if what is computed from it takes this many times its bytes."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """What a `Problem` does not say about its values.

    Attributes:
      released: the turn after which the program lets go of a value, where that is not
        its last use. Until then it may be evicted, and is not computed again unless an
        op reads it.
      kept: values that are never evicted.
    """

    released: Mapping[ValueId, OpId] = field(default_factory=dict)
    kept: frozenset[ValueId] = frozenset()


@dataclass(frozen=True, slots=True)
class Deadlines:
    """What can be evicted until when.

    Attributes:
      stays_after: per value, the last turn in which it may be computed again, and so be
        evicted; -1 for what is never evicted.
      due: per turn, the values that are needed beyond it although it is their last.
      held: turns to the end of which values are kept, beyond their last use.
    """

    stays_after: list[OpId]
    due: dict[OpId, list[ValueId]]
    held: dict[ValueId, OpId]


def deadlines(problem: Problem, lifetimes: Lifetimes) -> Deadlines:
    """Finds the deadlines of all values."""
    ops, values, end = problem.ops, problem.values, len(problem.ops)
    last_use = {v: k for k, op in enumerate(ops) for v in op.inputs}
    last_use |= {v: end for v, value in enumerate(values) if value.is_output}
    held = dict(lifetimes.released)
    overwriters = {
        values[v].overwrites: k for k, op in enumerate(ops) for v in op.outputs
    }
    writers = {k for v, k in overwriters.items() if v is not None}
    # What an op needs can be had, computed again or not, until this turn.
    until = [overwriters.get(v, end) for v in range(len(values))]
    for v, value in enumerate(values):
        if value.is_argument and value.size > 0 and not value.is_output:
            until[v] = min(until[v], max(last_use.get(v, 0), held.get(v, 0)))
    needed, made = _needs(problem, lifetimes.kept)
    deadline = [end] * len(values)
    due: dict[OpId, list[ValueId]] = {}
    for k, op in enumerate(ops):
        is_once = not op.is_recomputable or k in writers
        last = k if is_once else min((until[v] for v in op.inputs), default=end)
        for v in op.outputs:
            deadline[v], until[v] = last, max(last, last_use.get(v, k))
            is_tiny = 0 < _TINY * values[v].size <= made[v]
            if until[v] < needed[v] and is_tiny and v not in overwriters:
                held[v] = until[v] = needed[v]
            if k < last < until[v] and values[v].size > 0:
                due.setdefault(last, []).append(v)
    for v, value in enumerate(values):
        if value.is_argument or value.is_output or v in lifetimes.kept:
            deadline[v] = -1
    return Deadlines(deadline, due, held)


def _needs(problem: Problem, kept: frozenset[ValueId]) -> tuple[list[OpId], list[int]]:
    """Per value, when something computed from it is last read, and the bytes of that.

    The bytes are those of the ops that read it. Outputs and what is kept are never
    computed again, and so need nothing.
    """
    needed, made = [-1] * len(problem.values), [0] * len(problem.values)
    for k in range(len(problem.ops) - 1, -1, -1):
        op = problem.ops[k]
        again = [
            v
            for v in op.outputs
            if not (problem.values[v].is_output or v in kept)
            and problem.values[v].overwrites is None
        ]
        turn = max((needed[v] for v in again), default=k)
        size = sum(problem.values[v].size for v in again)
        for v in op.inputs:
            needed[v] = max(needed[v], k, turn)
            made[v] += size
    return needed, made
