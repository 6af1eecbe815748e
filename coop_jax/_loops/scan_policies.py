"""No more arithmetic than a policy of `jax.checkpoint` in as many bytes. No JAX.

The cheapest choice is cheapest by modelled time, and a little time by the model can
stand against much arithmetic: what is saved in traffic depends on what XLA fuses, which
the model guesses. So a choice is held against what the usual policies of
`jax.checkpoint` would keep in about as many bytes. If one of them does less arithmetic,
the choice is made again with more weight on arithmetic, until it does no more.
"""

from dataclasses import replace

from .._planning.seam import SeamCuts, SeamProblem
from .._planning.types import Op
from .scan_branch import keep_within
from .scan_plan import Keeping, as_keeping

_WEIGHTS = (1.0, 8.0, 64.0)
"""Of all arithmetic, in units of the modelled time of both bodies."""
_ABOUT = 1.1
"""Of the bytes of a row: what surrounds the scans differs from program to program."""
_EQUAL = 1e-3
"""Share of the arithmetic of both bodies below which two choices do as much."""


def keep_by_rule(body: SeamProblem, row: int) -> Keeping | None:
    """The cheapest choice found that obeys the rule; None if none is within `row`.

    If a policy does less arithmetic in slightly more bytes than there are, and nothing
    found is as good, it is the choice with the least arithmetic.
    """
    best = keep_within(body, row)
    policies = [p for p in policy_keepings(body) if p.row <= _ABOUT * row]
    if best is None or not policies:
        return best
    allowed = min(arithmetic(body, policy) for policy in policies)
    allowed += _EQUAL * sum(body.arithmetic)
    found = [best]
    for weight in _WEIGHTS:
        if arithmetic(body, found[-1]) <= allowed:
            return found[-1]
        weighted = keep_within(_weighted(body, weight), row)
        if weighted:
            found.append(replace(weighted, cost=_cost(body, weighted)))
    found += [policy for policy in policies if policy.row <= row]
    return min(found, key=lambda keeping: (arithmetic(body, keeping), keeping.cost))


def policy_keepings(body: SeamProblem) -> list[Keeping]:
    """What the usual policies keep, and repeat."""
    first = body.problem.ops[: body.seam]
    free = {v for op in first if op.is_recomputable for v in op.outputs}
    cuts = SeamCuts(body)
    chosen = [cuts.at(body.lowest_price, gone=free - kept) for kept in body.policies]
    return [as_keeping(body, choice.repeated) for choice in chosen]


def arithmetic(body: SeamProblem, keeping: Keeping) -> float:
    """Floating point operations of one iteration of both scans."""
    runs = zip(body.arithmetic, keeping.positions, strict=True)
    return sum(count * len(places) for count, places in runs)


def _weighted(body: SeamProblem, weight: float) -> SeamProblem:
    second = weight * body.highest_price / max(sum(body.arithmetic), 1.0)

    def dearer(op: Op, count: float) -> Op:
        return replace(op, cost=op.cost + second * count)

    ops = tuple(map(dearer, body.problem.ops, body.arithmetic))
    return replace(body, problem=replace(body.problem, ops=ops))


def _cost(body: SeamProblem, keeping: Keeping) -> float:
    runs = zip(body.problem.ops, keeping.positions, strict=True)
    return sum(op.cost * len(places) for op, places in runs)
