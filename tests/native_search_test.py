"""The planner's inner loop in C++, against the same in Python."""

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from retention_test import BY_EYE
from validate_test import random_problem

from coop_jax._planning import crew, library
from coop_jax._planning.buffer_assignment import assign, schedule_buffers
from coop_jax._planning.native_search import NativeSearch
from coop_jax._planning.packed_size import packed_size
from coop_jax._planning.planned import Effort, Planned
from coop_jax._planning.planner import plan, program_order, smallest
from coop_jax._planning.refine import LocalSearch
from coop_jax._planning.retention import Retention
from coop_jax._planning.types import Problem

# A library built otherwise, such as with sanitizers.
if "COOP_JAX_TEST_PLANNER" in os.environ:
    library.LIBRARY = Path(os.environ["COOP_JAX_TEST_PLANNER"])

pytestmark = pytest.mark.skipif(
    not library.LIBRARY.exists(),
    reason="the native library was not built: it needs a C++ compiler",
)

# Plans are the same where work ends them, not the clock, which Python needs long for.
EFFORT = Effort(rounds=4, moves=400, time_limit=600.0)


def both(
    problem: Problem, pool: int, is_packed: bool
) -> tuple[NativeSearch, LocalSearch]:
    return (
        NativeSearch(problem, pool, EFFORT, is_packed),
        LocalSearch(Retention(problem), pool, EFFORT, is_packed),
    )


def test_by_eye() -> None:
    # `big` (8) is alive beside the 4 + 5 of `grad`: 19 with `small`. Without it 11.
    native, python = both(BY_EYE, 14, is_packed=False)
    order = program_order(BY_EYE)
    assert native.at(order) == python.at(order)
    assert native.at(order).peak == 19
    found = native.reach(order)
    assert found.schedule == (0, 1, 2, 0, 3)
    assert found == python.reach(order)
    assert found.fits and found.cost == 9.0


@pytest.mark.parametrize("is_packed", [False, True])
@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    length=st.integers(1, 60),
    alignment=st.sampled_from((1, 64)),
    has_watershed=st.booleans(),
    has_durations=st.booleans(),
    noise=st.sampled_from((0.0, 0.3)),
    is_quick=st.booleans(),
    moves=st.sampled_from((-1, 0, 10, 4000)),
)
def test_every_step_is_the_same(
    is_packed: bool,
    seed: int,
    length: int,
    alignment: int,
    has_watershed: bool,
    has_durations: bool,
    noise: float,
    is_quick: bool,
    moves: int,
) -> None:
    problem = random_problem(seed, length, alignment)
    flags = {"has_watershed": has_watershed, "has_durations": has_durations}
    problem = replace(problem, **flags)
    native, python = both(problem, 0, is_packed)
    order = program_order(problem)
    start = native.at(order)
    assert start == python.at(order)
    for share in (0.9, 0.6, 0.3):
        native.pool = python.pool = int(share * start.size)
        native.moves_left = python.moves_left = native.moves
        options = (noise, is_quick)
        reached = native.reach(start.positions, *options)
        assert reached == python.reach(start.positions, *options)
        assert native.moves_left == python.moves_left
        if reached.peak <= native.pool:
            start = native.refine(reached, EFFORT)
            assert start == python.refine(reached, EFFORT)
            assert native.moves_left == python.moves_left
        if reached.fits:
            native.moves_left = python.moves_left = moves
            assert native.tightened(reached) == python.tightened(reached)


@settings(deadline=None)
@given(seed=st.integers(0, 10**6), length=st.integers(1, 60), at=st.integers(0, 61))
def test_packed_sizes_are_the_same(seed: int, length: int, at: int) -> None:
    made = random_problem(seed, length)
    buffers = schedule_buffers(made, made.program_order)
    for watersheds in ((), (at,), (at, at + 1)):
        for known in (True, False):
            problem = replace(made, has_durations=known)
            about = problem.alignment, watersheds
            expected = assign(buffers, *about, has_durations=known).peak
            assert packed_size(problem, made.program_order, watersheds) == expected


def in_python(monkeypatch: pytest.MonkeyPatch, call: Callable[[], Planned]) -> Planned:
    with monkeypatch.context() as patched:
        patched.setattr(crew, "library", lambda: None)
        return call()


@pytest.mark.parametrize("seed", range(6))
def test_plans_are_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(seed, 80)
    pool = int(0.6 * Retention(problem).peak())
    for call in (
        lambda: plan(problem, pool, EFFORT, is_packed=True),
        lambda: smallest(problem, EFFORT, is_packed=True),
    ):
        assert call() == in_python(monkeypatch, call)


def test_no_ops() -> None:
    problem = Problem((), ())
    assert plan(problem, 0).schedule == ()


@pytest.fixture
def reloading() -> Iterator[None]:
    """Looks for the library again, before the test and after it."""
    library.library.cache_clear()
    yield
    library.library.cache_clear()


@pytest.mark.usefixtures("reloading")
def test_without_the_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "lib.so")
    with caplog.at_level(logging.WARNING, "coop_jax"):
        assert plan(BY_EYE, 14).fits
        assert plan(BY_EYE, 14).fits
    said = [record.message for record in caplog.records]
    assert len(said) == 1 and "planning in Python" in said[0]


@pytest.mark.usefixtures("reloading")
def test_a_library_of_another_version(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "_INTERFACE", -1)
    with caplog.at_level(logging.WARNING, "coop_jax"):
        assert plan(BY_EYE, 14).fits
    assert "Install the package again" in caplog.text


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
