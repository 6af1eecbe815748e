"""One array for the many small values that wait for the same place of a step.

Gradients of biases and of scales wait for their norm among those of matrices. XLA packs
its block longest first where that comes out smaller, and then each of them lies between
two large arrays, in bytes that large ones would have filled to the last. So they are
put into one array as they come, the shelf, and read from there: written in place, it is
one buffer from the first of them to the last.
"""

from collections.abc import Collection
from dataclasses import replace
from itertools import accumulate, pairwise

from .._planning.types import Problem, ValueId

_SMALL = 1 / 65536
_SMALLEST = 4096
_FEWEST = 8
_SCALAR = 16


def small_size(problem: Problem) -> int:
    """Most bytes of a value where it hardly matters when it is there."""
    return max(_SMALLEST, int(sum(v.size for v in problem.values) * _SMALL))


def shelved(problem: Problem) -> tuple[ValueId, ...]:
    """The small values that wait, unread, where most of such wait; as they are made."""
    small = small_size(problem)
    uses = {
        v: [k]
        for k, op in enumerate(problem.ops)
        for v in op.outputs
        if _SCALAR < problem.values[v].size <= small
    }
    for k, op in enumerate(problem.ops):
        for v in uses.keys() & set(op.inputs):
            uses[v].append(k)
    waits = {
        v: max(pairwise(used), key=lambda wait: wait[1] - wait[0])
        for v, used in uses.items()
        if len(used) > 1
    }
    change = [0] * (len(problem.ops) + 1)
    for made, read in waits.values():
        change[made + 1] += 1
        change[read] -= 1
    waiting = list(accumulate(change))
    at = waiting.index(max(waiting))
    found = tuple(v for v, (made, read) in waits.items() if made < at < read)
    return found if len(found) >= _FEWEST else ()


def without(problem: Problem, values: Collection[ValueId]) -> Problem:
    """The problem when these values take no bytes of their own."""
    sized = list(problem.values)
    for v in values:
        sized[v] = replace(sized[v], size=0)
    return replace(problem, values=tuple(sized))
