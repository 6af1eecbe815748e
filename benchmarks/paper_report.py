"""The results of `benchmarks.paper` as tables, and what of the paper's claims holds."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from .models import PAPER

MAIN = ("coop", "dte", "dtr")
SIZE_TERM = "coop-size-term"
ABLATIONS = ("coop-no-partition", "coop-copy-on-write", "coop-no-window", SIZE_TERM)
_RATIOS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)

type Rows = Sequence[Any]


def networks(rows: Rows) -> list[str]:
    found = {row.network for row in rows}
    return [network for network in PAPER if network in found]


def of(rows: Rows, network: str, policy: str) -> dict[float, Any]:
    """Feasible rows by ratio."""
    return {
        row.ratio: row
        for row in rows
        if row.network == network and row.policy == policy and row.is_feasible
    }


def common(rows: Rows, network: str) -> list[float]:
    """Ratios that are feasible for all three policies, at which something evicts."""
    each = [of(rows, network, policy) for policy in MAIN]
    ratios = set.intersection(*(set(found) for found in each))
    return sorted(r for r in ratios if any(found[r].searches for found in each))


def tables(rows: Rows) -> str:
    """All tables, as Markdown."""
    parts = [
        "# The Coop paper's evaluation, simulated\n",
        "Written by `python -m benchmarks.paper`; [benchmarks.md](../benchmarks.md) "
        "says what was run. A dash is an infeasible budget.\n",
        "## Claims\n",
        _claims(rows),
        "\n## Compute overhead\n",
        _by_ratio(rows, MAIN, lambda row: f"{row.overhead:.3f}"),
        "\n## Smallest feasible budget\n",
        _smallest(rows),
        "\n## Search latency, ms of processor time in all (chunks looked at)\n",
        _by_ratio(rows, MAIN, _latency),
        "\n## Fragmentation\n",
        _by_ratio(rows, MAIN, lambda row: f"{row.fragmentation:.3f}"),
        "\n## Ablations: compute overhead\n",
        _by_ratio(rows, ("coop", *ABLATIONS), lambda row: f"{row.overhead:.3f}"),
        "\n## Ablations: fragmentation\n",
        _by_ratio(rows, ("coop", *ABLATIONS), lambda row: f"{row.fragmentation:.3f}"),
    ]
    return "\n".join(parts) + "\n"


def _latency(row: Any) -> str:
    return f"{row.search_seconds * 1e3:.0f} ({row.chunks_searched / 1e3:.0f}k)"


def _table(head: Sequence[str], body: Sequence[Sequence[str]], left: int = 1) -> str:
    rule = ["---"] * left + ["--:"] * (len(head) - left)
    lines = [head, rule, *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _by_ratio(rows: Rows, policies: Sequence[str], cell: Callable[[Any], str]) -> str:
    body = []
    for network in networks(rows):
        for policy in policies:
            found = of(rows, network, policy)
            cells = (cell(found[r]) if r in found else "-" for r in _RATIOS)
            body.append([network, policy, *cells])
    return _table(["network", "policy", *(f"{r:g}" for r in _RATIOS)], body, 2)


def smallest(rows: Rows, network: str, policy: str) -> float:
    """The smallest feasible ratio; infinity if there is none."""
    return min(of(rows, network, policy), default=float("inf"))


def _smallest(rows: Rows) -> str:
    policies = (*MAIN, *ABLATIONS)
    body = []
    for network in networks(rows):
        least = {policy: smallest(rows, network, policy) for policy in policies}
        body.append(
            [
                network,
                *(f"{least[policy]:.3f}" for policy in policies),
                f"{least['dtr'] / least['coop']:.2f}",
                f"{least['dte'] / least['coop']:.2f}",
            ]
        )
    return _table(["network", *policies, "dtr / coop", "dte / coop"], body)


def _claims(rows: Rows) -> str:
    """Per network, whether Coop is at least as good as both others."""
    body = []
    for network in networks(rows):
        found = {policy: of(rows, network, policy) for policy in (*MAIN, SIZE_TERM)}
        ratios = common(rows, network)
        least = {policy: smallest(rows, network, policy) for policy in MAIN}
        body.append(
            [
                network,
                _yes(least["coop"] <= min(least["dte"], least["dtr"])),
                *(
                    _share_of(found, ratios, metric)
                    for metric in (
                        "overhead",
                        "fragmentation",
                        "search_seconds",
                        "chunks_searched",
                    )
                ),
                _worst(found, ratios),
                _share_of(found, ratios, "overhead", SIZE_TERM),
                _share_of(found, ratios, "chunks_searched", SIZE_TERM),
            ]
        )
    head = [
        "network",
        "smallest budget",
        "overhead",
        "fragmentation",
        "search time",
        "chunks searched",
        "overhead, median less best other",
        "size term: overhead",
        "size term: chunks searched",
    ]
    legend = (
        "Whether Coop is at most DTR and DTE: in its smallest budget, and in how many "
        "of the budgets that all three reach. The last two columns: Coop with its "
        "`h` divided by the tensor's bytes, as DTR's is.\n"
    )
    return f"{legend}\n{_table(head, body)}\n\n{_savings(rows)}"


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


def _share_of(
    found: dict[str, dict], ratios: Sequence[float], metric: str, ours: str = "coop"
) -> str:
    def value(policy: str, ratio: float) -> float:
        return getattr(found[policy][ratio], metric)

    good = sum(
        value(ours, r) <= min(value("dte", r), value("dtr", r)) * (1 + 1e-9)
        for r in ratios
        if r in found[ours]
    )
    return f"{good} of {len(ratios)}"


def _worst(found: dict[str, dict], ratios: Sequence[float]) -> str:
    def overhead(policy: str, ratio: float) -> float:
        return found[policy][ratio].overhead

    if not ratios:
        return "-"
    return f"{
        statistics.median(
            overhead('coop', r) - min(overhead('dte', r), overhead('dtr', r))
            for r in ratios
        ):+.4f}"


def _savings(rows: Rows) -> str:
    """The largest ratio of smallest budgets."""
    lines = []
    for other in ("dtr", "dte"):
        ratio, network = max(
            (smallest(rows, n, other) / smallest(rows, n, "coop"), n)
            for n in networks(rows)
        )
        lines.append(
            f"Largest {other.upper()} minimum / Coop minimum: {ratio:.2f}, {network}."
        )
    return "\n".join(lines)
