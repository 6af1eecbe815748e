"""Gets a planned program for one step: from a plan given, from the cache, or anew."""

import contextlib
import hashlib
import json
import os
from dataclasses import asdict, dataclass

import jax

from .._budget import Budget
from .._errors import PlanError
from .._loops.loop_solve import LoopWorkbench
from .._native.inplace import InPlace, is_available, why_unavailable
from .._plan import Plan
from .._plan_file import from_text, to_text
from .._planning.planner import Effort
from .._program.origin import origin_of
from .._program.rules import NO_RULES, Rules
from .agreement import agree, speakers
from .cache import Cache
from .candidate import Candidate
from .compile import FlatStep
from .progress import logger, shown, stage
from .saved import Fitted, restore

_FOLDER = "coop_jax"
_MOST_FINISHED = 3


@dataclass(frozen=True, slots=True)
class Request:
    """How a step is to be planned.

    Attributes:
      budget: as the user wrote it.
      policy: name of the planner.
      cost_model: name of the cost model.
      effort: of the search.
      inplace: whether plans have in-place calls: True, False, or "auto".
      rules: the user's, on what may be computed again.
      plan: one made before, which is used as it is.
      cache: where plans are looked up and stored, if anywhere.
      progress: whether a terminal shows what planning is doing.
    """

    budget: Budget
    policy: str
    cost_model: str
    effort: Effort
    inplace: InPlace = "auto"
    rules: Rules = NO_RULES
    plan: Plan | None = None
    cache: Cache | None = None
    progress: bool = True


def fit(step: FlatStep, request: Request, device_limit: int | None) -> Fitted:
    """The program that takes the step's place.

    Raises:
      BudgetError: no program within the budget was found.
      PlanError: `request.plan` was made for something else, or the processes that run
        the step together do not have the same plan.
    """
    devices = speakers(step)
    if not devices:
        return _fit(step, request, device_limit)
    program = origin_of(step).program
    try:
        fitted = _fit(step, request, device_limit)
    except Exception:
        # The others must not wait for a plan that never comes.
        with contextlib.suppress(PlanError):
            agree(None, program, devices)
        raise
    agree(fitted.plan.fingerprint, program, devices)
    return fitted


def _fit(step: FlatStep, request: Request, device_limit: int | None) -> Fitted:
    with shown(request.progress):
        if request.plan is not None:
            stage("compiling the step by its saved plan")
            return restore(step, request.plan)
        key = _key(step, request, device_limit)
        return _from_cache(step, request, key) or _planned(
            step, request, device_limit, key
        )


def cache_at(directory: str | os.PathLike[str] | None) -> Cache | None:
    """The cache in a directory; for None, inside JAX's compilation cache if any."""
    if directory is not None:
        return Cache(directory)
    compiled = jax.config.jax_compilation_cache_dir
    # JAX also takes addresses of remote stores, which are no directories.
    if not compiled or "://" in compiled or not jax.config.jax_enable_compilation_cache:
        return None
    return Cache(os.path.join(compiled, _FOLDER))


def _planned(
    step: FlatStep, request: Request, device_limit: int | None, key: str
) -> Fitted:
    if request.inplace is True and (reason := why_unavailable(step.platform)):
        raise RuntimeError(f"`inplace=True` needs the native library: {reason}.")
    if request.cost_model == "measured" and step.program.mapped is not None:
        raise ValueError(
            '`cost_model="measured"` times operations on one device, and this step is '
            'inside `jax.shard_map`. Use `"roofline"`.'
        )
    bench = LoopWorkbench(step, request.policy, request.cost_model, request.inplace)
    budget = request.budget.resolve(bench.unplanned.total, device_limit)
    candidate = _reached(bench, budget, request.effort)
    plan = bench.describe(candidate, budget)
    if request.cache is not None:
        request.cache.put(key, to_text(plan))
    return Fitted(step, candidate.function, candidate.compiled, plan)


def _reached(bench: LoopWorkbench, budget: int | None, effort: Effort) -> Candidate:
    """The program to run, measured as it is run."""
    for _ in range(_MOST_FINISHED):
        if budget is None:
            return bench.finish(bench.near_floor(effort))
        candidate = bench.finish(bench.fit(budget, effort))
        if candidate.memory.total <= budget:
            return candidate
    raise bench.infeasible(budget or 0, effort)


def _from_cache(step: FlatStep, request: Request, key: str) -> Fitted | None:
    """The step by the plan stored for it; None if there is none that works."""
    text = request.cache.get(key) if request.cache is not None else None
    if request.cache is None or text is None:
        return None
    try:
        plan = from_text(text, str(request.cache.path(key)))
        stage("compiling the step by its plan from the cache")
        return restore(step, plan)
    except PlanError as error:
        logger.warning("plan cache: planning again. %s", error)
        return None


def _key(step: FlatStep, request: Request, device_limit: int | None) -> str:
    """Digest of all that decides the plan."""
    asked = {
        "origin": asdict(origin_of(step)),
        "budget": asdict(request.budget),
        "limit": device_limit if request.budget.kind == "device" else None,
        "policy": request.policy,
        "cost_model": request.cost_model,
        "effort": asdict(request.effort),
        "inplace": request.inplace,
        "rules": request.rules.key(step.traced.jaxpr),
        "has_calls": request.inplace is not False and is_available(step.platform),
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:32]
