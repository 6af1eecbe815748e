"""Runs a whole JAX training step within a memory budget that XLA confirms.

    step = coop_jax.remat(train_step, budget="12GiB", donate_argnums=0)
    state, loss = step(state, batch)        # plans once per set of shapes
    plan = step.plan(state, batch)          # the plan alone
    print(plan)                             # bytes before and after, what it costs

remat(step, budget)             the step within its budget: a `Rematerialized`
Plan                            .table() .plot(path) .save(path) .explain() ...
load_plan(path)                 a saved plan, for remat(step, plan=plan)
measure(step, *args)            bytes of any step: a `MemoryUse`
frontier(step, *args)           plans over all budgets: a `Frontier`
largest_batch(make_args, step, budget)   the largest batch that fits
record(step, *args, path=...)   a trace, for `python -m coop_jax.simulate`
BudgetError, PlanError          no such program; a plan that cannot be used
"""

from ._version import __version__ as __version__

# isort: split
from ._batch import LargestBatch as LargestBatch
from ._batch import largest_batch as largest_batch
from ._errors import BudgetError as BudgetError
from ._errors import PlanError as PlanError
from ._frontier import Compared as Compared
from ._frontier import Frontier as Frontier
from ._frontier import frontier as frontier
from ._measure import MemoryUse as MemoryUse
from ._measure import measure as measure
from ._plan import Action as Action
from ._plan import Argument as Argument
from ._plan import BodyPlan as BodyPlan
from ._plan import LoopPlan as LoopPlan
from ._plan import Plan as Plan
from ._plan_file import load_plan as load_plan
from ._record import record as record
from ._remat import Rematerialized as Rematerialized
from ._remat import remat as remat
