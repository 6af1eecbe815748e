"""The online policies for real: bytes by XLA and step times, on the small networks.

    JAX_PLATFORMS=cpu python -m benchmarks.policies --json policies.json

Every network is compiled once as written. Then each policy gets the same budget: the
arguments and outputs, and a share of the temporaries of the step as written. Where a
policy does not reach it, the row shows the smallest program it did reach. All programs
of a network are timed together, in interleaved rounds.
"""

import argparse
import copy
import dataclasses
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

import coop_jax
from coop_jax._fitting.compile import flat_step
from coop_jax._fitting.solve import Candidate, Workbench
from coop_jax._planning.planner import Effort
from coop_jax._planning.policies import PLANNERS

from .models import PAPER, build
from .paired_times import paired_times

_SHARE = 0.6


@dataclass(frozen=True)
class Row:
    """One program.

    Attributes:
      policy: "as written" or the planner's name.
      budget: bytes asked for, or None of the step as written.
      measured: bytes by XLA, arguments and outputs included.
      temp: bytes of its temporaries.
      is_within: whether it measures at most the budget.
      flops: counted, over those of the step as written.
      time: median of the paired ratios of step times to the step as written.
    """

    network: str
    policy: str
    budget: int | None
    measured: int
    temp: int
    is_within: bool
    flops: float
    time: float


def measure(network: str, share: float, repeats: int) -> list[Row]:
    """All rows of one network."""
    model = build(network)
    jitted: Any = jax.jit(model.step, donate_argnums=model.donate_argnums)
    args = model.abstract_args()
    traced = jitted.trace(*args)
    bench = Workbench(flat_step(traced, jax.tree.leaves(args)))
    budget = bench.unplanned.fixed + int(share * bench.unplanned.temp)
    entries: list[tuple[str, Workbench, Candidate]] = [
        ("as written", bench, bench.finish(bench.baseline))
    ]
    for policy in PLANNERS:
        own = _with_policy(bench, policy)
        entries.append((policy, own, _reached(own, budget)))
        found = entries[-1][2].memory.total
        _progress(f"{network}, {policy}: {found:,} bytes of {budget:,}")
    programs = [_unflattened(traced, c.compiled) for _, _, c in entries]
    times = paired_times(programs, model.make_args(), model.donate_argnums, repeats)
    return [
        Row(
            network,
            policy,
            None if i == 0 else budget,
            candidate.memory.total,
            candidate.memory.temp,
            candidate.memory.total <= budget,
            own.describe(candidate, budget).flops,
            statistics.median(a / b for a, b in zip(times[i], times[0], strict=True)),
        )
        for i, (policy, own, candidate) in enumerate(entries)
    ]


def _with_policy(bench: Workbench, policy: str) -> Workbench:
    """An unused workbench for another policy, on the same compiled step."""
    other = copy.copy(bench)
    other.policy, other.planner, other.candidates = policy, PLANNERS[policy], []
    return other


def _reached(bench: Workbench, budget: int) -> Candidate:
    effort = Effort()
    try:
        candidate = bench.fit(budget, effort)
    except coop_jax.BudgetError:
        candidate = bench.floor(effort)
    return bench.finish(candidate)


def _unflattened(traced: Any, compiled: Any) -> Callable:
    def run(*args: Any) -> Any:
        return jax.tree.unflatten(traced.out_tree, compiled(*jax.tree.leaves(args)))

    return run


def table(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table, one line a network and policy."""
    lines = [
        "| network | policy | asked MB | measured MB | temp MB | flops | time |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        asked = "-" if row.budget is None else f"{row.budget / 1e6:.1f}"
        missed = "" if row.budget is None or row.is_within else " (missed)"
        lines.append(
            f"| {row.network} | {row.policy} | {asked} | "
            f"{row.measured / 1e6:.1f}{missed} | {row.temp / 1e6:.1f} | "
            f"{row.flops:.3f} | {row.time:.2f} |"
        )
    return "\n".join(lines)


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.policies",
        description=(__doc__ or "").split("\n")[0],
    )
    option = parser.add_argument
    option("--network", nargs="+", choices=PAPER, default=list(PAPER))
    option("--share", type=float, default=_SHARE, help="of the temporaries")
    option("--repeats", type=int, default=9, help="rounds of timing")
    option("--json", type=Path, metavar="FILE", help="write the rows here as well")
    chosen = parser.parse_args(arguments)
    rows: list[Row] = []
    for network in chosen.network:
        rows += measure(network, chosen.share, chosen.repeats)
        if chosen.json:
            text = json.dumps([dataclasses.asdict(row) for row in rows], indent=1)
            chosen.json.write_text(text + "\n", encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
