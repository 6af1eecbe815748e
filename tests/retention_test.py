"""The state of the planner, against the oracle that recomputes everything."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from validate_test import random_problem

from coop_jax._planning.retention import Edit, Gap, Retention
from coop_jax._planning.types import Op, Problem, Value
from coop_jax._planning.validate import live_bytes, validate

seeds = st.integers(0, 2**32)

# x -> big (8 bytes) -> small (2) -> grad (4); the last op reads big, small and grad.
BY_EYE = Problem(
    ops=(
        Op("big", (0,), (1,), cost=3.0),
        Op("small", (1,), (2,), cost=1.0),
        Op("grad", (2,), (3,), cost=1.0, workspace=5),
        Op("new", (1, 2, 3), (4,), cost=1.0),
    ),
    values=(
        Value("x", 0, is_argument=True),
        Value("big", 8),
        Value("small", 2),
        Value("grad", 4),
        Value("new", 0, is_output=True),
    ),
)


def positions_of_steps(state: Retention) -> Iterator[int]:
    for position, group in enumerate(state.groups):
        yield from [position] * len(group)


def naive_bytes_at(state: Retention) -> list[int]:
    """The peak of each position by the oracle; a position may have lost its op."""
    alive = live_bytes(state.problem, state.schedule())
    at = [0] * len(state.problem.ops)
    for position, size in zip(positions_of_steps(state), alive, strict=True):
        at[position] = max(at[position], size)
    return at


def check(state: Retention) -> None:
    """What the state says is what the oracle says."""
    schedule = state.schedule()
    validate(state.problem, schedule)
    assert state.peak() == max(live_bytes(state.problem, schedule), default=0)
    naive = naive_bytes_at(state)
    for position, group in enumerate(state.groups):
        if group:
            assert state.bytes_at[position] == naive[position], position
        else:
            # Nothing runs, so what is alive through here is also alive before.
            assert state.bytes_at[position] <= state.peak()
    assert state.cost == pytest.approx(state.problem.cost(schedule))


def everything(state: Retention) -> tuple:
    """All that an undone edit must leave as it was."""
    state.flush()
    return (
        [list(runs) for runs in state.runs],
        [list(group) for group in state.groups],
        [list(reads) for reads in state.reads],
        [list(segments) for segments in state.segments],
        state.bytes_at.tolist(),
    )


def random_edit(state: Retention, rng: random.Random, log: list[Edit]) -> None:
    """A rematerialization added, swept or removed, wherever that is allowed."""
    length = state.length
    op, position = rng.randrange(length), rng.randrange(length)
    kind = rng.choice(("insert", "insert and sweep", "remove"))
    if kind == "remove":
        moved = state.moved_or_rematerialized()
        if moved:
            state.remove(*rng.choice(moved), log)
    elif state.may_run(op, position):
        state.insert(op, position, log)
        if kind == "insert and sweep":
            state.sweep([op], log)


def test_starts_as_the_program_order() -> None:
    state = Retention(BY_EYE)
    assert state.schedule() == BY_EYE.program_order
    assert (state.peak(), state.cost) == (8 + 2 + 4 + 5, 6.0)
    assert state.bytes_at.tolist() == [8, 10, 19, 14]
    assert state.remats() == state.moved_or_rematerialized() == []
    check(state)


def test_what_waits_for_its_reader_is_a_gap() -> None:
    # `big` waits while op 2 runs; `small` is read by op 2 and by the next, op 3.
    assert Retention(BY_EYE).gaps(1) == [Gap(1, 1, 3)]
    assert Retention(BY_EYE).gaps(9) == []


def test_a_rematerialization_frees_the_bytes_in_between() -> None:
    state, log = Retention(BY_EYE), []
    state.insert(0, 3, log)
    assert log == [Edit(0, 3, True)]
    assert state.schedule() == (0, 1, 2, 0, 3)
    assert state.remats() == [(0, 3)]
    assert (state.peak(), state.cost) == (8 + 2 + 4, 9.0)
    assert state.bytes_at.tolist() == [8, 10, 2 + 4 + 5, 14]
    check(state)
    state.undo(log)
    assert (log, state.peak(), state.cost) == ([], 19, 6.0)


def test_a_step_that_nothing_reads_any_more_is_swept_away() -> None:
    # Op 1 run again just before its first reader leaves its own step without one: the
    # op has moved, for free.
    state, log = Retention(BY_EYE), []
    state.insert(1, 2, log)
    state.sweep([1], log)
    assert state.schedule() == (0, 1, 2, 3)
    assert state.runs[1] == [2]
    assert state.cost == 6.0
    state.remove(1, 2, log)
    assert state.runs[1] == [1]
    assert state.schedule() == (0, 1, 2, 3)


def test_nothing_runs_where_it_may_not() -> None:
    problem = Problem(
        ops=(
            Op("read", (0,), (1,), cost=1.0),
            Op("draw", (), (2,), cost=1.0, is_recomputable=False),
            Op("over", (1, 2), (3,), cost=1.0),
            Op("use", (1, 2, 3), (4,), cost=1.0),
        ),
        values=(
            Value("x", 0, is_argument=True),
            Value("read", 4),
            Value("draw", 4),
            Value("new x", 0, is_output=True, overwrites=0),
            Value("use", 4, is_output=True),
        ),
    )
    state = Retention(problem)
    assert state.may_run(0, 2)
    assert not state.may_run(0, 3), "reads x after it was overwritten"
    assert not state.may_run(1, 3), "draws again"
    assert not state.may_run(2, 3), "overwrites x again"
    assert not state.may_run(0, 0), "runs there already"
    assert not state.may_run(3, 2), "runs before its inputs"


@settings(max_examples=300, deadline=None)
@given(seed=seeds, length=st.integers(1, 30))
def test_bytes_agree_with_the_oracle_after_any_edits(seed: int, length: int) -> None:
    rng = random.Random(seed)
    state = Retention(random_problem(seed, length))
    check(state)
    for _ in range(25):
        random_edit(state, rng, [])
        if rng.random() < 0.5:
            check(state)
    check(state)


@settings(max_examples=300, deadline=None)
@given(seed=seeds, length=st.integers(1, 30))
def test_undo_and_restore_leave_everything_as_it_was(seed: int, length: int) -> None:
    rng = random.Random(seed)
    state = Retention(random_problem(seed, length))
    for _ in range(rng.randrange(10)):
        random_edit(state, rng, [])
    before, cost, snapshot = everything(state), state.cost, state.snapshot()
    log: list[Edit] = []
    for _ in range(15):
        random_edit(state, rng, log)
    after, edits = everything(state), list(log)
    state.undo(log)
    assert log == []
    assert everything(state) == before
    assert state.cost == pytest.approx(cost)
    state.redo(edits)
    assert everything(state) == after
    state.restore(snapshot)
    assert everything(state) == before
    assert state.cost == pytest.approx(cost)
    assert state.snapshot() == snapshot


@settings(max_examples=200, deadline=None)
@given(seed=seeds, length=st.integers(1, 30), share=st.floats(0.2, 1.0))
def test_overload_sums_what_is_over_the_budget(
    seed: int, length: int, share: float
) -> None:
    rng = random.Random(seed)
    state = Retention(random_problem(seed, length))
    for _ in range(10):
        random_edit(state, rng, [])
    budget = int(state.peak() * share)
    excess = [max(0, int(size) - budget) for size in state.bytes_at]
    assert state.overload(budget) == sum(excess)
    assert (state.overload(budget) == 0) == (state.peak() <= budget)


@settings(max_examples=200, deadline=None)
@given(seed=seeds, length=st.integers(1, 30))
def test_a_gap_is_between_two_uses_of_a_value_that_is_alive(
    seed: int, length: int
) -> None:
    rng = random.Random(seed)
    state = Retention(random_problem(seed, length))
    for _ in range(10):
        random_edit(state, rng, [])
    for gap in state.gaps(1):
        op = state.problem.producer[gap.value]
        between = [k for group in state.groups[gap.start + 1 : gap.end] for k in group]
        assert all(gap.value not in state.problem.ops[k].inputs for k in between)
        assert state.last_alive(gap.value, gap.end, length - 1) >= gap.end
        used = [gap.start in state.runs[op]]
        used += [
            gap.value in state.problem.ops[k].inputs for k in state.groups[gap.start]
        ]
        assert any(used)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
