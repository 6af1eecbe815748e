"""Pictures, traces and words of a plan."""

import itertools
import json
import sys
import xml.etree.ElementTree as ElementTree

import pytest

import coop_jax
from coop_jax._report.text import timeline_text
from coop_jax._report.timeline import after
from tests.small_step import OPTIONS, SHAPES, small_plan, train_step

pytest.importorskip("matplotlib", reason="pictures need matplotlib")


@pytest.mark.parametrize(
    ("suffix", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")]
)
def test_images_are_of_the_kind_the_suffix_says(tmp_path, suffix, start) -> None:
    path = tmp_path / f"plan.{suffix}"
    small_plan().plot(path)
    assert path.read_bytes().startswith(start)
    if suffix == "svg":
        text = "".join(ElementTree.parse(path).getroot().itertext())
        assert "bytes alive" in path.read_text() or "bytes alive" in text


def test_a_step_left_as_written_is_drawn_too(tmp_path) -> None:
    plan = coop_jax.remat(train_step, 1.0, **OPTIONS).plan(*SHAPES)
    for name in ("plan.png", "plan.html"):
        plan.plot(tmp_path / name)
    assert "# planned" in timeline_text(plan)


def test_the_text_shows_both_programs_and_the_budget() -> None:
    plan = small_plan()
    lines = timeline_text(plan, width=40, height=10).splitlines()
    chart = [line.partition("|")[2] for line in lines[:10]]
    assert all(len(line) == 40 for line in chart)
    heights = [sum(line[i] == "#" for line in chart) for i in range(40)]
    live = after(plan).live()
    # The bar where most is alive is the tallest.
    assert heights[live.argmax() * 40 // len(live)] == max(heights)
    assert any("-" in line for line in chart) and any("." in line for line in chart)
    assert "report_test" not in timeline_text(plan)
    assert "tests/small_step.py:" in timeline_text(plan)


def test_the_trace_has_slices_in_order_and_counters(tmp_path) -> None:
    plan = small_plan()
    plan.to_perfetto(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    for process, schedule in ((1, plan.schedule), (2, plan.problem.program_order)):
        mine = [event for event in events if event["pid"] == process]
        assert [e["ph"] for e in mine].count("M") == 1
        slices = [e for e in mine if e["ph"] == "X"]
        assert len(slices) == len(schedule)
        for one, following in itertools.pairwise(slices):
            assert one["ts"] + one["dur"] == pytest.approx(following["ts"])
        seconds = sum(e["dur"] for e in slices) / 1e6
        assert seconds == pytest.approx(plan.problem.cost(schedule))
    counters = [e for e in events if e["ph"] == "C" and e["pid"] == 1]
    assert [sum(e["args"].values()) for e in counters] == after(plan).live().tolist()
    again = [e for e in events if e.get("cat") == "recomputed"]
    assert len(again) == sum(after(plan).is_again)


def test_an_infeasible_budget_is_explained() -> None:
    with pytest.raises(coop_jax.BudgetError) as caught:
        coop_jax.remat(train_step, "150kB", **OPTIONS).plan(*SHAPES)
    plan = caught.value.plan
    assert plan.measured.total == caught.value.floor
    text = plan.explain()
    over = plan.measured.total - 150_000
    assert f"({over:,} bytes) more than" in text
    assert "no plan can change" in text.replace("\n", " ")
    assert "So no plan meets this budget" in text
    assert f"Raise the budget to {plan.measured.total:,} bytes" in text
    assert "Donate" not in text


def test_a_step_that_does_not_donate_is_told_to() -> None:
    plan = coop_jax.remat(train_step, "1GiB").plan(*SHAPES)
    assert "Donate the state (`donate_argnums`): " in plan.explain()
    assert "within" in plan.explain()


def test_a_suffix_that_says_nothing_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"end it with \.html or \.svg or"):
        small_plan().plot(tmp_path / "plan.doc")


def test_pictures_without_matplotlib_name_the_extra(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        small_plan().plot(tmp_path / "plan.png")
    small_plan().plot(tmp_path / "plan.html")


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
