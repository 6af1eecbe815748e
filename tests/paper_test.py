"""The paper's evaluation on a tiny workload: sweeps, tables, figures."""

from dataclasses import replace
from pathlib import Path

import pytest
from stream_test import layers, numbered

from coop_jax._planning.eviction import COOP, POLICIES
from coop_jax._planning.workload import workload

pytest.importorskip("matplotlib")

from benchmarks import paper, paper_figures, paper_report
from benchmarks.paper import Row

ROW = Row("unet", "coop", 0.5, True, 1.1, 1, 1, 1, 1, 0.1, 9, 0.2, "")


def test_a_sweep_goes_down_until_two_budgets_fail_and_tries_half_a_step() -> None:
    rows = paper.sweep("unet", workload(numbered(*layers(6, 2))), COOP, 0.05)
    assert [row.ratio for row in rows[:3]] == [1.0, 0.95, 0.9]
    *down, half = rows
    feasible = [row.is_feasible for row in down]
    assert feasible[0] and not any(feasible[-2:]) and feasible[-3]
    assert half.ratio == pytest.approx(down[-3].ratio - 0.025)
    assert all((row.overhead is None) == (not row.is_feasible) for row in rows)


def test_common_budgets_are_those_that_all_three_reach() -> None:
    rows = [
        replace(
            ROW, policy=policy, ratio=ratio, is_feasible=policy != "dtr" or ratio > 0.4
        )
        for policy in ("coop", "dte", "dtr", "coop-no-window")
        for ratio in (0.3, 0.5, 0.6)
    ]
    assert paper_report.common(rows, "unet") == [0.5, 0.6]
    assert paper_report.smallest(rows, "unet", "dtr") == 0.5
    assert paper_report.smallest(rows, "unet", "dte") == 0.3
    assert "| unet | yes | 2 of 2 |" in paper_report.tables(rows)
    worse = [replace(r, overhead=1.2) if r.policy == "coop" else r for r in rows]
    assert "| unet | yes | 0 of 2 | 2 of 2 |" in paper_report.tables(worse)
    assert "Largest DTR minimum / Coop minimum: 1.67, unet." in paper_report.tables(
        rows
    )


def test_tables_and_figures_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(paper, "load", lambda *_: workload(numbered(*layers(6, 2))))
    # One figure of curves will do; each takes seconds.
    one = {"search": paper_figures.CURVES["search"]}
    monkeypatch.setattr(paper_figures, "CURVES", one)
    rows = tmp_path / "rows.json"
    paper.main(["--network", "unet", "--fineness", "0.1", "--rows", str(rows)])
    paper.main(["--draw", str(rows), "--folder", str(tmp_path)])
    tables = capsys.readouterr().out
    for policy in POLICIES:
        assert f"| unet | {policy.name} |" in tables
    assert (tmp_path / "tables.md").read_text() == tables[:-1]
    assert {path.stem for path in tmp_path.glob("*.png")} == {"search", "smallest"}


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
