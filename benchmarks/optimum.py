"""How far from the proven optimum plans are, and plans for graphs from a file.

    JAX_PLATFORMS=cpu python -m benchmarks.optimum
    python -m benchmarks.optimum GRAPH.json --cost time --size memory --budget 0.8 0.5

Without a file: random nets with gradients and cut-down benchmark models, each planned
at shares of the live-byte peak of its program order, beside a bound that is proven
(`benchmarks.optimum_solver`). The bound holds for all schedules of the class that
`benchmarks.retention_model` states: those whose ops on one longest path run for the
first time where the plan first runs them, as far as the plan runs them in place. Values
of less than 1/512 of the pool are taken for nothing, in the bound alone. The gap is the
plan's total cost over the bound; where no optimum was found in time, the true gap is
smaller than that.

With a file: a plain computation graph in networkx's node-link JSON is planned at shares
of the peak of its topological order. No step, no XLA; `--prove` adds the bound.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from coop_jax._planning.planner import Effort, plan
from coop_jax._planning.types import Problem
from coop_jax._planning.validate import live_bytes, validate

from . import node_link
from .optimum_solver import prove
from .retention_model import spine

_SHARES = (0.8, 0.6, 0.5, 0.4)
_FORWARD_OPS = (20, 35, 50, 70, 90)
_SEEDS = (0, 1)
_NEGLIGIBLE = 1 / 512


@dataclass(frozen=True, slots=True)
class Row:
    """One problem at one budget. Costs are over that of the program order.

    Attributes:
      problem: its name.
      ops: how many it has.
      share: bytes allowed over the peak of the program order.
      peak: most bytes alive in the plan over the same, or None if none fits.
      cost: of the plan, or None if none fits.
      plan_seconds: planning took.
      bound: no schedule costs less; infinite if none fits; None if not asked for.
      best: cost of the cheapest schedule known, or None.
      proof_seconds: the bound took.
    """

    problem: str
    ops: int
    share: float
    peak: float | None
    cost: float | None
    plan_seconds: float
    bound: float | None = None
    best: float | None = None
    proof_seconds: float = 0.0

    @property
    def gap(self) -> float | None:
        """At most this much is the plan dearer than the optimum, of the total cost."""
        if self.cost is None or self.bound is None:
            return None
        return max(0.0, self.cost / self.bound - 1)


def measure(
    name: str,
    problem: Problem,
    share: float,
    time_limit: float | None,
    effort: Effort | None = None,
) -> Row:
    """Plans `problem` at `share` of its peak; proves a bound if there is a limit."""
    order = problem.program_order
    peak = max(live_bytes(problem, order), default=0)
    unplanned = problem.cost(order) or 1.0
    pool = int(peak * share)
    start = time.perf_counter()
    planned = plan(problem, pool, effort)
    seconds = time.perf_counter() - start
    validate(problem, planned.schedule)
    row = Row(
        name,
        len(problem.ops),
        share,
        planned.peak / max(peak, 1) if planned.fits else None,
        planned.cost / unplanned if planned.fits else None,
        seconds,
    )
    if time_limit is None:
        return row
    cutoff = planned.cost if planned.fits else math.inf
    stays = spine(problem)
    if planned.fits:
        stays = [k for k in stays if planned.positions[k][0] == k]
    proof = prove(problem, pool, cutoff, time_limit, stays, _NEGLIGIBLE)
    best = min(proof.cost, cutoff) / unplanned
    return dataclasses.replace(
        row,
        bound=proof.bound / unplanned,
        best=None if math.isinf(best) else best,
        proof_seconds=proof.seconds,
    )


def gap_problems() -> Iterable[tuple[str, Callable[[], Problem]]]:
    """Names of the problems of the gap table, each with what makes it."""
    from . import optimum_problems

    for forward in _FORWARD_OPS:
        for seed in _SEEDS:
            name = f"random net {seed}, {forward} forward"
            yield name, lambda f=forward, s=seed: optimum_problems.layered(s, f)
    for name in optimum_problems.CUT_DOWN:
        yield name, lambda n=name: optimum_problems.cut_down(n)


# Tables


_HEADINGS = (
    "problem", "ops", "share", "peak", "cost", "bound", "best", "gap", "plan s",
    "proof s",
)  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """The rows as a markdown table."""
    lines = ["| " + " | ".join(_HEADINGS) + " |", "|---|" + "--:|" * 9]
    for row in rows:
        cells = (
            row.problem, str(row.ops), f"{row.share:g}", _number(row.peak, ".3f"),
            _number(row.cost, ".4f"), _number(row.bound, ".4f"),
            _number(row.best, ".4f"), _number(row.gap, ".2%"),
            f"{row.plan_seconds:.2f}", f"{row.proof_seconds:.0f}",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary(rows: Sequence[Row]) -> str:
    """Median and worst gap, and what it does not cover."""
    gaps = [row.gap for row in rows if row.gap is not None]
    missed = [r for r in rows if r.cost is None and r.bound != math.inf]
    impossible = [r for r in rows if r.bound == math.inf]
    lines = []
    if gaps:
        worst = max((r for r in rows if r.gap is not None), key=lambda r: r.gap or 0.0)
        lines.append(
            f"gap: median {statistics.median(gaps):.2%}, worst {worst.gap:.2%} "
            f"({worst.problem} at {worst.share:g}); {len(gaps)} plans"
        )
    lines.append(f"nothing fits, proven: {len(impossible)}")
    lines.append(
        f"no plan found, and not proven that there is none: {len(missed)}"
        + "".join(f"; {r.problem} at {r.share:g}" for r in missed)
    )
    return "\n".join(lines)


def _number(value: float | None, form: str) -> str:
    if value is None:
        return "-"
    return "none fits" if math.isinf(value) else format(value, form)


# Command line


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.optimum", description=(__doc__ or "").split("\n")[0]
    )
    option = parser.add_argument
    option("graph", nargs="?", metavar="GRAPH.json", help="node-link JSON to plan")
    option("--cost", default="cost", help="node attribute with the cost")
    option("--size", default="size", help="node attribute with the size")
    option("--budget", type=float, nargs="+", default=_SHARES, help="shares of peak")
    option("--time-limit", type=float, default=120.0, help="seconds per proof")
    option("--prove", action="store_true", help="bound the cost of a graph's plans")
    option("--only", default="", help="problems whose name has this in it")
    option("--json", metavar="FILE", help="write the rows here as well")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a table and, where bounds were proven, what they say."""
    chosen = _parse(arguments)
    limit: float | None = chosen.time_limit
    if chosen.graph:
        graph = node_link.read(chosen.graph, chosen.cost, chosen.size)
        problems = [(pathlib.Path(chosen.graph).stem, lambda: graph)]
        limit = limit if chosen.prove else None
    else:
        problems = [(n, make) for n, make in gap_problems() if chosen.only in n]
    rows = []
    for name, make in problems:
        problem = make()
        for share in chosen.budget:
            rows.append(measure(name, problem, share, limit))
            print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
        if chosen.json:
            content = json.dumps([dataclasses.asdict(row) for row in rows], indent=1)
            pathlib.Path(chosen.json).write_text(content + "\n")
    print(table(rows))
    if limit is not None:
        print("\n" + summary(rows))


if __name__ == "__main__":
    main()
