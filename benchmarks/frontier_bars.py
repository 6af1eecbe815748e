"""The bars that rows of `benchmarks.frontier` are held to, over all models in them."""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from .frontier_rows import (
    CHECKPOINT,
    CONFIDENCE,
    COOP,
    FLAT,
    HALF_TEMP,
    PLAIN,
    THIRD_TEMP,
    Row,
    by_model,
    find,
    is_swept,
)

_MOST_AT_POLICY = 1.0
_MOST_MEDIAN_TIME = 0.97
_MOST_FLOOR = 0.85
_MOST_OVERHEAD = {HALF_TEMP: 1.03, THIRD_TEMP: 1.10}
_MOST_PLANNING = 0.3
_MEDIAN_COMPILES, _MOST_COMPILES = 3, 6
_MOST_COMPILE_TIME = 1.5
_MEDIAN_MISPREDICTION, _MOST_MISPREDICTION = 0.03, 0.08
_MOST_ERROR = 1.5
# Ties in flops, and in seconds of the cost model, are not differences.
_ROUNDING = 1 + 1e-4

type Verdict = tuple[bool | None, str]
"""Passed, missed or not measured; and what was reached."""

type Ratio = Callable[[Row, Row], float | None]
"""One row over another, or None where one of them lacks the number."""


def summary(rows: Sequence[Row]) -> str:
    """What was reached of each bar."""
    lines = []
    for label, check in _CHECKS:
        verdict, reached = check(rows)
        state = {True: "pass", False: "MISS", None: "n/a"}[verdict]
        lines.append(f"{state:<4}  {label}: {reached}")
    return "\n".join(lines)


# What is compared


def flops_ratio(row: Row, base: Row) -> float | None:
    """Flops of one over the other's."""
    if row.overhead is None or base.overhead is None:
        return None
    return row.overhead / base.overhead


def time_ratio(row: Row, base: Row) -> float | None:
    """Median of the ratios of step times within a round."""
    return row.time_over(base)


def least_time_ratio(row: Row, base: Row) -> float | None:
    """Lower end of the interval that the rounds leave for `time_ratio`."""
    interval = row.time_interval(base)
    return interval and interval[0]


def roofline_ratio(row: Row, base: Row) -> float | None:
    """Least seconds of one over the other's."""
    if row.roofline is None or base.roofline is None:
        return None
    return row.roofline / base.roofline


def geometric_mean(values: Sequence[float]) -> float:
    """Infinite if one is."""
    if math.inf in values:
        return math.inf
    return statistics.geometric_mean(values)


def _name(row: Row) -> str:
    return " ".join(part for part in (row.model, row.program, row.budget) if part)


def _at_policies(rows: Sequence[Row], ratio: Ratio) -> list[tuple[float, str]]:
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


# The bars


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
        coop = _by_budget(r for r in model if r.program == COOP)
        most = plain.measured or 0 if plain else 0
        for row in coop:
            if (row.measured or 0) > most:
                worse.append(_name(row))
            most = min(most, row.measured or 0)
    return not worse, ", ".join(worse) or "never"


def _by_budget(rows: Iterable[Row]) -> list[Row]:
    """Rows with a program, the largest budget first."""
    reached = [r for r in rows if None not in (r.requested, r.measured)]
    return sorted(reached, key=lambda row: -(row.requested or 0))


def _sweep(rows: Sequence[Row]) -> Verdict:
    rises, count, models = [], 0, 0
    for model in by_model(rows).values():
        swept = _by_budget(r for r in model if r.program == COOP and is_swept(r))
        count, models = count + len(swept), models + bool(swept)
        for row, smaller in itertools.pairwise(swept):
            cost, then = row.estimated_time, smaller.estimated_time
            if cost and then and cost > then * _ROUNDING:
                rises.append(f"{_name(row)} {cost:.4f} after {then:.4f}")
    if not count:
        return None, "not measured"
    found = ", ".join(rises) or "never"
    return not rises, f"{found} ({count} budgets of {models} models)"


def _floor(rows: Sequence[Row]) -> Verdict:
    found = []
    for name, model in by_model(rows).items():
        least = find(model, COOP, "min")
        hand = find(model, CHECKPOINT, "nothing_saveable")
        if least and hand and least.temp is not None and hand.temp:
            found.append((name, least.temp / hand.temp))
    if not found:
        return None, "not measured"
    mean = geometric_mean([ratio for _, ratio in found])
    each = ", ".join(f"{name} {ratio:.3f}" for name, ratio in found)
    return mean <= _MOST_FLOOR, f"geometric mean {mean:.3f} ({each})"


def _flops_at_policies(rows: Sequence[Row]) -> Verdict:
    found = _at_policies(rows, flops_ratio)
    if not any(math.isfinite(value) for value, _ in found):
        return None, "not measured"
    worst, where = max(found)
    over = sum(value > _MOST_AT_POLICY * _ROUNDING for value, _ in found)
    median = statistics.median(value for value, _ in found)
    reached = f"median {median:.3f}, worst {worst:.3f} ({where})"
    return not over, f"{reached}; {over} of {len(found)} over"


def _time_at_policies(ratio: Ratio) -> Callable[[Sequence[Row]], Verdict]:
    def check(rows: Sequence[Row]) -> Verdict:
        found = _at_policies(rows, ratio)
        if not any(math.isfinite(value) for value, _ in found):
            return None, "not measured"
        medians = [
            statistics.median(value for value, _ in of_model)
            for model in by_model(rows).values()
            if (of_model := _at_policies(model, ratio))
        ]
        median = statistics.median(medians)
        worst, where = max(found)
        over = sum(value > _MOST_AT_POLICY for value, _ in found)
        reached = f"median over models {median:.3f}, worst {worst:.3f} ({where})"
        passed = median <= _MOST_MEDIAN_TIME and not over
        return passed, f"{reached}; {over} of {len(found)} over {_MOST_AT_POLICY}"

    return check


def _time_beyond_chance(rows: Sequence[Row]) -> Verdict:
    """Whether a time over the policy's is one by more than the rounds tell apart."""
    found = _at_policies(rows, least_time_ratio)
    least = [(value, name) for value, name in found if math.isfinite(value)]
    if not least:
        return None, "not measured"
    over = [(value, name) for value, name in least if value > _MOST_AT_POLICY]
    names = ", ".join(f"{name} by at least {value - 1:.1%}" for value, name in over)
    return not over, f"{names or 'none'} of {len(least)}"


def _overhead(budget: str, ratio: Ratio) -> Callable[[Sequence[Row]], Verdict]:
    def check(rows: Sequence[Row]) -> Verdict:
        found = []
        for name, model in by_model(rows).items():
            plain, coop = find(model, PLAIN), find(model, COOP, budget)
            if plain is None or coop is None:
                continue
            value = math.inf if coop.measured is None else ratio(coop, plain)
            if value is not None:
                found.append((value, name))
        reached = [value for value, _ in found if math.isfinite(value)]
        if not reached:
            return None, "not measured"
        mean, (worst, where) = geometric_mean(reached), max(found)
        missed = [name for value, name in found if math.isinf(value)]
        text = f"geometric mean {mean:.3f}, worst {worst:.3f} ({where})"
        if missed:
            text += f"; bytes not reached, and not in the mean: {', '.join(missed)}"
        return mean <= _MOST_OVERHEAD[budget] and not missed, text

    return check


def _planning(rows: Sequence[Row]) -> Verdict:
    """Seconds of planning per round, over the compile of the step as written."""
    found = []
    for model in by_model(rows).values():
        flat = find(model, FLAT)
        if flat is None or not flat.compile_seconds:
            continue
        for row in model:
            if row.program == COOP and row.compiles:
                each = row.plan_seconds / row.compiles
                found.append((each / flat.compile_seconds, _name(row)))
    if not found:
        return None, "not measured"
    worst, where = max(found)
    median = statistics.median(value for value, _ in found)
    return worst <= _MOST_PLANNING, f"median {median:.2f}, worst {worst:.2f} ({where})"


def _compiles(rows: Sequence[Row]) -> Verdict:
    found = [
        (row.compiles_in_all, _name(row))
        for row in rows
        if row.program == COOP and row.compiles_in_all
    ]
    if not found:
        return None, "not measured"
    worst, where = max(found)
    median = statistics.median(value for value, _ in found)
    passed = median <= _MEDIAN_COMPILES and worst <= _MOST_COMPILES
    return passed, f"median {median:g}, worst {worst} ({where})"


def _compile_time(rows: Sequence[Row]) -> Verdict:
    found = [(r.compile_ratio, _name(r)) for r in rows if r.compile_ratio is not None]
    if not found:
        return None, "not measured"
    worst, where = max(found)
    median = statistics.median(value for value, _ in found)
    over = sum(value > _MOST_COMPILE_TIME for value, _ in found)
    reached = f"median {median:.2f}, worst {worst:.2f} ({where})"
    return not over, f"{reached}; {over} of {len(found)} over"


def _prediction(rows: Sequence[Row]) -> Verdict:
    planned = (r for r in rows if r.program == COOP and r.misprediction is not None)
    found = [(abs(r.misprediction or 0.0), _name(r)) for r in planned]
    if not found:
        return None, "not measured"
    median = statistics.median(value for value, _ in found)
    worst, where = max(found)
    passed = median <= _MEDIAN_MISPREDICTION and worst <= _MOST_MISPREDICTION
    return passed, f"median {median:.1%}, worst {worst:.1%} ({where})"


def _accuracy(rows: Sequence[Row]) -> Verdict:
    found = [(r.error, _name(r)) for r in rows if r.error is not None]
    if not found:
        return None, "not measured"
    # A NaN is worse than any number.
    worst, where = max(found, key=lambda e: math.inf if math.isnan(e[0]) else e[0])
    return worst <= _MOST_ERROR, f"{worst:.2f} ({where})"


_CHECKS: Iterable[tuple[str, Callable[[Sequence[Row]], Verdict]]] = (
    ("measured within requested", _within_budget),
    ("a smaller budget, or any, measured more bytes", _monotone),
    ("cost rises with the budget", _sweep),
    (f"flops of coop / policy at its bytes <= {_MOST_AT_POLICY}", _flops_at_policies),
    *(
        (
            f"{what} of coop / policy at its bytes <= {_MOST_AT_POLICY}, median over "
            f"models <= {_MOST_MEDIAN_TIME}",
            _time_at_policies(ratio),
        )
        for what, ratio in (("time", time_ratio), ("roofline", roofline_ratio))
    ),
    (f"times over a policy's, with {CONFIDENCE:.0%} confidence", _time_beyond_chance),
    (f"floor / temp of nothing_saveable <= {_MOST_FLOOR}", _floor),
    *(
        (f"{what} at {budget} <= {most}", _overhead(budget, ratio))
        for budget, most in _MOST_OVERHEAD.items()
        for what, ratio in (("flops", flops_ratio), ("time", time_ratio))
    ),
    (f"planning a round / compile as written <= {_MOST_PLANNING}", _planning),
    (
        f"compiles in all <= {_MEDIAN_COMPILES} (median), {_MOST_COMPILES} (worst)",
        _compiles,
    ),
    (f"compile of a plan / as written <= {_MOST_COMPILE_TIME}", _compile_time),
    (
        f"predicted bytes off by <= {_MEDIAN_MISPREDICTION:.0%} (median), "
        f"{_MOST_MISPREDICTION:.0%} (worst)",
        _prediction,
    ),
    (f"error / error of the step as written <= {_MOST_ERROR}", _accuracy),
)
