"""Planner time and memory against the length of the program.

    JAX_PLATFORMS=cpu python -m benchmarks.scaling
    JAX_PLATFORMS=cpu python -m benchmarks.scaling --kind nets --length 1000 100000

Two kinds of program. "nets" are random nets with gradients, one op per equation
(`benchmarks.optimum_problems.layered`). "gpt2" is the small GPT-2 made deep enough to
have that many equations, traced but not compiled, since XLA would take an hour: what
more than one equation reads is taken to own its bytes, as XLA's buffer assignment says
of most of it. Each is planned once from scratch at half the live bytes of its program
order, in a process of its own.

The exponent is the slope of a line through log(seconds) against log(length), the
least squares one; n log n has a slope of 1.1 over this range.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coop_jax._planning.planner import Effort, plan
from coop_jax._planning.retention import Retention
from coop_jax._planning.types import Problem

KINDS = ("nets", "gpt2")
_LENGTHS = (1_000, 3_000, 10_000, 30_000, 100_000)
_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Row:
    """One program, planned once.

    Attributes:
      kind: one of `KINDS`.
      equations: of the flat program.
      ops: of the problem.
      trace_seconds: until the program was flat; 0 for nets.
      profile_seconds: from there to the problem; 0 for nets.
      plan_seconds: of the processor, for one call of the planner (one thread).
      plan_bytes: by which the process's largest resident size grew meanwhile.
      fits: whether the plan was within half the bytes.
      cost: of the plan over that of the program order.
    """

    kind: str
    equations: int
    ops: int
    trace_seconds: float
    profile_seconds: float
    plan_seconds: float
    plan_bytes: int
    fits: bool
    cost: float


def measure(kind: str, length: int, effort: Effort | None = None) -> Row:
    """Makes a program of about `length` equations and plans it."""
    if kind == "nets":
        from .optimum_problems import layered

        problem = layered(0, length // 2)
        equations, trace_seconds, profile_seconds = len(problem.ops), 0.0, 0.0
    else:
        problem, equations, trace_seconds, profile_seconds = _deep_gpt2(length)
    pool = int(Retention(problem).peak() * _SHARE)
    before = _largest_resident()
    start = time.process_time()
    planned = plan(problem, pool, effort)
    seconds = time.process_time() - start
    return Row(
        kind,
        equations,
        len(problem.ops),
        trace_seconds,
        profile_seconds,
        seconds,
        _largest_resident() - before,
        planned.fits,
        planned.cost / problem.cost(problem.program_order),
    )


def _deep_gpt2(length: int) -> tuple[Problem, int, float, float]:
    """The problem, its equations, and the seconds to trace and to profile it."""
    import jax

    from coop_jax._fitting.compile import flat_step
    from coop_jax._program.profile import profile

    from .models import gpt2

    def flat(layers: int):
        config = dataclasses.replace(gpt2.SIZES["small"], layers=layers)
        gpt2.SIZES["deep"] = config
        model = gpt2.build("deep")
        args = model.abstract_args()
        traced = jax.jit(model.step, donate_argnums=0).trace(*args)
        return flat_step(traced, jax.tree.leaves(args)).program

    one, two = (len(flat(layers).equations) for layers in (1, 2))
    layers = max(1, round((length - one) / (two - one)) + 1)
    start = time.perf_counter()
    program = flat(layers)
    traced_at = time.perf_counter()
    problem = profile(program, _shared_results(program), 0, "cpu").problem
    seconds = time.perf_counter() - traced_at
    return problem, len(program.equations), traced_at - start, seconds


def _shared_results(program):
    """Results that several equations read, as buffers that XLA would own."""
    from coop_jax._program.cost import nbytes
    from coop_jax._program.hlo import OwnedBuffer
    from coop_jax._program.scopes import scope

    reads = Counter(
        v
        for equation in program.equations
        for v in {atom for atom in equation.inputs if isinstance(atom, int)}
    )
    return [
        OwnedBuffer(scope(k), "fusion", nbytes(program.avals[v]), 0, 0, True)
        for k, equation in enumerate(program.equations)
        for v in equation.outputs
        if reads[v] > 1
    ]


def _largest_resident() -> int:
    """Bytes; Linux counts in kilobytes, macOS in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def exponent(rows: Sequence[Row]) -> float:
    """Slope of log(plan seconds) over log(equations)."""
    lengths = [math.log(row.equations) for row in rows]
    seconds = [math.log(row.plan_seconds) for row in rows]
    return float(np.polyfit(lengths, seconds, 1)[0])


def n_log_n_growth(rows: Sequence[Row]) -> float:
    """Seconds over n log n, of the longest program over the shortest; 1 is n log n."""
    first, last = rows[0], rows[-1]

    def unit(row: Row) -> float:
        return row.plan_seconds / (row.equations * math.log(row.equations))

    return unit(last) / unit(first)


_HEADINGS = (
    "kind", "equations", "ops", "trace s", "profile s", "plan s", "plan MB", "fits",
    "cost",
)  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """The rows as a markdown table."""
    lines = ["| " + " | ".join(_HEADINGS) + " |", "|---|" + "--:|" * 8]
    for row in rows:
        cells = (
            row.kind, f"{row.equations:,}", f"{row.ops:,}", f"{row.trace_seconds:.1f}",
            f"{row.profile_seconds:.1f}", f"{row.plan_seconds:.2f}",
            f"{row.plan_bytes / 1e6:.0f}", "yes" if row.fits else "no",
            f"{row.cost:.3f}",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


# Command line


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling", description=(__doc__ or "").split("\n")[0]
    )
    option = parser.add_argument
    option("--kind", nargs="+", choices=KINDS, default=list(KINDS))
    option("--length", type=int, nargs="+", default=list(_LENGTHS))
    option("--json", metavar="FILE", help="write the rows here as well")
    option("--one", action="store_true", help="measure in this process, print JSON")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a table and the growth of each kind."""
    chosen = _parse(arguments)
    if chosen.one:
        row = measure(chosen.kind[0], chosen.length[0])
        print(json.dumps(dataclasses.asdict(row)))
        return
    rows: list[Row] = []
    for kind in chosen.kind:
        for length in chosen.length:
            rows.append(_in_a_process(kind, length))
            print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
        if chosen.json:
            content = json.dumps([dataclasses.asdict(row) for row in rows], indent=1)
            pathlib.Path(chosen.json).write_text(content + "\n")
    print(table(rows) + "\n")
    for kind in chosen.kind:
        found = [row for row in rows if row.kind == kind]
        if len(found) > 1:
            print(
                f"{kind}: exponent {exponent(found):.2f}, seconds over n log n grew "
                f"{n_log_n_growth(found):.2f} times"
            )


def _in_a_process(kind: str, length: int) -> Row:
    command = [sys.executable, "-m", "benchmarks.scaling", "--one"]
    command += ["--kind", kind, "--length", str(length)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return Row(**json.loads(done.stdout))


if __name__ == "__main__":
    main()
