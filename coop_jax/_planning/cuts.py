"""Plans that hold the cheapest values across one place, by minimum cuts. No JAX.

The place is the one at which most bytes are alive in program order: in a training
step, where the backward pass begins. What is kept across it, and what is computed again
behind it where it is first read, is exact at every price per byte (`seam`); the two
neighbours around the pool are where a search may begin. They know nothing of what is
alive elsewhere, and where that is far too much they are no help.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from .planned import Positions
from .retention import Edit, Retention, movability
from .seam import Choice, SeamCuts, SeamProblem, first_reads, narrowed, with_seam
from .types import OpId, Problem
from .validate import live_bytes

_MOST_CUTS = 8
_EQUAL = 1e-9
_NEAR = 1.3


def cut_plans(problem: Problem, pool: int) -> Iterator[Positions]:
    """What keeps as much as fits a pool across the fullest place, and the next above.

    Only those that come near the pool elsewhere too; none if program order fits.

    Args:
      problem: ops in program order.
      pool: bytes that may be alive at once.
    """
    alive = live_bytes(problem, problem.program_order)
    if max(alive, default=0) <= pool:
        return
    body = _with_seam(problem, int(np.argmax(alive)))
    cuts = SeamCuts(body)
    state = Retention(problem)
    few, _ = _around(cuts, pool)
    if not _run(state, body, few):
        return
    # Somewhere else there is more than at the seam: once more for as much less.
    elsewhere = max(0, state.peak() - few.row)
    for choice in dict.fromkeys(_around(cuts, pool - elsewhere)):
        if _run(state, body, choice) and state.peak() <= _NEAR * pool:
            yield state.snapshot()


def _with_seam(problem: Problem, fullest: OpId) -> SeamProblem:
    """The problem with a seam behind its fullest op."""
    fixed, deadline = movability(problem)
    # That op runs before the seam, and with it all that it needs.
    ops = [
        replace(
            op, is_recomputable=k != fullest and not fixed[k] and deadline[k] > fullest
        )
        for k, op in enumerate(problem.ops)
    ]
    sizes = problem.pool_sizes
    values = [replace(v, size=s) for v, s in zip(problem.values, sizes, strict=True)]
    return with_seam(ops, values, fullest + 1)


def _around(cuts: SeamCuts, row: int) -> tuple[Choice, Choice]:
    """Of the cuts, the one with the most bytes within `row`, and the next."""
    body = cuts.body
    few, many = cuts.at(body.highest_price), cuts.at(body.lowest_price)
    if many.row <= row:
        return many, many
    if few.row <= row:
        closer = narrowed(cuts.at, few, many, row, _EQUAL * body.highest_price)
        *_, (few, many, _, _) = islice(closer, _MOST_CUTS + 1)
    return few, many


def _run(state: Retention, body: SeamProblem, choice: Choice) -> bool:
    """Repeats what was chosen where it is first read; not if it must not run there."""
    state.restore(tuple((k,) for k in range(state.length)))
    places = first_reads(body.problem, body.seam, choice.repeated)
    log: list[Edit] = []
    for op in sorted(choice.repeated):
        # The seam itself is no op of the program.
        place = places[op] - 1
        if not state.may_run(op, place):
            return False
        state.insert(op, place, log)
    state.sweep(sorted(choice.repeated), log)
    return True
