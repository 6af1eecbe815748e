"""What a plan does to a step, and what it measured: the object users print."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ._budget import format_bytes
from ._measure import MemoryUse
from ._types import Problem

_LARGEST = 5


@dataclass(frozen=True, slots=True)
class Action:
    """What the plan does with one value.

    Attributes:
      name: primitive and the user's `file:line (function)`.
      size: bytes.
      kind: "kept" as the step wrote it; "moved": computed later than written, once;
        "recomputed": computed more than once.
      runs: how often it is computed.
    """

    name: str
    size: int
    kind: str
    runs: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A step that fits its budget.

    Attributes:
      budget: bytes per device it was planned for; None for the smallest reachable.
      unplanned: bytes of the step as written, measured by XLA.
      measured: bytes of the planned step, measured by XLA.
      predicted: total bytes the memory model expected of the planned step.
      flops: floating point operations of the planned step over those of the step as
        written (counted on the program; 1.0 is no recomputation).
      time: estimated seconds of the planned step over those of the step as written, by
        the cost model.
      actions: what happens to each value that owns bytes.
      positions: per planned operation, the places it runs at.
      policy: which planner made it.
      compiles: programs compiled, the unplanned one included.
      plan_seconds: wall time spent planning.
      compile_seconds: wall time spent in XLA.
      baseline_compile_seconds: the share of the unplanned step in that.
      equations: equations in the step.
      fingerprint: digest of program, budget and plan; equal on every host.
      warnings: what the user should know.
    """

    budget: int | None
    unplanned: MemoryUse
    measured: MemoryUse
    predicted: int
    flops: float
    time: float
    actions: tuple[Action, ...] = field(repr=False)
    positions: tuple[tuple[int, ...], ...] = field(repr=False)
    policy: str
    compiles: int
    plan_seconds: float
    compile_seconds: float
    baseline_compile_seconds: float
    equations: int
    fingerprint: str
    warnings: tuple[str, ...] = ()

    @property
    def is_planned(self) -> bool:
        """False if the step fits as written and is left alone."""
        return bool(self.positions)

    def __str__(self) -> str:
        asked = "smallest reachable" if self.budget is None else _exact(self.budget)
        rows = [
            ("budget", asked),
            ("unplanned", f"{_exact(self.unplanned.total)}, of it temporary "
                          f"{format_bytes(self.unplanned.temp)}"),
            ("planned", f"{_exact(self.measured.total)}, of it temporary "
                        f"{format_bytes(self.measured.temp)}"),
            ("predicted", f"{_exact(self.predicted)} ({self._error():+.1%} off)"),
            ("fixed", f"{format_bytes(self.measured.fixed)} "
                      "(arguments and outputs less donated)"),
            ("overhead", f"{self.flops - 1:+.2%} flops, {self.time - 1:+.2%} time "
                         "(estimated)"),
        ]  # fmt: skip
        for kind in ("kept", "moved", "recomputed"):
            chosen = [a for a in self.actions if a.kind == kind]
            size = format_bytes(sum(a.size for a in chosen))
            rows.append((kind, f"{len(chosen)} values, {size} in turn"))
        rows.append(
            ("planning", f"{self.plan_seconds:.1f} s, {self.compiles} compiles in "
                         f"{self.compile_seconds:.1f} s, {self.equations:,} equations")
        )  # fmt: skip
        rows.append(("plan", f"{self.policy}, fingerprint {self.fingerprint}"))
        lines = [
            "coop_jax plan" if self.is_planned else "coop_jax plan: fits as written"
        ]
        lines += [f"  {label:<10} {text}" for label, text in rows]
        lines += self._largest_kept()
        lines += [f"  warning: {text}" for text in self.warnings]
        return "\n".join(lines)

    def _error(self) -> float:
        return self.predicted / self.measured.total - 1

    def _largest_kept(self) -> list[str]:
        kept = [a for a in self.actions if a.kind == "kept" and a.size]
        kept.sort(key=lambda action: -action.size)
        rows = [f"    {format_bytes(a.size):>10}  {a.name}" for a in kept[:_LARGEST]]
        return ["  largest values kept:", *rows] if rows else []


def actions(problem: Problem, positions: Sequence[Sequence[int]]) -> tuple[Action, ...]:
    """Lists what a plan does with every value that owns bytes in the pool."""
    found = []
    for v, value in enumerate(problem.values):
        op = problem.producer[v]
        if op < 0 or not value.size:
            continue
        runs = positions[op] if positions else (op,)
        if len(runs) > 1:
            kind = "recomputed"
        else:
            kind = "kept" if runs[0] == op else "moved"
        found.append(Action(value.name, value.size, kind, len(runs)))
    return tuple(found)


def _exact(size: int) -> str:
    return f"{format_bytes(size)} ({size:,} bytes)"
