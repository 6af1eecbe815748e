"""Stages of parts: the order inside, for plans that are packed badly. Imports no JAX.

Inside a part the order is XLA's, and with it which bytes are free when. Where arrays
are large, it is chance then whether each finds a gap: of a GPT-3's plans for a
described H200 some took one attention matrix more than predicted, 6 % of the
temporaries. In *stages* the order is nearly that of the plan, for which the planner
packed it. A stage begins with each op that XLA computes on its own and has what can be
computed from there on. XLA still fuses what follows a product, and what reads the same
operands; it may no longer compute a product earlier to make one kernel of what is
around it.
"""

from collections.abc import Sequence, Set

from .._planning.types import OpId, Problem, ValueId
from .._program.shelving import small_size


def stages(
    problem: Problem, part: Sequence[OpId], beginning: Set[OpId]
) -> list[list[OpId]]:
    """The stages of a part, in the order they run.

    What is made of nothing large, as a dropout mask, waits for its first reader.

    Args:
      problem: what is planned.
      part: its ops, none of them twice.
      beginning: ops with which a stage begins.
    """
    sources = _sources(problem, part)
    free = _free(problem, sources, beginning)
    of: dict[OpId, int] = {}
    count = 0
    for op in part:
        count += op in beginning
        earliest = max((of[source] for source in sources[op]), default=0)
        of[op] = count if op in beginning else earliest
    latest: dict[OpId, int] = {}
    for op in reversed(part):
        if op in free:
            of[op] = latest.get(op, of[op])
        before = of[op] - (op in beginning)
        for source in sources[op]:
            latest[source] = min(latest.get(source, before), before)
    found: list[list[OpId]] = [[] for _ in range(count + 1)]
    for op in part:
        found[of[op]].append(op)
    return [stage for stage in found if stage]


def _sources(problem: Problem, part: Sequence[OpId]) -> dict[OpId, list[OpId]]:
    """Per op of a part, those before it in the part that make what it reads."""
    made: dict[ValueId, OpId] = {}
    found: dict[OpId, list[OpId]] = {}
    for op in part:
        found[op] = [made[v] for v in problem.ops[op].inputs if v in made]
        made |= dict.fromkeys(problem.ops[op].outputs, op)
    return found


def _free(
    problem: Problem, sources: dict[OpId, list[OpId]], beginning: Set[OpId]
) -> set[OpId]:
    """Ops of a part that read nothing large, but of each other."""
    small = small_size(problem)
    found = set[OpId]()
    for op, made_by in sources.items():
        inside = {v for source in made_by for v in problem.ops[source].outputs}
        outside = set(problem.ops[op].inputs) - inside
        is_small = all(problem.values[v].size < small for v in outside)
        if op not in beginning and is_small and found.issuperset(made_by):
            found.add(op)
    return found
