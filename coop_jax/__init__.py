"""Runs a whole JAX training step within a memory budget that XLA confirms.

step = coop_jax.remat(train_step, budget="12GiB", donate_argnums=0)
state, loss = step(state, batch)
print(step.plan(state, batch))
"""

from ._errors import BudgetError as BudgetError
from ._errors import PlanError as PlanError
from ._measure import MemoryUse as MemoryUse
from ._measure import measure as measure
from ._plan import Plan as Plan
from ._plan_file import load_plan as load_plan
from ._remat import Rematerialized as Rematerialized
from ._remat import remat as remat
from ._version import __version__ as __version__
