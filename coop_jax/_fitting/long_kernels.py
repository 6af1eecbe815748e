"""Parts cut where XLA:GPU would make one long kernel of a chain. Imports no JAX.

What is computed again in a row, as the carries of a recurrence between two that were
kept, is one kernel if no barrier is in between. Each such kernel is compiled on its
own, twice, and each is different where chains differ in length: half the temporaries of
a BiLSTM of paper size, on a described H200, had seven of about 370 equations, and
compiled in 1.9 times what the step as written takes, now in 1.4. At a cut what waits
for later readers is written either way; what follows reads it once more.
"""

from collections.abc import Sequence, Set

from .._planning.types import OpId, Problem
from .._program.shelving import small_size

MOST_EQUATIONS = 100


def cut_long_kernels(
    problem: Problem,
    part: Sequence[OpId],
    alone: Set[OpId],
    equations: Sequence[int],
    most: int = MOST_EQUATIONS,
) -> list[list[OpId]]:
    """A part, cut in front of what would make a kernel too long.

    A kernel is taken to hold an op and what it is made of inside the part, up to ops
    that are kernels of their own and to small values.

    Args:
      problem: what is planned.
      part: ops in the order they run, none of them twice.
      alone: ops that XLA fuses with no other.
      equations: how many each op stands for.
      most: equations that a kernel of several ops may have.
    """
    small = small_size(problem)
    found: list[list[OpId]] = [[]]
    kernels: dict[OpId, set[OpId]] = {}
    for op in part:
        made = (problem.values[v].size for v in problem.ops[op].outputs)
        if op not in alone and any(size >= small for size in made):
            inputs = problem.ops[op].inputs
            kernel = {op}.union(*(kernels.get(problem.producer[v], ()) for v in inputs))
            if len(kernel) > 1 and sum(equations[k] for k in kernel) > most:
                found.append([])
                kernels, kernel = {}, {op}
            kernels[op] = kernel
        found[-1].append(op)
    return found
