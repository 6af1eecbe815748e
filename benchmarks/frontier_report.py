"""Rows of `benchmarks.frontier` as markdown tables, and the bars they are held to."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from .frontier_rows import CHECKPOINT, COOP, FLAT, PLAIN, Row, by_model, find

_HEADINGS = (
    "program", "budget", "requested MB", "measured MB", "temp MB", "flops", "time",
    "plan s", "compile s", "compiles", "predicted", "error",
)  # fmt: skip
_MOST_OVERHEAD = 1.05
_MOST_FLOPS_AT_HALF = 1.06
_MOST_MISPREDICTION = 0.05
_MOST_ERROR = 1.5


def table(rows: Sequence[Row]) -> str:
    """The rows of one model as an aligned markdown table."""
    plain = find(rows, PLAIN)
    assert plain is not None
    cells = [_HEADINGS, *(_cells(row, plain) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [_line(cells[0], widths)]
    rules = ["-" * w if i < 2 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    lines.append("| " + " | ".join(rules) + " |")
    lines += [_line(row, widths) for row in cells[1:]]
    return "\n".join(lines)


def flops_legend(rows: Sequence[Row]) -> str:
    """Where the flops of these rows come from."""
    if any(row.flops is not None for row in rows):
        return "flops: by XLA's cost analysis of the compiled program, over no remat"
    return (
        "flops: counted on the traced or emitted program (XLA analyses no cost on this "
        "backend), over no remat"
    )


def summary(rows: Sequence[Row]) -> str:
    """What was reached of each bar."""
    lines = []
    for label, check in _CHECKS:
        verdict, reached = check(rows)
        state = {True: "pass", False: "MISS", None: "n/a"}[verdict]
        lines.append(f"{state:<4}  {label}: {reached}")
    return "\n".join(lines)


# Tables


def _cells(row: Row, plain: Row) -> tuple[str, ...]:
    measured = _megabytes(row.measured)
    if row.floor is not None:
        measured = f"floor {_megabytes(row.floor)}"
    return (
        row.program,
        row.budget or "-",
        _megabytes(row.requested),
        measured,
        _megabytes(row.temp),
        _number(row.overhead, ".3f"),
        _number(row.time_over(plain), ".3f"),
        _number(row.plan_seconds, ".1f"),
        _number(row.compile_seconds, ".1f"),
        str(row.compiles),
        _number(row.misprediction, "+.1%"),
        _number(row.error, ".2f"),
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.ljust(width) if i < 2 else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "| " + " | ".join(padded) + " |"


def _megabytes(size: int | None) -> str:
    return _number(None if size is None else size / 1e6, ".1f")


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


# Bars

type Verdict = tuple[bool | None, str]
"""Passed, missed or not measured; and what was reached."""


def _within_budget(rows: Sequence[Row]) -> Verdict:
    asked = [r for r in rows if None not in (r.requested, r.measured)]
    if not asked:
        return None, "no budgets"
    over = [r for r in asked if (r.measured or 0) > (r.requested or 0)]
    names = "".join(f"; {_name(row)}" for row in over)
    return not over, f"{len(asked) - len(over)} of {len(asked)}{names}"


def _monotone(rows: Sequence[Row]) -> Verdict:
    worse = []
    for model in by_model(rows).values():
        plain = find(model, PLAIN)
        coop = [r for r in model if r.program == COOP and None not in _bytes(r)]
        coop.sort(key=lambda row: -(row.requested or 0))
        most = plain.measured or 0 if plain else 0
        for row in coop:
            if (row.measured or 0) > most:
                worse.append(_name(row))
            most = min(most, row.measured or 0)
    return not worse, ", ".join(worse) or "never"


def _floor(rows: Sequence[Row]) -> Verdict:
    found = []
    for name, model in by_model(rows).items():
        least = find(model, COOP, "min")
        hand = find(model, CHECKPOINT, "nothing_saveable")
        if least and hand and least.measured and hand.measured:
            found.append((name, least.measured / hand.measured))
    if not found:
        return None, "not measured"
    return all(x <= 1 for _, x in found), ", ".join(f"{n} {x:.3f}" for n, x in found)


def _ratios(
    rows: Sequence[Row], ratio: Callable[[Row, Row], float | None]
) -> list[tuple[float, str]]:
    """Coop over each policy at its bytes, with names; infinite if not reached."""
    found = []
    for model in by_model(rows).values():
        for hand in (r for r in model if r.program == CHECKPOINT):
            coop = find(model, COOP, hand.budget)
            if coop is None:
                continue
            value = math.inf if coop.measured is None else ratio(coop, hand)
            if value is not None:
                found.append((value, _name(coop)))
    return found


def _flops_ratio(coop: Row, hand: Row) -> float | None:
    if coop.overhead is None or hand.overhead is None:
        return None
    return coop.overhead / hand.overhead


def _time_ratio(coop: Row, hand: Row) -> float | None:
    return coop.time_over(hand)


def _against_policies(ratio: Callable) -> Callable[[Sequence[Row]], Verdict]:
    def check(rows: Sequence[Row]) -> Verdict:
        found = _ratios(rows, ratio)
        if not any(math.isfinite(value) for value, _ in found):
            return None, "not measured"
        worst, where = max(found)
        median = statistics.median(value for value, _ in found)
        reached = f"median {median:.3f}, worst {worst:.3f} ({where})"
        return worst <= _MOST_OVERHEAD, reached

    return check


def _flops_at_half(rows: Sequence[Row]) -> Verdict:
    row = find([r for r in rows if r.model == "gpt2"], COOP, "0.5")
    if row is None:
        return None, "not measured"
    if row.overhead is None:
        return False, "not reached"
    return row.overhead <= _MOST_FLOPS_AT_HALF, f"{row.overhead:.3f}"


def _prediction(rows: Sequence[Row]) -> Verdict:
    planned = (r for r in rows if r.program == COOP and r.misprediction is not None)
    found = [(abs(r.misprediction or 0.0), _name(r)) for r in planned]
    if not found:
        return None, "not measured"
    median = statistics.median(value for value, _ in found)
    worst, where = max(found)
    return (
        median <= _MOST_MISPREDICTION,
        f"median {median:.1%}, worst {worst:.1%} ({where})",
    )


def _planning(rows: Sequence[Row]) -> Verdict:
    found = []
    for name, model in by_model(rows).items():
        flat = find(model, FLAT)
        longest = max(
            (r.plan_seconds for r in model if r.program == COOP), default=None
        )
        if flat is not None and longest is not None:
            planning = longest + flat.plan_seconds
            found.append((name, planning, flat.compile_seconds))
    if not found:
        return None, "not measured"
    reached = ", ".join(f"{n} {p:.1f} s against {c:.1f} s" for n, p, c in found)
    return all(p <= c for _, p, c in found), reached


def _accuracy(rows: Sequence[Row]) -> Verdict:
    found = [(r.error, _name(r)) for r in rows if r.error is not None]
    if not found:
        return None, "not measured"
    # A NaN is worse than any number.
    worst, where = max(found, key=lambda e: math.inf if math.isnan(e[0]) else e[0])
    return worst <= _MOST_ERROR, f"{worst:.2f} ({where})"


def _bytes(row: Row) -> tuple[int | None, int | None]:
    return row.requested, row.measured


def _name(row: Row) -> str:
    return " ".join(part for part in (row.model, row.program, row.budget) if part)


_CHECKS: Iterable[tuple[str, Callable[[Sequence[Row]], Verdict]]] = (
    ("measured within requested", _within_budget),
    ("a smaller budget, or any, measured more bytes", _monotone),
    ("floor / bytes of nothing_saveable <= 1", _floor),
    (
        f"flops of coop / policy at equal bytes <= {_MOST_OVERHEAD}",
        _against_policies(_flops_ratio),
    ),
    (
        f"time of coop / policy at equal bytes <= {_MOST_OVERHEAD}",
        _against_policies(_time_ratio),
    ),
    (f"flops of gpt2 at 0.5 <= {_MOST_FLOPS_AT_HALF}", _flops_at_half),
    (f"predicted bytes off by <= {_MOST_MISPREDICTION:.0%}, median", _prediction),
    ("longest planning within the compile of the step as written", _planning),
    (f"error / error of the step as written <= {_MOST_ERROR}", _accuracy),
)
