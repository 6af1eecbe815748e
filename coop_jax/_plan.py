"""What a plan does to a step, and what it measured: the object users print."""

import hashlib
import itertools
import os
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from ._budget import format_bytes
from ._loops.loop_report import BodyPlan, LoopPlan
from ._measure import MemoryUse
from ._planning.types import Problem, Schedule
from ._program.hlo import OwnedBuffer
from ._program.origin import Origin
from ._report.table import shortened, table_text

_MOST_LINES = 25
_LARGEST = 5


@dataclass(frozen=True, slots=True)
class Action:
    """What the plan does with one value.

    Attributes:
      name: primitive and the user's `file:line (function)`.
      size: bytes.
      kind: "kept" as the step wrote it; "moved": computed once, but not in its place
        among the others; "recomputed": computed more than once.
      runs: how often it is computed.
      value: its number in `Plan.problem`.
      type: shape and dtype, as in `float32[8,256]`.
      scope: the user's name scopes, layers first; "" if there are none.
      is_backward: it belongs to the backward pass (its scope is a transpose).
      cost: seconds one more computation takes, by the cost model.
      is_in_place: it takes over the bytes of an input that dies there.

    Example:
      >>> actions = step.plan(state, batch).actions
      >>> sum(action.size for action in actions if action.kind == "recomputed") > 0
      True
    """

    name: str
    size: int
    kind: str
    runs: int
    value: int = -1
    type: str = ""
    scope: str = ""
    is_backward: bool = False
    cost: float = 0.0
    is_in_place: bool = False

    @property
    def primitive(self) -> str:
        """The JAX primitive that computes it."""
        return self.name.partition(" at ")[0]

    @property
    def source(self) -> str:
        """`file:line (function)` of the user's code, or its name scopes."""
        return self.name.partition(" at ")[2]


@dataclass(frozen=True, slots=True)
class Argument:
    """One array that is passed to the step.

    Attributes:
      name: path in the arguments, as in `[0].params['dense']['kernel']`.
      type: shape and dtype, as in `float32[8,256]`.
      size: bytes per device.
      role: "parameters" (donated, read from the start on), "optimizer state"
        (donated, read only at the end), or "inputs".

    Example:
      >>> step.plan(state, batch).arguments[0].role
      'parameters'
    """

    name: str
    type: str
    size: int
    role: str


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
      baseline_compile_seconds: the share in that of the step as written, compiled (on
        CPU) for its bytes alone.
      equations: equations in the step.
      loops: what becomes of scans over layers.
      bodies: the order in which bodies of loops run, where it is not the step's own.
      fingerprint: digest of program, budget and plan; equal on every host.
      floor: bytes of the smallest program that was compiled on the way.
      problem: the operations and values that were planned.
      arguments: the arrays that are passed in.
      origin: what it was made for; None for a plan that cannot be used again.
      baseline: what XLA assigned to the step as written.
      has_calls: it has in-place calls, and needs the native library to run.
      in_stages: the order is kept inside of its parts too, as it packs better then.

    Example:
      >>> plan = step.plan(state, batch)
      >>> plan.measured.total < plan.unplanned.total
      True
      >>> print(plan)
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
    loops: tuple[LoopPlan, ...] = ()
    bodies: tuple[BodyPlan, ...] = field(default=(), repr=False)
    floor: int | None = None
    problem: Problem = field(default_factory=lambda: Problem((), ()), repr=False)
    arguments: tuple[Argument, ...] = field(default=(), repr=False)
    origin: Origin | None = field(default=None, repr=False)
    baseline: tuple[OwnedBuffer, ...] = field(default=(), repr=False)
    has_calls: bool = False
    in_stages: bool = False

    @property
    def is_planned(self) -> bool:
        """False if the step fits as written and is left alone."""
        return bool(self.positions or self.loops or self.bodies)

    @property
    def schedule(self) -> Schedule:
        """Operations of `problem` in the order they run, repeats included."""
        if not self.positions:
            return self.problem.program_order
        places = ((at, op) for op, runs in enumerate(self.positions) for at in runs)
        return tuple(op for _, op in sorted(places))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan to a JSON file, for `coop_jax.load_plan`.

        Args:
          path: of the file; replaced as a whole if it is there.

        Raises:
          OSError: the file cannot be written.

        Example:
          >>> step.plan(state, batch).save("plan.json")
        """
        # That module needs this one to read plans.
        from ._plan_file import save_plan

        save_plan(self, path)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws bytes over program order, and the addresses of all buffers.

        Args:
          path: of the file to write. `.html` is one page with hover and zoom that needs
            nothing else; `.svg`, `.png` and `.pdf` need matplotlib.

        Raises:
          ValueError: another suffix.
          ImportError: matplotlib is not installed.

        Example:
          >>> step.plan(state, batch).plot("plan.html")
        """
        from ._report.files import write_plot

        write_plot(self, path)

    def to_perfetto(self, path: str | os.PathLike[str]) -> None:
        """Writes a trace for https://ui.perfetto.dev: operations and bytes alive.

        Args:
          path: of the JSON file. Times in it are the cost model's estimates.

        Example:
          >>> step.plan(state, batch).to_perfetto("trace.json")
        """
        from ._report.files import write_trace

        write_trace(self, path)

    def explain(self, budget: int | None = None) -> str:
        """Says in words what keeps the step from taking fewer bytes.

        Args:
          budget: bytes to compare with; by default those it was planned for.

        Returns:
          What is fixed, what is alive at the peak and why, a bound that no order of
          operations gets around, and what would help.

        Example:
          >>> try:
          ...     step.plan(state, batch)
          ... except coop_jax.BudgetError as error:
          ...     print(error.plan.explain())
        """
        from ._report.explanation import explanation

        return explanation(self, self.budget if budget is None else budget)

    def table(self, least: int = 65536) -> str:
        """What happens to each value, as text; repeated layers share their rows.

        Under a heading for each layer, a row for each kind of value: what the plan does
        with it, how many there are, their bytes together, estimated milliseconds spent
        on computing them again, type, primitive, and `file:line (function)`.

        Args:
          least: values of fewer bytes are counted together.

        Returns:
          The lines, to print.

        Example:
          >>> print(step.plan(state, batch).table())
        """
        return table_text(self.actions, least)

    def __str__(self) -> str:
        budget, lines = self.budget, ["coop_jax plan"]
        if budget is not None and self.measured.total > budget:
            lines = ["coop_jax plan: over its budget, the smallest that was found"]
        elif not self.is_planned:
            lines = ["coop_jax plan: fits as written"]
        lines += [f"  {label:<10} {text}" for label, text in self._rows()]
        return "\n".join((lines + self._largest_kept())[:_MOST_LINES])

    def _rows(self) -> list[tuple[str, str]]:
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
        ]  # fmt: skip
        if self.floor is not None:
            rows.append(("smallest", f"{_exact(self.floor)} seen while planning"))
        rows.append(
            ("overhead", f"{self.flops - 1:+.2%} flops, {self.time - 1:+.2%} time "
                         "(estimated)")
        )  # fmt: skip
        rows += [(kind, self._counted(kind)) for kind in ("kept", "moved")]
        rows.append(("recomputed", self._recomputed()))
        rows += [("loop", str(loop)) for loop in self.loops]
        rows += [("in a loop", str(body)) for body in self.bodies]
        in_place = [action for action in self.actions if action.is_in_place]
        rows.append(("in place", _values(in_place)))
        rows.append(
            ("planning", f"{self.plan_seconds:.1f} s, {self.compiles} compiles in "
                         f"{self.compile_seconds:.1f} s, {self.equations:,} equations")
        )  # fmt: skip
        rows.append(("plan", f"{self.policy}, fingerprint {self.fingerprint}"))
        return rows

    def _counted(self, kind: str) -> str:
        return _values([action for action in self.actions if action.kind == kind])

    def _recomputed(self) -> str:
        again = [action for action in self.actions if action.kind == "recomputed"]
        # Values of one operation are computed together.
        costs = {self.problem.producer[a.value]: a.cost * (a.runs - 1) for a in again}
        return f"{_values(again)}, {sum(costs.values()) * 1e3:.2f} ms (estimated)"

    def _error(self) -> float:
        return (self.predicted - self.measured.total) / max(1, self.measured.total)

    def _largest_kept(self) -> list[str]:
        """The largest values kept, equal ones of one source line in one row."""
        kept = [a for a in self.actions if a.kind == "kept" and a.size]
        kept.sort(key=lambda action: (-action.size, action.name))
        rows = ["  largest values kept:"]
        for (size, name), same in itertools.groupby(kept, lambda a: (a.size, a.name)):
            text = f"{len(list(same)):>3} x {format_bytes(size):>10}"
            rows.append(f"    {text}  {shortened(name)}")
            if len(rows) > _LARGEST:
                break
        return rows if kept else []


def fingerprint(
    problem: Problem,
    budget: int | None,
    positions: Any,
    loops: Sequence[LoopPlan] = (),
    bodies: Sequence[BodyPlan] = (),
    in_stages: bool = False,
) -> str:
    """Digest of what was planned; no seconds, no addresses."""
    shape = [astuple(op)[1:3] for op in problem.ops]
    sizes = [value.size for value in problem.values]
    text = repr((shape, sizes, problem.fixed, budget, positions))
    text += "in stages" if in_stages else ""
    if loops or bodies:
        text += repr([(loop.place, loop.chunk, loop.positions) for loop in loops])
        text += repr([(body.place, body.positions) for body in bodies])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _values(chosen: list[Action]) -> str:
    size = format_bytes(sum(action.size for action in chosen))
    return f"{len(chosen)} values, {size} in turn"


def _exact(size: int) -> str:
    return f"{format_bytes(size)} ({size:,} bytes)"
