"""Until when each value may be computed again. No JAX.

A value may depend on an argument that is overwritten or given back later on (OneFlow
then reads the new bytes), or on the result of an op that runs once. Whoever executes
the program has to bring such a value back by then, and to keep it: so no recomputation
reads a parameter after its update.

Deadlines are inherited. A random key that the step replaces early on would so pin every
dropout mask, and all that is computed from one. Hence values that are tiny beside what
is made of them are kept as long as any of that may be needed.
"""

from collections import Counter
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
    once = {k for v, k in overwriters.items() if v is not None}
    once |= {k for k, op in enumerate(ops) if not op.is_recomputable}
    # What an op needs can be had, computed again or not, until this turn.
    until = [overwriters.get(v, end) for v in range(len(values))]
    for v, value in enumerate(values):
        if value.is_argument and value.size > 0 and not value.is_output:
            until[v] = min(until[v], max(last_use.get(v, 0), held.get(v, 0)))
    again = _computed_again(problem, lifetimes.kept)
    tiny = _tiny(problem, again) - overwriters.keys()
    longest = _last_turns(problem, once, last_use, until, dict.fromkeys(tiny, end))
    needed = _needs(problem, again, longest)
    hold = {v: needed[v] for v in tiny}
    last = _last_turns(problem, once, last_use, until, hold)
    deadline = [end] * len(values)
    due: dict[OpId, list[ValueId]] = {}
    for k, op in enumerate(ops):
        for v in op.outputs:
            deadline[v] = last[k]
            if max(last[k], last_use.get(v, k)) < until[v]:
                held[v] = until[v]
            if k < last[k] < until[v] and values[v].size > 0:
                due.setdefault(last[k], []).append(v)
    for v, value in enumerate(values):
        if value.is_argument or value.is_output or v in lifetimes.kept:
            deadline[v] = -1
    return Deadlines(deadline, due, held)


def _last_turns(
    problem: Problem,
    once: set[OpId],
    last_use: Mapping[ValueId, OpId],
    until: list[OpId],
    hold: Mapping[ValueId, OpId],
) -> list[OpId]:
    """Per op, the last turn in which it may run again if these values are held.

    Of the results of ops, says in `until` until when they can be had.
    """
    last = []
    for k, op in enumerate(problem.ops):
        inputs = (until[v] for v in op.inputs)
        last.append(k if k in once else min(inputs, default=len(problem.ops)))
        for v in op.outputs:
            until[v] = max(last[k], last_use.get(v, k), hold.get(v, k))
    return last


def _computed_again(
    problem: Problem, kept: frozenset[ValueId]
) -> list[tuple[ValueId, ...]]:
    """Per op, the results that may be computed again: no outputs, nothing kept."""
    values = problem.values
    return [
        tuple(
            v
            for v in op.outputs
            if not (values[v].is_output or v in kept) and values[v].overwrites is None
        )
        for op in problem.ops
    ]


def _tiny(problem: Problem, again: list[tuple[ValueId, ...]]) -> set[ValueId]:
    """Values beside which the results of the ops that read them are large."""
    made: Counter[ValueId] = Counter()
    for op, results in zip(problem.ops, again, strict=True):
        size = sum(problem.values[v].size for v in results)
        made.update(dict.fromkeys(op.inputs, size))
    sizes = [value.size for value in problem.values]
    return {v for v, size in made.items() if 0 < _TINY * sizes[v] <= size}


def _needs(
    problem: Problem, again: list[tuple[ValueId, ...]], longest: list[OpId]
) -> list[OpId]:
    """Per value, when it, or something computed from it again, is last read.

    Not beyond the turn in which what is computed from it can run at the longest.
    """
    needed = [-1] * len(problem.values)
    for k in range(len(problem.ops) - 1, -1, -1):
        turn = max((needed[v] for v in again[k]), default=k)
        for v in problem.ops[k].inputs:
            needed[v] = max(needed[v], k, min(turn, longest[k]))
    return needed
