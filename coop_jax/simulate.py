"""Simulates a trace under a memory budget: `python -m coop_jax.simulate TRACE`.

    python -m coop_jax.simulate step.jsonl --policy coop-online --budget 0.5
    python -m coop_jax.simulate step.jsonl --policy dtr --budget 2GiB --json

`coop_jax.record` writes traces of JAX training steps; `docs/trace-format.md` tells how
to write others. A float as the budget is a share of the bytes that the program needs
without eviction.
"""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from ._budget import format_bytes, parse_budget
from ._planning.eviction import COOP, DTE, DTR, Policy
from ._planning.simulation import Simulation, simulate
from ._planning.stream import Event, TraceError, read
from ._planning.workload import Workload, workload

POLICIES = {"coop-online": COOP, "dtr": DTR, "dte": DTE}
_QUIET = 2.0
"""Seconds before the first word on progress, and between two."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status: 0, or 2 if it cannot run."""
    chosen = _parser().parse_args(arguments)
    if chosen.steps_per_call < 1:
        return _refused(f"--steps-per-call {chosen.steps_per_call}: at least 1.")
    out = chosen.out
    if out and (out.is_dir() or not out.absolute().parent.is_dir()):
        return _refused(f"--out {out}: not a file in a directory that is there.")
    try:
        policy = _policy(chosen)
        budget = _budget(chosen.budget)
        work = workload(_told(read(chosen.trace)), chosen.partition)
        found = simulate(
            work,
            budget if isinstance(budget, int) else int(budget * work.needed),
            policy,
            chosen.steps_per_call,
            _teller(f"{chosen.trace}: {policy.name}", len(work.problem.ops)),
        )
    except (OSError, TraceError) as error:
        return _refused(f"{chosen.trace}: {error}")
    except ValueError as error:
        return _refused(str(error))
    record = _record(chosen.trace, work, found)
    print(json.dumps(record, indent=2) if chosen.json else _table(work, found))
    if chosen.out:
        chosen.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m coop_jax.simulate",
        description=(__doc__ or "").split("\n")[0],
    )
    option = parser.add_argument
    option("trace", metavar="TRACE", help="a file of JSON lines")
    option("--policy", choices=POLICIES, default="coop-online")
    option("--budget", default="1.0", help="bytes, 2GiB, or a share such as 0.5")
    option("--no-partition", action="store_true", help="cheap beside expensive")
    option("--copy-on-write", action="store_true", help="nothing is done in place")
    option("--no-window", action="store_true", help="evict one at a time, as DTE does")
    option(
        "--partition",
        choices=("density", "operators"),
        default="density",
        help="what is expensive: seconds per byte, or the published list of operators",
    )
    option(
        "--steps-per-call",
        type=int,
        default=50,
        metavar="N",
        help="give up when N times the calls of the trace have been executed",
    )
    option("--json", action="store_true", help="print JSON instead of a table")
    option("--out", type=Path, metavar="FILE", help="write the JSON here as well")
    return parser


def _policy(chosen: argparse.Namespace) -> Policy:
    """The policy with what the options take away."""
    policy, name = POLICIES[chosen.policy], chosen.policy
    if chosen.no_partition:
        policy = dataclasses.replace(policy, is_partitioned=False)
        name += ", no partition"
    if chosen.copy_on_write:
        policy = dataclasses.replace(policy, is_in_place=False)
        name += ", copy on write"
    if chosen.no_window:
        # Of the others none has a window.
        if policy.is_windowed:
            policy = dataclasses.replace(
                policy, is_windowed=False, size_term="size and free"
            )
        name += ", no window"
    return dataclasses.replace(policy, name=name)


def _budget(text: str) -> int | float:
    """Bytes, or a share of what the program needs."""
    try:
        given: int | float | str = float(text) if "." in text else int(text)
    except ValueError:
        given = text
    budget = parse_budget(given)
    if budget.kind == "bytes":
        return budget.size
    if budget.kind == "share":
        return budget.share
    raise ValueError(f"--budget {text}: a simulation needs bytes or a share.")


def _refused(why: str) -> int:
    print(f"error: {why}", file=sys.stderr)
    return 2


# Progress


def _told(events: Iterable[tuple[int, Event]]) -> Iterator[tuple[int, Event]]:
    told = time.monotonic()
    for line, event in events:
        yield line, event
        if line % 4096 == 0 and time.monotonic() - told > _QUIET:
            told = time.monotonic()
            print(f"read {line:,} lines", file=sys.stderr, flush=True)


def _teller(what: str, count: int) -> Callable[[int], None]:
    """Says on standard error how far a run is, now and then."""
    started = told = time.monotonic()

    def tell(op: int) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told > _QUIET:
            told = now
            done = f"{op + 1:,} of {count:,} calls ({(op + 1) / count:.0%})"
            print(f"{what}: {done}, {now - started:.0f} s", file=sys.stderr, flush=True)

    return tell


# Results


def _record(trace: str, work: Workload, found: Simulation) -> dict:
    return {
        "trace": trace,
        "calls": len(work.problem.ops),
        "needed": work.needed,
        "feasible": found.is_feasible,
    } | dataclasses.asdict(found)


def _table(work: Workload, found: Simulation) -> str:
    """Two columns: what, and how much."""
    share = f"{found.share:.3f} of {format_bytes(work.needed)}"
    search = f"{found.search_seconds:.3f} s, p50 {found.search_p50 * 1e6:.0f} us"
    rows = [
        ("policy", found.policy),
        ("budget", f"{format_bytes(found.budget)} ({share})"),
        ("calls", f"{len(work.problem.ops):,}"),
        ("feasible", "yes" if found.is_feasible else f"no: {_why(work, found)}"),
        ("overhead", "-" if found.overhead is None else f"{found.overhead:.4f}"),
        ("evictions", f"{found.evictions:,} ({found.eager_frees:,} freed eagerly)"),
        ("rematerializations", f"{found.rematerializations:,}, depth {found.depth}"),
        ("search", f"{search}, p99 {found.search_p99 * 1e6:.0f} us"),
        ("searches", f"{found.searches:,} over {found.chunks_searched:,} chunks"),
        ("fragmentation", f"{found.fragmentation:.4f}"),
        ("peak", format_bytes(found.peak)),
        ("peak pinned", format_bytes(found.peak_pinned)),
    ]
    return "\n".join(f"{name:<20}{value}" for name, value in rows)


def _why(work: Workload, found: Simulation) -> str:
    """What stood in the way of an infeasible run."""
    failure = found.failure
    assert failure is not None
    if failure.op is None:
        size = format_bytes(failure.request)
        return f"the constants lack room: {size} in one place for one of them"
    call = f"call {failure.op:,} ({work.problem.ops[failure.op].name})"
    if failure.reason == "too many steps":
        return f"recomputation got out of hand at {call}"
    values = work.problem.values
    largest = sorted(failure.pinned, key=lambda v: -values[v].size)[:3]
    names = ", ".join(
        f"{values[v].name} {format_bytes(values[v].size)}" for v in largest
    )
    return (
        f"{call} asks for {format_bytes(failure.request)} in one place; "
        f"{format_bytes(failure.free)} are free, {format_bytes(failure.pinned_bytes)} "
        f"in {len(failure.pinned)} tensors cannot be evicted, the largest {names}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
