"""What is made of little runs late, on GPU. Imports no JAX.

A dropout mask is made of a key: the later it is drawn, the less is alive. A plan draws
it early where its peak does not rest on that, in each of many layers alike at another
place. So it runs right before what first reads it, to be one kernel with that.
"""

from collections.abc import Sequence

from .._planning.types import Op, OpId, Problem, ValueId
from .._program.shelving import small_size


def with_large_of_small_late(
    problem: Problem, parts: Sequence[Sequence[OpId]]
) -> list[list[OpId]]:
    """The parts, those of one op that makes large of small values as late as can be.

    Args:
      problem: what is planned.
      parts: in the order they run.
    """
    chosen = _large_of_small(problem)
    next_read: dict[ValueId, int] = {}  # The next part that does.
    before: list[list[int]] = [[] for _ in parts]
    for i, part in reversed(list(enumerate(parts))):
        reading = [next_read.get(v) for v in problem.ops[part[0]].outputs]
        readers = [k for k in reading if k is not None]
        waits = len(part) == 1 and part[0] in chosen and readers
        before[min(readers) if waits else i].append(i)
        next_read |= {v: i for op in part for v in problem.ops[op].inputs}
    return [list(parts[k]) for each in before for k in reversed(each)]


def _large_of_small(problem: Problem) -> set[OpId]:
    """Ops that make large values, and read nothing that is large or overwritten.

    Arguments are not large: their bytes are fixed (`Problem.fixed`).
    """
    small = small_size(problem)
    overwritten = {value.overwrites for value in problem.values}

    def is_chosen(op: Op) -> bool:
        read = [problem.values[v] for v in op.inputs]
        made = [problem.values[v] for v in op.outputs]
        return (
            overwritten.isdisjoint(op.inputs)
            and all(value.size < small for value in read)
            and all(value.size >= small and value.overwrites is None for value in made)
        )

    return {k for k, op in enumerate(problem.ops) if is_chosen(op)}
