"""Several searches at once: the same plans however many there are."""

import itertools
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from validate_test import random_problem

from coop_jax._planning import crew
from coop_jax._planning.crew import Crew, Way
from coop_jax._planning.library import library
from coop_jax._planning.planned import Effort, Planned
from coop_jax._planning.planner import plan, program_order, smallest
from coop_jax._planning.retention import Retention
from coop_jax._planning.types import Problem

EFFORT = Effort(rounds=4, moves=400)


def ways(problem: Problem) -> Iterator[Way]:
    order = program_order(problem)
    return (Way(order, 0.3, turn % 2 == 1, turn) for turn in range(8))


@pytest.fixture(params=[1, 2, 5])
def processors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(crew, "_processors", lambda: request.param)
    return request.param


def one_after_the_other(problem: Problem, pool: int) -> list[Planned]:
    found = []
    for way in ways(problem):
        with Crew(problem, pool, EFFORT, True) as alone:
            found += results(alone.follow([way], pool, EFFORT))
    return found


def results(followed: Iterable[tuple[Way, Planned]]) -> list[Planned]:
    return [found for _, found in followed]


def with_uneven_costs(problem: Problem) -> Problem:
    """Costs whose sums round differently in another order."""
    ops = (replace(op, cost=op.cost + 0.1 * k) for k, op in enumerate(problem.ops))
    return replace(problem, ops=tuple(ops))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.usefixtures("processors")
def test_what_a_way_comes_to_depends_on_the_way_alone(seed: int) -> None:
    problem = with_uneven_costs(random_problem(seed, 80))
    pool = int(0.6 * Retention(problem).peak())
    expected = one_after_the_other(problem, pool)
    assert len(set(expected)) > 1
    with Crew(problem, pool, EFFORT, True) as several:
        # The second time in searches that have been used before.
        for _ in range(2):
            found = list(several.follow(ways(problem), pool, EFFORT))
            assert found == list(zip(ways(problem), expected, strict=True))
            assert list(several.send(ways(problem), pool, EFFORT)) == expected


def test_plans_are_the_same_on_any_number_of_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seed in range(4):
        problem = with_uneven_costs(random_problem(seed, 80))
        pool = int(0.6 * Retention(problem).peak())
        plans = []
        for count in (1, 4):
            monkeypatch.setattr(crew, "_processors", lambda count=count: count)
            plans.append(
                (
                    plan(problem, pool, EFFORT, is_packed=True),
                    smallest(problem, EFFORT, is_packed=True),
                )
            )
        assert plans[0] == plans[1]


@pytest.mark.skipif(library() is None, reason="in Python one search works at a time")
def test_they_work_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "_processors", lambda: 3)
    problem, meeting = random_problem(0, 30), threading.Barrier(3, timeout=60)
    follow = crew._follow

    def met(search, *rest):
        if threading.current_thread() is not threading.main_thread():
            meeting.wait()
        return follow(search, *rest)

    monkeypatch.setattr(crew, "_follow", met)
    with Crew(problem, 10**9, EFFORT, False) as several:
        found = several.follow(itertools.islice(ways(problem), 7), 10**9, EFFORT)
        assert len(list(found)) == 7
        # Nor is the first waited for where others are sure to be needed.
        three = itertools.islice(ways(problem), 3)
        assert len(list(several.follow(three, 10**9, EFFORT, waits=False))) == 3
        assert (
            len(list(several.send(itertools.islice(ways(problem), 3), 10**9, EFFORT)))
            == 3
        )


def test_something_else_is_done_beside_what_is_followed() -> None:
    problem, followed = random_problem(0, 30), threading.Event()
    with Crew(problem, 10**9, EFFORT, False) as several:

        def waits(search: crew.AnySearch) -> Planned:
            assert followed.wait(timeout=60)
            return search.at(program_order(problem))

        under_way = several.meanwhile(waits)
        next(several.follow(ways(problem), 10**9, EFFORT))
        followed.set()
        assert under_way.result() == several.lead.at(program_order(problem))


@pytest.mark.usefixtures("processors")
def test_a_start_may_be_found_on_the_way_or_not_at_all() -> None:
    problem = random_problem(0, 80)
    pool = int(0.6 * Retention(problem).peak())
    expected = one_after_the_other(problem, pool)
    late: list[Way] = []
    for way in ways(problem):
        late += [replace(way, start=lambda start=way.start: start)]
        late += [replace(way, start=lambda: None)]
    with Crew(problem, pool, EFFORT, True) as crew_:
        assert results(crew_.follow(late, pool, EFFORT)) == expected


def test_what_goes_wrong_in_a_way_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_):
        raise MemoryError("no room")

    problem = random_problem(0, 30)
    with Crew(problem, 10**9, EFFORT, False) as several:
        found = several.follow(ways(problem), 10**9, EFFORT)
        next(found)
        monkeypatch.setattr(crew, "_follow", fails)
        with pytest.raises(MemoryError):
            list(found)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
