"""Until when each value may be computed again. No JAX.

A value may depend on an argument that is overwritten or given back later on (OneFlow
then reads the new bytes), or on the result of an op that runs once. Whoever executes
the program has to bring such a value back by then, and to keep it: so no recomputation
reads a parameter after its update.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ._types import OpId, Problem, ValueId


@dataclass(frozen=True, slots=True)
class Deadlines:
    """What can be evicted until when.

    Attributes:
      stays_after: per value, the last turn in which it may be computed again, and so be
        evicted; -1 for arguments and outputs.
      due: per turn, the values that are needed beyond it although it is their last.
    """

    stays_after: list[OpId]
    due: dict[OpId, list[ValueId]]


def deadlines(problem: Problem, held: Mapping[ValueId, OpId]) -> Deadlines:
    """Finds the deadlines of all values.

    Args:
      held: turns to the end of which values are kept, beyond their last use.
    """
    ops, values, end = problem.ops, problem.values, len(problem.ops)
    last_use = {v: k for k, op in enumerate(ops) for v in op.inputs}
    last_use |= {v: end for v, value in enumerate(values) if value.is_output}
    writers = {
        k
        for k, op in enumerate(ops)
        for v in op.outputs
        if values[v].overwrites is not None
    }
    # What an op needs can be had, computed again or not, until this turn.
    until = [end] * len(values)
    for k in writers:
        for v in ops[k].outputs:
            overwritten = values[v].overwrites
            if overwritten is not None:
                until[overwritten] = k
    for v, value in enumerate(values):
        if value.is_argument and value.size > 0 and not value.is_output:
            until[v] = min(until[v], max(last_use.get(v, 0), held.get(v, 0)))
    deadline = [end] * len(values)
    due: dict[OpId, list[ValueId]] = {}
    for k, op in enumerate(ops):
        is_once = not op.is_recomputable or k in writers
        last = k if is_once else min((until[v] for v in op.inputs), default=end)
        for v in op.outputs:
            deadline[v], until[v] = last, max(last, last_use.get(v, k))
            if k < last < until[v] and values[v].size > 0:
                due.setdefault(last, []).append(v)
    for v, value in enumerate(values):
        if value.is_argument or value.is_output:
            deadline[v] = -1
    return Deadlines(deadline, due)
