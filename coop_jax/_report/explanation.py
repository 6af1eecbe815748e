"""Says in words what keeps a plan from taking fewer bytes."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .._budget import format_bytes
from .table import shortened
from .timeline import Box, Timeline, after

if TYPE_CHECKING:
    from .._plan import Plan

_LARGEST_AT_PEAK = 8
_WORTH_SAYING = 0.01


def explanation(plan: "Plan", budget: int | None) -> str:
    """Why the plan takes what it takes, and what would bring it lower.

    Args:
      plan: of the step.
      budget: bytes to compare with, if any.
    """
    planned = after(plan)
    lines = [*_headline(plan, budget), *_fixed(plan, planned)]
    if planned.steps:
        lines += [*_peak(plan, planned), *_bound(plan, budget)]
    return "\n".join([*lines, *_advice(plan, planned, budget)])


def _headline(plan: "Plan", budget: int | None) -> Iterator[str]:
    total = plan.measured.total
    if budget is None:
        yield f"The planned step takes {_exact(total)}."
    elif total <= budget:
        yield f"The planned step takes {_exact(total)}, within {_exact(budget)}."
    else:
        yield (
            f"The planned step takes {_exact(total)}: {_exact(total - budget)} more "
            f"than {_exact(budget)}."
        )


def _fixed(plan: "Plan", planned: Timeline) -> Iterator[str]:
    parts = [
        f"{name} {format_bytes(size)}" for name, size in planned.fixed.items() if size
    ]
    yield (
        f"Of it, {_exact(plan.measured.fixed)} are arguments and outputs, which no "
        f"plan can change ({', '.join(parts)})."
    )
    if planned.fragmentation:
        yield f"Packing loses {_exact(planned.fragmentation)} of it (modelled)."


def _peak(plan: "Plan", planned: Timeline) -> Iterator[str]:
    peak = planned.peak
    yield f"Most is alive at step {peak}, {shortened(planned.steps[peak])}:"
    alive = planned.alive(peak)
    for box in alive[:_LARGEST_AT_PEAK]:
        yield f"  {format_bytes(box.size):>10}  {box.name} {box.type}".rstrip()
        yield f"{'':14}{_reason(plan, planned, box, peak)}"
    rest = alive[_LARGEST_AT_PEAK:]
    if rest:
        size = format_bytes(sum(box.size for box in rest))
        yield f"  {size:>10}  in {len(rest)} smaller ones"


def _reason(plan: "Plan", planned: Timeline, box: Box, peak: int) -> str:
    where = shortened(box.source)
    if box.kind == "workspace":
        return f"needed while it runs; {where}"
    if box.start == peak:
        return f"written by this very step; {where}"
    if box.end == peak + 1:
        return f"read by this very step; {where}"
    op = plan.schedule[box.start]
    if not plan.problem.ops[op].is_recomputable:
        return f"cannot be computed again (effects, collectives); {where}"
    reader = shortened(planned.steps[min(box.end, len(planned.steps)) - 1])
    return f"waits until step {box.end - 1}, {reader}; {where}"


def _bound(plan: "Plan", budget: int | None) -> Iterator[str]:
    """The operation that needs most, which no order of operations gets around."""
    problem = plan.problem

    def need(op: int) -> int:
        spec = problem.ops[op]
        inputs = sum(problem.values[v].size for v in spec.inputs)
        outputs = sum(problem.values[v].size for v in spec.outputs)
        # What is computed in place takes no bytes of its own.
        shared = {target: problem.values[target].size for _, target in spec.in_place}
        return inputs + outputs + spec.workspace - sum(shared.values())

    hungriest = max(range(len(problem.ops)), key=need)
    least = problem.fixed + need(hungriest)
    outputs = problem.ops[hungriest].outputs
    name = problem.values[outputs[0]].name if outputs else problem.ops[hungriest].name
    if least > plan.measured.total:
        # The program itself is proof that the model counts too much for it.
        return
    yield (
        f"By the memory model, no order takes less than {_exact(least)}: "
        f"{shortened(name)} alone needs {_exact(need(hungriest))} for what it reads, "
        "writes and works in."
    )
    if budget is not None and budget < least:
        yield "So no plan meets this budget; the step itself has to change."


def _advice(plan: "Plan", planned: Timeline, budget: int | None) -> Iterator[str]:
    yield "What would help:"
    if planned.fixed["outputs"] > _WORTH_SAYING * plan.measured.total:
        yield (
            "  - Donate the state (`donate_argnums`): "
            f"{_exact(planned.fixed['outputs'])} of outputs have bytes of their own."
        )
    wholes = [op for op in plan.problem.ops if op.name in ("scan", "while", "cond")]
    inside = max((op.workspace for op in wholes), default=0)
    is_planned = plan.bodies or plan.loops
    if inside > _WORTH_SAYING * plan.measured.temp and not is_planned:
        yield "  - Apply `jax.checkpoint` to what is differentiated inside the loops."
    if budget is not None and plan.measured.total > budget:
        yield f"  - Raise the budget to {plan.measured.total:,} bytes."
    yield "  - Make the batch smaller, or accumulate gradients over smaller ones."
    yield "  - Keep activations in bfloat16."


def _exact(size: int) -> str:
    return f"{format_bytes(size)} ({size:,} bytes)"
