"""Parts cut where XLA:GPU would make one long kernel of a chain. Imports no JAX.

What is computed again in a row, as the carries of a recurrence between two that were
kept, is one kernel if no barrier is in between. Each such kernel is compiled on its
own, twice, and each is different where chains differ in length: half the temporaries of
a BiLSTM of paper size, on a described H200, had seven of about 370 equations, and
compiled in 1.9 times what the step as written takes, now in 1.2. So a chain that
repeats itself is cut every few times, into kernels that are alike, and any other where
it has too many equations. At a cut what waits for later readers is written either way;
what follows reads it once more.
"""

from collections import Counter
from collections.abc import Hashable, Sequence, Set

from .._planning.types import OpId, Problem, ValueId
from .._program.shelving import small_size

MOST_EQUATIONS = 100
# Of one kind, in kernels of more equations than that.
MOST_ALIKE, MANY_EQUATIONS = 2, 40


def cut_long_kernels(
    problem: Problem,
    part: Sequence[OpId],
    alone: Set[OpId],
    equations: Sequence[int],
    kinds: Sequence[Hashable],
    most: int = MOST_EQUATIONS,
) -> list[list[OpId]]:
    """A part, cut in front of what would make a kernel too long.

    A kernel is taken to hold an op and what it is made of inside the part, up to small
    values and to what comes before an op that is a kernel of its own. It is too long if
    it has more than `most` equations, or many and more than two ops of one kind, of
    several equations each.

    Args:
      problem: what is planned.
      part: ops in the order they run, none of them twice.
      alone: ops that XLA fuses with no other.
      equations: how many each op stands for.
      kinds: what each computes; ops that differ in what they read have one kind.
      most: equations that a kernel of several ops may have.
    """
    small = small_size(problem)
    found: list[list[OpId]] = [[]]
    kernels: dict[OpId, set[OpId]] = {}
    # Kernels of their own that come before an op, one after the other.
    before: dict[OpId, int] = {}

    def makers(op: OpId) -> set[OpId]:
        return {problem.producer[v] for v in problem.ops[op].inputs} & before.keys()

    def fuses(op: OpId) -> bool:
        made = (problem.values[v].size for v in problem.ops[op].outputs)
        return op not in alone and any(size >= small for size in made)

    def is_too_long(kernel: Set[OpId]) -> bool:
        count = sum(equations[op] for op in kernel)
        alike = Counter(kinds[op] for op in kernel if equations[op] > 1)
        repeats = max(alike.values(), default=0) > MOST_ALIKE
        longest = min(most, MANY_EQUATIONS) if repeats else most
        return len(kernel) > 1 and count > longest

    def sources(op: OpId) -> list[set[OpId]]:
        beside = (each for each in makers(op) if before[each] == before[op])
        return [kernels[each] for each in beside if each in kernels]

    for op in part:
        ends = (before[each] + (each in alone) for each in makers(op))
        before[op] = max(ends, default=0)
        if fuses(op):
            kernel = {op}.union(*sources(op))
            if is_too_long(kernel):
                longest = max(sources(op), key=lambda k: sum(equations[op] for op in k))
                along = _leading_to(problem, found[-1], kernel - longest)
                if is_too_long({op, *along}):
                    along = []
                found[-1] = [each for each in found[-1] if each not in along]
                found.append(along)
                kernels = {each: kernels[each].intersection(along) for each in along}
                kernel = {op, *along}
            kernels[op] = kernel
        found[-1].append(op)
    return [piece for piece in found if piece]


def _leading_to(
    problem: Problem, piece: Sequence[OpId], chosen: Set[OpId]
) -> list[OpId]:
    """Those of the chosen ops that can run after the others of a piece.

    Nothing but one another reads them, and nothing overwrites what they read.
    """
    read, found = set[ValueId](), list[OpId]()
    written = {v for op in piece for v in problem.ops[op].outputs}
    overwritten = {problem.values[v].overwrites for v in written}
    for op in reversed(piece):
        spec = problem.ops[op]
        is_free = read.isdisjoint(spec.outputs) and overwritten.isdisjoint(spec.inputs)
        if op in chosen and is_free:
            found.append(op)
        else:
            read.update(spec.inputs)
    return found[::-1]
