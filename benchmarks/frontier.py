"""Memory against recomputation: `coop_jax.remat` beside `jax.checkpoint`, one run.

    python -m benchmarks.frontier --model gpt2 --json gpt2.json
    JAX_PLATFORMS=cpu python -m benchmarks.frontier --backend h200
    python -m benchmarks.frontier --backend gpu --no-error     # on a GPU

For every model: the step as it is; every block under `jax.checkpoint` with each usual
policy; and `coop_jax` at exactly the bytes each policy measured, at shares of the bytes
of the step as it is, with a half and a third of its temporary bytes, and at the
smallest it reaches; with `--sweep 20`, at as many budgets from the first to there.
Budgets of one model share a workbench, so that a later budget profits from the
programs compiled for the earlier ones; `--cold` gives each its own, as a single call of
`coop_jax.remat` has. `--budget dots_saveable` leaves out all other budgets: where two
times are close, many rounds of few programs tell them apart. `--read` judges rows that
earlier runs wrote, together.

Backend h200 is compiled for and not run (see `benchmarks.h200`): bytes, flops, the
traffic of the kernels and the least time they can take (`benchmarks.roofline`) only.
Backend gpu is the first GPU at hand, and has all of these and times.
"""

import argparse
import dataclasses
import functools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.extend.core as jexc

import coop_jax
from coop_jax._fitting.candidate import called_flops
from coop_jax._fitting.compile import FlatStep, flat_step
from coop_jax._fitting.freeing import let_go
from coop_jax._loops.loop_solve import LoopWorkbench
from coop_jax._measure import MemoryUse, memory_use
from coop_jax._planning.planner import Effort
from coop_jax._program.cost import program_flops

from . import float64, frontier_bars, frontier_report, frontier_rows, h200
from .card import require_gpu
from .frontier_rows import (
    CHECKPOINT,
    COOP,
    FLAT,
    HALF_TEMP,
    PLAIN,
    THIRD_TEMP,
    Row,
    is_swept,
    relative,
    sweep_label,
)
from .models import MODELS, POLICIES, SCANNED, TrainingStep, build
from .paired_compiles import paired_compiles
from .paired_times import copies, paired_times
from .roofline import Roofline, roofline
from .words_in_loops import left_out

_SHARES = (0.8, 0.6, 0.5, 0.4, 0.3)


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
      backend: "cpu", "gpu" or "h200".
      shares: budgets as shares of the bytes of the step as it is.
      repeats: rounds of timing; 0 for none.
      compile_repeats: rounds of compiling each plan beside the step as written.
      has_error: whether to compare with the float64 step.
      is_cold: a fresh workbench for every budget.
      has_calls: whether plans have in-place calls, where the native library is.
      sweep: budgets in a sweep from the bytes of the step as it is to the smallest.
      budgets: names of the only budgets to measure, besides a sweep; () for all.
      time_limit: seconds of refinement per plan.
    """

    size: str = "small"
    backend: str = "cpu"
    shares: tuple[float, ...] = _SHARES
    repeats: int = 9
    compile_repeats: int = 1
    has_error: bool = True
    is_cold: bool = False
    sweep: int = 0
    has_calls: bool = False
    budgets: tuple[str, ...] = ()
    time_limit: float = 20.0

    @property
    def runs(self) -> bool:
        """Whether programs are run, not only compiled."""
        return self.backend != "h200" and (self.repeats > 0 or self.has_error)

    def wants(self, budget: str) -> bool:
        """Whether the budget of this name is to be measured."""
        return not self.budgets or budget in self.budgets


@dataclass(eq=False)
class Entry:
    """A row and the program behind it.

    Attributes:
      run: takes the step's own arguments.
      compile_again: compiles a plan from its equations.
    """

    row: Row
    run: Callable | None = field(default=None, repr=False)
    compile_again: Callable[[], Any] | None = field(default=None, repr=False)


def measure(name: str, settings: Settings) -> list[Row]:
    """All rows of one model."""
    model = build(name, settings.size)
    sweep = Sweep(model, settings)
    for policy in filter(settings.wants, POLICIES):
        sweep.add_checkpoint(policy, build(name, settings.size, policy))
    hand = [e.row for e in sweep.entries if e.row.program == CHECKPOINT]
    for row in hand:
        assert row.measured is not None
        sweep.add_coop(row.budget, row.measured)
    unplanned = sweep.unplanned
    most = unplanned.total
    shares = {f"{share:g}": int(share * most) for share in settings.shares}
    parts = {
        HALF_TEMP: unplanned.fixed + unplanned.temp // 2,
        THIRD_TEMP: unplanned.fixed + unplanned.temp // 3,
    }
    for label, budget in (shares | parts).items():
        if settings.wants(label):
            sweep.add_coop(label, budget)
    if settings.wants("min") or settings.sweep:
        least = sweep.add_coop("min", None)
        for budget in _spread(settings.sweep, most, least or most):
            sweep.add_coop(sweep_label(budget / most), budget)
    sweep.compile_again()
    if settings.runs:
        sweep.run()
    return [entry.row for entry in sweep.entries]


def _spread(count: int, most: int, least: int) -> list[int]:
    """Bytes from below the most down to the least, evenly."""
    return [most - (most - least) * i // count for i in range(1, count + 1)]


class Sweep:
    """Compiles the programs of one model, then runs them all.

    Attributes:
      step: the model's step, flat.
      unplanned: what it takes as written.
      entries: rows so far.
    """

    def __init__(self, model: TrainingStep, settings: Settings):
        self.model = model
        self.settings = settings
        self.effort = Effort(time_limit=settings.time_limit)
        self.args: Any = model.abstract_args()
        self.options: dict[str, Any] = {}
        if settings.backend == "h200":
            self.args = h200.on_device(self.args)
            self.options = {"compiler_options": h200.COMPILER_OPTIONS}
        self.entries: list[Entry] = []
        self._finished: list[MemoryUse] = []  # the very objects
        self.step = self._flatten(self._trace(model))
        self._flops, self._least = 1.0, Roofline(1, 1.0)
        self._counted = program_flops(self.step.program)
        self._making_args: Future[Any] | None = None
        if settings.backend == "gpu" and settings.runs:
            # XLA compiles minutes of kernels for the weights of many layers.
            self._making_args = ThreadPoolExecutor(1).submit(model.make_args)
        self.unplanned = self._add_plain()
        self.bench = self._add_flat()

    def _trace(self, model: TrainingStep) -> Any:
        jitted = jax.jit(
            model.step, donate_argnums=model.donate_argnums, **self.options
        )
        return jitted.trace(*self.args)

    def _flatten(self, traced: Any) -> FlatStep:
        step = flat_step(traced, jax.tree.leaves(self.args))
        # Compiler options ride along with the shardings of a partitioned step.
        return dataclasses.replace(step, jit_options=step.jit_options | self.options)

    # Rows

    def _add_plain(self) -> MemoryUse:
        compiled, seconds = _compiled(self.step.traced)
        missed = left_out(self.step.program)
        self._flops = (_xla_flops(compiled) or 1.0) + missed
        self._least = self._roofline(compiled) or self._least
        row = self._row(PLAIN, "", compiled, missed, counted_flops=1.0)
        row = dataclasses.replace(row, compile_seconds=seconds, compiles=1)
        self._add(row, compiled)
        return memory_use(compiled)

    def add_checkpoint(self, policy: str, model: TrainingStep) -> None:
        traced = self._trace(model)
        compiled, seconds = _compiled(traced)
        program = self._flatten(traced).program
        row = self._row(
            CHECKPOINT, policy, compiled, left_out(program),
            counted_flops=program_flops(program) / self._counted,
            compile_seconds=seconds, compiles=1,
        )  # fmt: skip
        self._add(row, compiled)

    def _add_flat(self) -> LoopWorkbench:
        bench = LoopWorkbench(self.step, inplace=self.settings.has_calls)
        start = time.perf_counter()
        compiled = self.step.compile(bench.baseline.function)
        row = self._row(
            FLAT, "", compiled, counted_flops=1.0, estimated_time=1.0,
            plan_seconds=bench.plan_seconds,
            compile_seconds=time.perf_counter() - start, compiles=1,
        )  # fmt: skip
        self._add(row, self._unflattened(compiled))
        return bench

    def add_coop(
        self,
        label: str,
        budget: int | None,
        program: str = COOP,
        bench: LoopWorkbench | None = None,
    ) -> int | None:
        """Adds a row; returns the bytes measured, None if they were not reached.

        Another planner than `coop` comes with a name and a `bench` of its own.
        """
        bench = bench or self.bench
        if not self.settings.runs:
            let_go(bench.programs.benches)
        spent = _Spent(bench)
        if self.settings.is_cold:
            bench = LoopWorkbench(self.step, inplace=self.settings.has_calls)
            spent = _Spent()
        try:
            if budget is None:
                candidate = bench.near_floor(self.effort)
            else:
                candidate = bench.fit(budget, self.effort)
            was_finished = any(candidate.memory is one for one in self._finished)
            before = spent.until(bench)
            candidate = bench.finish(candidate)
            self._finished.append(candidate.memory)
        except coop_jax.BudgetError as error:
            row = Row(
                self.model.name, program, label, budget, floor=error.floor,
                note=str(error).partition("\n")[0], **spent.until(bench),
            )  # fmt: skip
            self._add(row, None)
            return None
        # A program that was let go does not count as compiled for this row.
        columns = before if was_finished else spent.until(bench)
        plan = bench.describe(candidate, budget)
        row = self._row(
            program, label, candidate.compiled,
            called_flops(candidate.profile, candidate.schedule),
            requested=budget,
            predicted=plan.predicted if plan.is_planned else None,
            counted_flops=plan.flops, estimated_time=plan.time, **columns,
        )  # fmt: skip
        self._add(row, self._unflattened(candidate.compiled))
        if not was_finished and not is_swept(row):
            rewritten = bench.programs.bench_of(candidate).step
            anew = functools.partial(_compile_anew, rewritten, candidate.function)
            self.entries[-1].compile_again = anew
        return row.measured

    def _row(
        self,
        program: str,
        budget: str,
        compiled: Any,
        missed: float = 0.0,
        **columns: Any,
    ) -> Row:
        """Measures a program, with the flops in it that XLA's analysis missed."""
        memory = memory_use(compiled)
        # XLA counts one iteration of a loop, and no convolution that cuDNN does.
        on_cpu = self.settings.backend == "cpu"
        is_counted = self.model.name in SCANNED or not on_cpu
        flops = None if is_counted else _xla_flops(compiled)
        least = self._roofline(compiled)
        return Row(
            self.model.name,
            program,
            budget,
            measured=memory.total,
            temp=memory.temp,
            flops=None if flops is None else (flops + missed) / self._flops,
            traffic=least and least.bytes / self._least.bytes,
            roofline=least and least.seconds / self._least.seconds,
            **columns,
        )

    def _roofline(self, compiled: Any) -> Roofline | None:
        """What its kernels take at least, on a GPU."""
        if self.settings.backend == "cpu":
            return None
        return roofline(compiled.as_text())

    def _add(self, row: Row, run: Callable | None) -> None:
        self.entries.append(Entry(row, run if self.settings.runs else None))
        _progress(f"{row.model}: {row.program} {row.budget}: {row.compiles} compiles")

    def _unflattened(self, compiled: Any) -> Callable:
        tree = self.step.traced.out_tree
        return lambda *args: jax.tree.unflatten(tree, compiled(*jax.tree.leaves(args)))

    def compile_again(self) -> None:
        """Compiles every plan beside the step as written.

        The latter counts by the median of all its compiles.
        """
        _progress(f"{self.model.name}: compiling again")
        again = [entry for entry in self.entries if entry.compile_again is not None]
        as_written = jexc.jaxpr_as_fun(self.step.traced.jaxpr)
        compiles = paired_compiles(
            lambda: _compile_anew(self.step, as_written),
            [entry.compile_again for entry in again if entry.compile_again],
            self.settings.compile_repeats,
        )
        for entry, ratio in zip(again, compiles.ratios, strict=False):
            entry.row = dataclasses.replace(entry.row, compile_ratio=ratio)
        plain, flat = self.entries[:2]
        seconds = statistics.median((plain.row.compile_seconds, *compiles.base))
        flat.row = dataclasses.replace(flat.row, compile_seconds=seconds)

    # Running

    def run(self) -> None:
        """Adds step times and errors to the rows that have a program."""
        ready = [entry for entry in self.entries if entry.run is not None]
        programs: list[Any] = [entry.run for entry in ready]
        making = self._making_args
        args = self.model.make_args() if making is None else making.result()
        donated = self.model.donate_argnums
        if self.settings.repeats:
            _progress(f"{self.model.name}: timing {len(programs)} programs")
            times = paired_times(programs, args, donated, self.settings.repeats)
            for entry, seconds in zip(ready, times, strict=True):
                entry.row = dataclasses.replace(entry.row, seconds=seconds)
        if self.settings.has_error:
            _progress(f"{self.model.name}: comparing with float64")
            reference = float64.evaluate(self.model.step, *args)
            outputs = (run(*copies(args, donated)) for run in programs)
            _add_errors(ready, outputs, reference)


class _Spent:
    """What a workbench had spent before a row."""

    def __init__(self, bench: LoopWorkbench | None = None):
        self._plan = bench.plan_seconds if bench else 0.0
        self._compile = bench.compile_seconds if bench else 0.0
        self._compiles = bench.compiles if bench else 0

    def until(self, bench: LoopWorkbench) -> dict[str, Any]:
        return {
            "plan_seconds": bench.plan_seconds - self._plan,
            "compile_seconds": bench.compile_seconds - self._compile,
            "compiles": bench.compiles - self._compiles,
            "is_cold": self._compiles == 0,
        }


def _add_errors(entries: Sequence[Entry], outputs: Any, reference: Any) -> None:
    own = None
    for entry, output in zip(entries, outputs, strict=True):
        try:
            error, note = float64.relative_error(output, reference), ""
        except ValueError as difference:
            error, note = float("inf"), str(difference)
        own = error if own is None else own
        entry.row = dataclasses.replace(
            entry.row, error=relative(error, own), note=note
        )


def _compile_anew(step: FlatStep, function: Callable) -> None:
    """Compiles `function` as if it had not been before, and keeps nothing."""
    step.compile(lambda *values: function(*values))


def _compiled(traced: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    compiled = traced.lower().compile()
    return compiled, time.perf_counter() - start


def _xla_flops(compiled: Any) -> float | None:
    """Operations by XLA's cost analysis, where the backend has one."""
    return (compiled.cost_analysis() or {}).get("flops")


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# Command line


def _shares(text: str) -> tuple[float, ...]:
    shares = tuple(float(part) for part in text.split(",") if part)
    if not all(0 < share <= 1 for share in shares):
        raise argparse.ArgumentTypeError("shares are above 0 and at most 1")
    return shares


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.frontier", description=(__doc__ or "").split("\n")[0]
    )
    option = parser.add_argument
    option("--model", nargs="+", choices=(*MODELS, *SCANNED), default=list(MODELS))
    option("--size", choices=("small", "paper"), default="small")
    option("--backend", choices=("cpu", "gpu", "h200"), default="cpu")
    option("--json", metavar="FILE", help="write the rows here as well")
    option("--shares", type=_shares, default=_SHARES, metavar="0.8,0.6,...")
    option("--budget", nargs="+", default=(), metavar="NAME", help="no other budgets")
    option("--repeats", type=int, default=9, help="rounds of timing")
    option("--compile-repeats", type=int, default=1, help="rounds of compiling again")
    option("--no-time", action="store_true", help="do not time the steps")
    option("--no-error", action="store_true", help="do not compare with float64")
    option("--read", metavar="FILE", nargs="+", help="judge these rows, run nothing")
    option("--sweep", type=int, default=0, metavar="20", help="budgets in a sweep")
    option("--inplace", action="store_true", help="plans have in-place calls")
    option("--cold", action="store_true", help="a fresh workbench per budget")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a table per model and what was reached of each bar."""
    chosen = _parse(arguments)
    if chosen.read:
        rows = [row for path in chosen.read for row in frontier_rows.read(path)]
        print(frontier_bars.summary(rows))
        return
    if chosen.backend == "gpu":
        require_gpu()
    settings = Settings(
        chosen.size, chosen.backend, chosen.shares,
        0 if chosen.no_time else chosen.repeats, chosen.compile_repeats,
        not chosen.no_error, chosen.cold, chosen.sweep, chosen.inplace,
        tuple(chosen.budget),
    )  # fmt: skip
    rows: list[Row] = []
    for name in chosen.model:
        found = measure(name, settings)
        rows += found
        print(f"## {name}, {settings.size}, {settings.backend}\n")
        print(frontier_report.table(found) + "\n")
        print(frontier_report.flops_legend(found) + "\n")
        for row in found:
            if row.note:
                print(f"{row.program} {row.budget}: {row.note}\n")
        sys.stdout.flush()
        if chosen.json:
            frontier_rows.write(chosen.json, rows, **dataclasses.asdict(settings))
    print("## Bars\n")
    print(frontier_bars.summary(rows))


if __name__ == "__main__":
    main()
