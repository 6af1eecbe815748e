"""`coop_jax.frontier`: what a step costs over all budgets that it can meet."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from ._budget import BudgetLike, format_bytes, parse_budget
from ._errors import BudgetError
from ._fitting.cache import write_whole
from ._fitting.compile import FlatStep, flat_step
from ._fitting.freeing import let_go
from ._fitting.progress import shown, stage
from ._loops.loop_solve import LoopWorkbench
from ._measure import MemoryUse, measure
from ._plan import Plan
from ._program.cost import program_flops
from ._remat import Rematerialized, remat, trace_step
from ._report.curve import csv_text, draw_curve, knee_of


@dataclass(frozen=True, slots=True)
class Compared:
    """Another way to write the step.

    Attributes:
      name: as given.
      memory: bytes, measured by XLA.
      flops: floating point operations over those of the step as written (counted).

    Example:
      >>> others = {"checkpoint": jax.checkpoint(train_step)}
      >>> curve = coop_jax.frontier(step, state, batch, budgets=[1.0], compare=others)
      >>> curve.compared[0].name
      'checkpoint'
    """

    name: str
    memory: MemoryUse
    flops: float


@dataclass(frozen=True, slots=True)
class Frontier:
    """The cheapest plans found over budgets.

    Attributes:
      plans: largest first; the first is the step as written, even where a plan takes
        no more time in fewer bytes.
      floor: bytes of the smallest program found.
      infeasible: budgets asked for, bytes, that nothing was found for.
      compared: other steps, to compare with.

    Example:
      >>> curve = coop_jax.frontier(step, state, batch, budgets=[1.0, 0.6])
      >>> [plan.is_planned for plan in curve.plans]
      [False, True]
    """

    plans: tuple[Plan, ...]
    floor: int
    infeasible: tuple[int, ...] = ()
    compared: tuple[Compared, ...] = ()

    @property
    def knee(self) -> Plan:
        """The plan beyond which further bytes begin to cost most.

        It is the point farthest below the line between both ends of the curve.
        """
        points = [(plan.measured.total, plan.time) for plan in self.plans]
        return self.plans[knee_of(points)]

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws overhead against bytes.

        Args:
          path: of the file; ends with `.svg`, `.png` or `.pdf`.

        Raises:
          ValueError: another suffix.
          ImportError: matplotlib is not installed.

        Example:
          >>> curve = coop_jax.frontier(step, state, batch, budgets=[1.0, 0.6])
          >>> curve.plot("frontier.png")
        """
        draw_curve(self, path)

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes one row per plan, then one per compared step.

        Args:
          path: of the file. Columns: name, budget, bytes, temporary, fixed (bytes),
            flops and time over those of the step as written, fingerprint.

        Example:
          >>> curve = coop_jax.frontier(step, state, batch, budgets=[1.0, 0.6])
          >>> curve.to_csv("frontier.csv")
        """
        write_whole(Path(path), csv_text(self))

    def __str__(self) -> str:
        knee = self.knee
        rows = ["   bytes (measured)    flops     time (estimated)"]
        for plan in self.plans:
            mark = "  knee" if plan is knee and len(self.plans) > 2 else ""
            rows.append(
                f"{format_bytes(plan.measured.total):>11}  {plan.flops - 1:>+14.2%}  "
                f"{plan.time - 1:>+7.2%}{mark}"
            )
        rows += [
            f"{format_bytes(other.memory.total):>11}  {other.flops - 1:>+14.2%}  "
            f"{other.name}"
            for other in self.compared
        ]
        return "\n".join(rows)


def frontier(
    step: Callable[..., Any],
    *args: Any,
    budgets: Sequence[BudgetLike] | None = None,
    points: int = 8,
    compare: Mapping[str, Callable[..., Any]] | None = None,
    **options: Any,
) -> Frontier:
    """Plans a step for many budgets at once.

    The step as written is compiled once, and what each budget teaches serves the next.
    Programs that another plan beats in bytes and in time are left out.

    Args:
      step: a training step, as for `coop_jax.remat`, or what that returned, whose
        budget is then not looked at.
      *args: its arguments, as arrays or `jax.ShapeDtypeStruct`s.
      budgets: what to plan for; by default `points` budgets at equal distances from
        the bytes of the step as written to the smallest reachable.
      points: number of budgets, if none are given.
      compare: other steps by name, to be measured on the same arguments; for example
        the step with `jax.checkpoint` under some policy.
      **options: for a plain step, what `coop_jax.remat` takes.

    Returns:
      The plans, which print as a table. Each plan can be saved and run with
      `coop_jax.remat(step, plan=plan)`.

    Raises:
      ValueError: fewer than two points.

    Example:
      >>> curve = coop_jax.frontier(
      ...     train_step, state, batch, points=3, donate_argnums=0
      ... )
      >>> print(curve)
      >>> curve.plot("frontier.svg")
    """
    if points < 2:
        raise ValueError(f"a frontier has at least 2 points, not {points}.")
    planned = step if isinstance(step, Rematerialized) else remat(step, **options)
    if planned is step and options:
        raise TypeError(
            f"{', '.join(options)}: the step is planned already; give options there."
        )
    request = planned._request
    with shown(request.progress):
        traced, leaves, asked = planned._trace(args, {})
        flat = flat_step(traced, leaves, request.rules, asked)
        bench = LoopWorkbench(flat, request.policy, request.cost_model, request.inplace)
        if budgets is None:
            sizes: list[int | None] = _between(
                bench, bench.floor(request.effort), points
            )
        else:
            total = bench.unplanned.total
            sizes = [parse_budget(b).resolve(total, None) for b in budgets]
        infeasible = _explore(bench, sizes, request.effort)
    plans = _best(bench, sizes)
    others = [
        _compared(name, other, args, flat) for name, other in (compare or {}).items()
    ]
    return Frontier(plans, plans[-1].measured.total, infeasible, tuple(others))


def _between(bench: LoopWorkbench, floor: Any, points: int) -> list[int | None]:
    top, bottom = bench.unplanned.total, floor.memory.total
    return [top - (top - bottom) * i // (points - 1) for i in range(points)]


def _explore(
    bench: LoopWorkbench, sizes: Sequence[int | None], effort: Any
) -> tuple[int, ...]:
    """Fills the bench with programs for these budgets; returns those out of reach."""
    missed = []
    for i, size in enumerate(sizes, start=1):
        stage("budget %d of %d", i, len(sizes))
        let_go(bench.programs.benches)
        if size is None:
            bench.floor(effort)
            continue
        try:
            bench.fit(size, effort)
        except BudgetError:
            missed.append(size)
    return tuple(missed)


def _best(bench: LoopWorkbench, sizes: Sequence[int | None]) -> tuple[Plan, ...]:
    """The step as written, and per budget the cheapest of all programs compiled."""
    floor = bench.smallest.memory.total
    wanted = [size for size in sizes if size is not None] + [floor] * (None in sizes)
    written, most = bench.baseline, bench.unplanned.total
    chosen = {id(written): (written, most)}
    for size in sorted(wanted, reverse=True):
        best = bench.best(size)
        if best is not None and best.memory.total < most:
            chosen.setdefault(id(best), (best, size))
    found = sorted(chosen.values(), key=lambda item: -item[0].memory.total)
    return tuple(bench.describe(best, size) for best, size in found)


def _compared(
    name: str, step: Callable[..., Any], args: tuple, written: FlatStep
) -> Compared:
    # Bytes depend on donation, so the others donate as the step does.
    donated = written.donated_arguments
    is_jitted = isinstance(step, jax.stages.Wrapped)
    jitted: Any = step if is_jitted else jax.jit(step, donate_argnums=donated)
    other = flat_step(*trace_step(jitted, args, {}, {})[:2])
    flops = program_flops(other.program) / max(program_flops(written.program), 1.0)
    return Compared(name, measure(jitted, *args), flops)
