"""The evaluation of the Coop paper, simulated: eight networks, budgets from 1.0 down.

    python -m benchmarks.paper
    python -m benchmarks.paper --network unet --rows unet.json
    python -m benchmarks.paper --draw unet.json resnet50.json

Every network is traced at the paper's size, two training steps long, with costs at the
rates of an A100 in float32. For every policy the budget falls in steps of 0.025 of what
the network needs without eviction, until two in a row are infeasible; then half a step
below the last feasible one is tried. A run that executes five times the calls of the
trace counts as infeasible too. Every run is checked by the independent validator.

Results: overhead, smallest budget, search latency and fragmentation, as tables and
figures (`benchmarks.paper_report`, `benchmarks.paper_figures`).
"""

import argparse
import dataclasses
import gc
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import coop_jax
from coop_jax._planning.eviction import COOP, POLICIES, Policy
from coop_jax._planning.simulation import Simulation, simulate
from coop_jax._planning.stream import read
from coop_jax._planning.workload import Workload, workload

from . import paper_figures, paper_report
from .models import PAPER, build

A100_FLOAT32 = (1.95e13, 1.5e12, 5e-6)
"""Operations and bytes per second, and seconds per launch."""

FINENESS = 0.025
_MISSES = 2
_STEPS_PER_CALL = 5
_DOCS = Path(__file__).absolute().parent.parent / "docs" / "paper"


@dataclass(frozen=True)
class Row:
    """One simulated run; fields as in `Simulation`, seconds and bytes."""

    network: str
    policy: str
    ratio: float
    is_feasible: bool
    overhead: float | None
    evictions: int
    rematerializations: int
    depth: int
    searches: int
    search_seconds: float
    chunks_searched: int
    fragmentation: float
    reason: str


def load(network: str, size: str) -> Workload:
    """Traces a network; no array is made."""
    model = build(network, size)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        coop_jax.record(
            model.step,
            *model.abstract_args(),
            path=path,
            steps=2,
            rates=A100_FLOAT32,
            donate_argnums=model.donate_argnums,
        )
        return workload(read(path))


def sweep(network: str, work: Workload, policy: Policy, fineness: float) -> list[Row]:
    """Runs of one policy, budgets falling."""
    rows: list[Row] = []

    def run(ratio: float) -> None:
        ratio = round(ratio, 6)
        found = simulate(work, int(ratio * work.needed), policy, _STEPS_PER_CALL)
        rows.append(_row(network, policy, ratio, found))

    for k in range(round(1 / fineness), 0, -1):
        run(k * fineness)
        if not any(row.is_feasible for row in rows[-_MISSES:]) and len(rows) >= _MISSES:
            break
    feasible = [row.ratio for row in rows if row.is_feasible]
    if feasible:
        run(min(feasible) - fineness / 2)
    return rows


def _row(network: str, policy: Policy, ratio: float, found: Simulation) -> Row:
    same = {
        field.name: getattr(found, field.name)
        for field in dataclasses.fields(Row)
        if hasattr(found, field.name)
    }
    reason = found.failure.reason if found.failure else ""
    return Row(**same | {"network": network, "ratio": ratio, "reason": reason})


def measure(
    network: str, size: str, fineness: float, policies: Sequence[Policy] = POLICIES
) -> Iterator[list[Row]]:
    """Yields the rows of one network, policy by policy."""
    work = load(network, size)
    # What is alive now is alive to the end: no need to walk it again and again.
    gc.freeze()
    # The first searches of a process pay for what NumPy loads late.
    simulate(work, work.needed // 2, COOP, _STEPS_PER_CALL)
    for policy in policies:
        start = time.perf_counter()
        found = sweep(network, work, policy, fineness)
        feasible = [row.ratio for row in found if row.is_feasible]
        print(
            f"{network}, {policy.name}: {len(found)} budgets, smallest "
            f"{min(feasible, default=float('nan')):.2f}, "
            f"{time.perf_counter() - start:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        yield found


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper", description=(__doc__ or "").split("\n")[0]
    )
    option = parser.add_argument
    option("--network", nargs="+", choices=PAPER, default=list(PAPER))
    names = [policy.name for policy in POLICIES]
    option("--policy", nargs="+", choices=names, default=names)
    option("--size", choices=("paper", "small"), default="paper")
    option("--fineness", type=float, default=FINENESS, help="step between budgets")
    option("--rows", type=Path, help="write the rows here, as JSON, and draw nothing")
    option(
        "--draw",
        type=Path,
        nargs="+",
        default=(),
        help="files of rows, in place of running",
    )
    option("--folder", type=Path, default=_DOCS, help="for tables and figures")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Sweeps, and writes tables and figures."""
    chosen = _parse(arguments)
    rows: list[Row] = []
    for path in chosen.draw:
        rows += [Row(**row) for row in json.loads(path.read_text())]
    policies = [policy for policy in POLICIES if policy.name in chosen.policy]
    for network in () if chosen.draw else chosen.network:
        for found in measure(network, chosen.size, chosen.fineness, policies):
            rows += found
            if chosen.rows:
                text = json.dumps([dataclasses.asdict(row) for row in rows])
                chosen.rows.write_text(text, encoding="utf-8")
    if chosen.rows:
        return
    chosen.folder.mkdir(parents=True, exist_ok=True)
    tables = paper_report.tables(rows)
    (chosen.folder / "tables.md").write_text(tables, encoding="utf-8")
    paper_figures.draw(rows, chosen.folder)
    print(tables)


if __name__ == "__main__":
    main()
