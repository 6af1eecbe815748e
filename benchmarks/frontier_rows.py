"""One measured program as a row, and rows as JSON."""

import dataclasses
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

PLAIN, FLAT, CHECKPOINT, COOP = "no remat", "no remat, flat", "checkpoint", "coop"
HALF_TEMP, THIRD_TEMP = "temp/2", "temp/3"
_SWEEP = "sweep "
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Row:
    """What one program of one model measured. None: not asked for, or no program.

    Attributes:
      program: `PLAIN`: `jax.jit` of the step. `FLAT`: the same, traced and emitted by
        `coop_jax` without a plan. `CHECKPOINT`: every block under `jax.checkpoint`.
        `COOP`: `coop_jax.remat`.
      budget: what set the bytes: a policy's name, a share as "0.5", `HALF_TEMP` or
        `THIRD_TEMP` (the step's temporary bytes, beside all fixed ones), "min", a point
        of a sweep (`sweep_label`), or "".
      requested: bytes asked for.
      measured: `argument + output - alias + temp` by XLA.
      temp: bytes of XLA's temporary block.
      predicted: total bytes the planner expected of its plan.
      floor: where there is no program, the smallest bytes reached.
      flops: by XLA's cost analysis, over those of `PLAIN`.
      counted_flops: of the traced or emitted program, over those of `PLAIN`.
      traffic: bytes that kernels read and write (`benchmarks.traffic`), over those of
        `PLAIN`; for GPUs.
      roofline: least seconds that they can take (`benchmarks.roofline`), over those of
        `PLAIN`; likewise.
      estimated_time: seconds by the planner's cost model, over those of `PLAIN`.
      seconds: of every timed step; entry i of every row is from round i.
      plan_seconds: spent planning for this row alone.
      compile_seconds: spent compiling for this row alone.
      compiles: programs compiled for this row.
      is_cold: whether these three include profile and compile of the step as written.
      compile_ratio: seconds of compiling this program alone, over those of the step as
        written (`FLAT`) compiled right before and after it.
      error: largest error against the float64 step, over the same of `PLAIN`.
      note: what went wrong.
    """

    model: str
    program: str
    budget: str = ""
    requested: int | None = None
    measured: int | None = None
    temp: int | None = None
    predicted: int | None = None
    floor: int | None = None
    flops: float | None = None
    counted_flops: float | None = None
    traffic: float | None = None
    roofline: float | None = None
    estimated_time: float | None = None
    seconds: tuple[float, ...] = ()
    plan_seconds: float = 0.0
    compile_seconds: float = 0.0
    compiles: int = 0
    is_cold: bool = False
    compile_ratio: float | None = None
    error: float | None = None
    note: str = ""

    @property
    def overhead(self) -> float | None:
        """Flops over those of `PLAIN`: XLA's where it gives them, else counted."""
        return self.counted_flops if self.flops is None else self.flops

    @property
    def compiles_in_all(self) -> int:
        """Programs that a single call with this budget compiles, if that is known."""
        return self.compiles if self.is_cold else 0

    @property
    def misprediction(self) -> float | None:
        """How far off the predicted bytes were; positive is too many."""
        if self.predicted is None or self.measured is None:
            return None
        return self.predicted / self.measured - 1

    def time_over(self, other: "Row") -> float | None:
        """Median of the ratios of step times, each within one round."""
        ratios = self._ratios(other)
        return statistics.median(ratios) if ratios else None

    def time_interval(self, other: "Row") -> tuple[float, float] | None:
        """Between what that median of endless rounds lies, in 95 of 100 runs.

        Two of the ratios, however they are distributed. None of fewer than six rounds.
        """
        ratios = sorted(self._ratios(other))
        outside = _outside_interval(len(ratios))
        return (ratios[outside], ratios[-1 - outside]) if outside >= 0 else None

    def _ratios(self, other: "Row") -> list[float]:
        return [a / b for a, b in zip(self.seconds, other.seconds, strict=False)]


def _outside_interval(rounds: int) -> int:
    """How many of the sorted ratios lie below the interval, and as many above it.

    At most `k` of them are below the true median with the probability of at most `k`
    heads in as many tosses of a coin. -1 if even none are, too often.
    """
    probability, k = 0.5**rounds, -1
    while probability <= (1 - CONFIDENCE) / 2:
        k += 1
        probability += math.comb(rounds, k + 1) * 0.5**rounds
    return k


def sweep_label(share: float) -> str:
    """The budget of a point of a sweep, a share of the step's bytes."""
    return f"{_SWEEP}{share:.4f}"


def is_swept(row: Row) -> bool:
    """Whether the row is a point of a sweep."""
    return row.budget.startswith(_SWEEP)


def relative(value: float, base: float) -> float:
    """`value / base`, where 0 / 0 is 1."""
    if base == 0:
        return 1.0 if value == 0 else math.inf
    return value / base


def find(rows: Sequence[Row], program: str, budget: str = "") -> Row | None:
    """The row of this program and budget, if there is one."""
    for row in rows:
        if (row.program, row.budget) == (program, budget):
            return row
    return None


def by_model(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of each model, in order."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.model, []).append(row)
    return groups


def machine() -> dict[str, Any]:
    """What the numbers depend on, and nothing that names the machine."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cpus": os.cpu_count(),
        "device": jax.devices()[0].device_kind,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
    }


def write(path: str | pathlib.Path, rows: Sequence[Row], **settings: Any) -> None:
    """Writes rows, settings and machine as JSON."""
    content = {
        "machine": machine(),
        "settings": settings,
        "rows": [dataclasses.asdict(row) for row in rows],
    }
    pathlib.Path(path).write_text(json.dumps(content, indent=1) + "\n")


def read(path: str | pathlib.Path) -> list[Row]:
    """The rows of a file that `write` wrote."""
    content = json.loads(pathlib.Path(path).read_text())
    return [Row(**row | {"seconds": tuple(row["seconds"])}) for row in content["rows"]]
