"""Runs a step by a plan that was made before: no search, no unplanned compilation.

What XLA assigned to the unplanned step is in the plan (`Plan.baseline`), so the step is
only traced, grouped into the same operations, emitted in the planned order, compiled
once and measured.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .._errors import PlanError
from .._loops.body_plans import with_bodies
from .._loops.loop_sites import rewritten
from .._measure import memory_use
from .._native.inplace import why_unavailable
from .._plan import Plan
from .._planning.types import Problem
from .._program.origin import differences, origin_of
from .._program.profile import profile, without_watershed
from .._program.scopes import scope
from .compile import FlatStep
from .emit import emit


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """A step, the program that takes its place, and the report on it.

    Attributes:
      function: flat arguments -> flat outputs.
      compiled: `function`, compiled for the step's arguments.
    """

    step: FlatStep
    function: Callable[..., list[Any]]
    compiled: Any
    plan: Plan


def restore(step: FlatStep, plan: Plan) -> Fitted:
    """Compiles a step by a saved plan.

    Raises:
      PlanError: the plan was made for something else, or XLA now needs more bytes than
        the plan was allowed.
    """
    if plan.origin is None:
        raise PlanError("this plan cannot be run", ["It does not say what it is for."])
    reasons = differences(plan.origin, origin_of(step))
    if reasons:
        raise PlanError("this plan cannot be used for this step", reasons)
    function = _function(step, plan)
    compiled = step.compile(function)
    measured = memory_use(compiled)
    allowed = max(plan.measured.total, plan.budget or 0)
    if measured.total > allowed:
        raise PlanError(
            "this plan no longer fits",
            [
                f"XLA gives the planned step {measured.total:,} bytes here; the plan "
                f"allows {allowed:,}."
            ],
        )
    return Fitted(step, function, compiled, plan)


def _function(step: FlatStep, plan: Plan) -> Callable[..., list[Any]]:
    program = rewritten(step.program, plan.loops, step.platform)
    program = with_bodies(program, plan.bodies, step.platform)
    if not plan.positions:
        return lambda *values: program.evaluate(values, scope)
    if plan.has_calls and (reason := why_unavailable(step.platform)) is not None:
        raise PlanError(
            "this plan cannot be used here: it has in-place calls", [reason]
        )
    found = profile(
        program,
        plan.baseline,
        plan.unplanned.fixed,
        step.platform,
        inplace=plan.has_calls,
    )
    if _shape(found.problem) != _shape(plan.problem):
        raise PlanError(
            "this plan cannot be used for this step",
            ["Its operations are not those that the step is grouped into here."],
        )
    if not plan.problem.has_watershed:
        found = without_watershed(found)
    return emit(found, plan.positions, plan.in_stages)


def _shape(problem: Problem) -> Any:
    """What positions refer to: operations, what connects them, and sizes."""
    return (
        [(op.name, op.inputs, op.outputs) for op in problem.ops],
        [value.size for value in problem.values],
    )
