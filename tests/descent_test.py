"""Ways down: what strides and fresh starts lead to; with noise some lead lower."""

import dataclasses

import pytest
from planner_test import CHEAP_AND_DEAR, QUICK

from benchmarks.optimum_problems import layered
from coop_jax._planning import descent, planner
from coop_jax._planning.descent import WayDown, deepen, descend
from coop_jax._planning.planner import Effort, plan, smallest
from coop_jax._planning.refine import LocalSearch
from coop_jax._planning.retention import Retention
from coop_jax._planning.validate import live_bytes, validate


def test_a_stride_down_that_is_missed_counts_for_as_far_as_it_went(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = plan(CHEAP_AND_DEAR, 100)
    sizes = iter([99, 98, 98])
    search = LocalSearch(Retention(CHEAP_AND_DEAR), 100, Effort())
    monkeypatch.setattr(
        search,
        "reach",
        lambda _: dataclasses.replace(start, size=next(sizes), peak=100, fits=False),
    )
    deepest = deepen(search, dataclasses.replace(start, size=100, fits=True), Effort())
    assert (deepest.size, deepest.fits) == (98, True)


def test_a_fresh_start_that_ends_far_above_what_is_known_is_not_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = LocalSearch(Retention(CHEAP_AND_DEAR), 100, QUICK)
    known = dataclasses.replace(plan(CHEAP_AND_DEAR, 100), size=100)
    made = []

    def reach(start, noise, is_quick):
        made.append(is_quick)
        return dataclasses.replace(known, size=105 if is_quick else 101, fits=False)

    monkeypatch.setattr(search, "at", lambda _: known)
    monkeypatch.setattr(search, "reach", reach)
    descend(search, 1, WayDown())
    assert made.count(True) == 1
    assert made.count(False) > 3


def test_a_way_down_by_eye() -> None:
    # Op 2 reads `dear`, writes `small` and has 4 bytes of workspace.
    search = LocalSearch(Retention(CHEAP_AND_DEAR), 100, QUICK)
    for noise, seed in ((0.0, 0), (0.3, 1)):
        found, way = descend(search, 9, WayDown(noise, seed))
        assert (found.fits, found.size) == (True, 9)
        assert not descend(search, 8, way)[0].fits


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_way_down_depends_on_nothing_before_it(noise: float) -> None:
    for seed in range(4):
        problem = layered(seed, 20)
        search = LocalSearch(Retention(problem), 100, QUICK)
        first, _ = descend(search, 1, WayDown(noise, seed))
        validate(problem, first.schedule)
        assert first.size == max(live_bytes(problem, first.schedule))
        descend(search, 1, WayDown(0.3, seed + 1))
        assert descend(search, 1, WayDown(noise, seed))[0] == first


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_way_that_was_gone_comes_to_the_same_without_being_gone_again(
    noise: float,
) -> None:
    made = []

    class Counting(LocalSearch):
        def reach(self, start, noise=0.0, is_quick=False):
            made.append(start)
            return super().reach(start, noise, is_quick)

    for seed in range(4):
        problem = layered(seed, 20)
        search = Counting(Retention(problem), 100, QUICK)
        least, known = descend(search, 1, WayDown(noise, seed))
        most = max(live_bytes(problem, problem.program_order))
        targets = [least.size + (most - least.size) * k // 5 for k in range(1, 5)]
        anew = [descend(search, target, WayDown(noise, seed)) for target in targets]
        # One that was gone for more is gone on.
        assert descend(search, 1, anew[-1][1]) == (least, known)
        made.clear()
        for target, (found, _) in zip(targets, anew, strict=True):
            assert descend(search, target, known) == (found, known)
        assert descend(search, 1, known) == (least, known)
        assert len(made) == len(targets)


def test_plans_and_the_smallest_share_the_ways_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, ways_down = layered(1, 40), {}
    least = smallest(problem, QUICK, ways_down)
    gone = dict(ways_down)
    assert set(gone) == set(range(1 + planner._NOISY_TO_THE_FLOOR))
    asked = []

    def descend_again(search, target, way):
        asked.append(way.seed)
        return descend(search, target, way)

    monkeypatch.setattr(planner, "descend", descend_again)
    monkeypatch.setattr(descent, "_gone", None)  # None may be gone again.
    pool = min(way.passed[-1].size for way in gone.values())
    found = plan(problem, pool, QUICK, [least.positions], ways_down)
    assert found.fits
    assert sorted(asked) == sorted(gone)
    assert ways_down == gone


def test_where_a_way_leads_is_known_as_far_as_it_was_gone() -> None:
    search = LocalSearch(Retention(CHEAP_AND_DEAR), 100, QUICK)
    found, way = descend(search, 12, WayDown())
    assert way.leads(found.size, way.moves)
    assert not way.leads(found.size, way.moves + 1)
    assert not way.leads(8, way.moves)
    _, way = descend(search, 8, way)
    assert way.leads(8, way.moves)


def test_with_ways_down_with_noise_less_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problems = [layered(seed, 40) for seed in range(12)]
    noisy = [smallest(problem, QUICK).size for problem in problems]
    monkeypatch.setattr(planner, "_NOISY_TO_THE_FLOOR", 0)
    quiet = [smallest(problem, QUICK).size for problem in problems]
    assert all(less <= more for less, more in zip(noisy, quiet, strict=True))
    assert sum(less < more for less, more in zip(noisy, quiet, strict=True)) > 0


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
