"""One simulated run of a trace, measured and checked. Imports no JAX.

The metrics are those of the Coop paper's evaluation (NeurIPS 2023, arXiv 2311.00591).
Every run that ends goes through the independent `validate`: nothing reads a tensor that
is not there, nothing shares bytes, and nothing lies beyond the budget.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from .eviction import Policy
from .online import Failure, run_online
from .types import OpId
from .validate import validate
from .workload import Workload


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a policy made of a budget.

    Attributes:
      policy: its name.
      budget: bytes of the pool.
      share: the budget over the bytes that the program needs without eviction.
      overhead: cost of all that was executed over the cost of executing it once; None
        of a run that failed.
      evictions: tensors evicted to make room.
      eager_frees: tensors freed because nothing needed them.
      rematerializations: calls executed again.
      depth: most calls that waited for each other at once.
      searches: allocations that had to evict.
      search_seconds: processor time of these searches together, freeing included.
      search_p50: median of one, seconds.
      search_p99: 99th percentile of one, seconds.
      chunks_searched: chunks of the pool looked at.
      fragmentation: free share of the pool after an allocation that had to evict, on
        average over them; 0 if there was none.
      peak: most bytes in use.
      peak_pinned: most bytes that calls held on to or waited for.
      failure: None if the program ran to its end.
    """

    policy: str
    budget: int
    share: float
    overhead: float | None
    evictions: int
    eager_frees: int
    rematerializations: int
    depth: int
    searches: int
    search_seconds: float
    search_p50: float
    search_p99: float
    chunks_searched: int
    fragmentation: float
    peak: int
    peak_pinned: int
    failure: Failure | None

    @property
    def is_feasible(self) -> bool:
        return self.failure is None


def simulate(
    work: Workload,
    budget: int,
    policy: Policy,
    steps_per_op: int = 50,
    progress: Callable[[OpId], None] | None = None,
) -> Simulation:
    """Runs a workload within a budget and checks the run.

    Args:
      budget: bytes of the pool, constants included.
      steps_per_op: gives up when the executed calls come to this many times the calls.
      progress: called with the number of each call of the trace that has run.

    Raises:
      InvalidSchedule: the run was not valid, which is a bug of this package.
    """
    problem = work.problem
    run = run_online(problem, budget, policy, steps_per_op, work.lifetimes, progress)
    if run.is_feasible:
        validate(problem, run.schedule, budget, run.offsets)
    once = problem.cost(problem.program_order)
    seconds = sorted(run.search_seconds)
    fragmentation = sum(run.fragmentation) / max(1, len(run.fragmentation))
    return Simulation(
        policy=policy.name,
        budget=budget,
        share=budget / work.needed if work.needed else math.inf,
        overhead=_overhead(run.cost, once) if run.is_feasible else None,
        evictions=run.evictions,
        eager_frees=run.eager_frees,
        rematerializations=run.rematerializations,
        depth=run.depth,
        searches=len(seconds),
        search_seconds=sum(seconds),
        search_p50=_percentile(seconds, 50),
        search_p99=_percentile(seconds, 99),
        chunks_searched=run.chunks_searched,
        fragmentation=fragmentation,
        peak=run.peak,
        peak_pinned=run.peak_pinned,
        failure=run.failure,
    )


def _overhead(cost: float, once: float) -> float:
    return cost / once if once else 1.0


def _percentile(ordered: list[float], percent: int) -> float:
    """The smallest value that this percentage of all does not exceed; 0 of none."""
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
