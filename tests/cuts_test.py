"""Plans from minimum cuts: one by eye, then what they promise on random problems."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from validate_test import random_problem

from coop_jax._planning.cuts import cut_plans
from coop_jax._planning.planned import Positions
from coop_jax._planning.planner import Effort, plan
from coop_jax._planning.retention import Retention
from coop_jax._planning.types import Op, Problem, Schedule, Value
from coop_jax._planning.validate import live_bytes, validate

# The dear value (2 bytes) and the cheap one (6) are read again when the loss, which
# takes 8 bytes of its own, is done.
STEP = Problem(
    ops=(
        Op("dot", (0,), (1,), 10.0),
        Op("exp", (1,), (2,), 1.0),
        Op("sum", (2,), (3,), 1.0),
        Op("loss", (3,), (4,), 1.0, workspace=8),
        Op("back", (2, 4), (5,), 5.0),
        Op("back", (1, 5), (6,), 5.0),
    ),
    values=(
        Value("x", 0, is_argument=True),
        Value("dear", 2),
        Value("cheap", 6),
        Value("sum", 1),
        Value("loss", 1),
        Value("gradient", 1),
        Value("y", 0, is_output=True),
    ),
    alignment=1,
)


def schedule_of(positions: Positions) -> Schedule:
    steps = [(place, op) for op, places in enumerate(positions) for place in places]
    return tuple(op for _, op in sorted(steps))


def test_keeps_what_is_dear_and_computes_what_is_cheap_again():
    assert live_bytes(STEP, STEP.program_order) == [2, 8, 9, 18, 10, 3]
    as_written, both = (0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 0, 1, 4, 5)
    cheap_again = (0, 1, 2, 3, 1, 4, 5)
    assert max(live_bytes(STEP, cheap_again)) == 12
    assert max(live_bytes(STEP, both)) == 10
    for pool, expected in [
        (7, []),
        (8, [both]),
        (10, [both, cheap_again]),
        (11, [both, cheap_again]),
        (12, [cheap_again]),
        (17, [cheap_again, as_written]),
        (18, []),
    ]:
        assert list(map(schedule_of, cut_plans(STEP, pool))) == expected


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), length=st.integers(1, 30), share=st.floats(0.3, 1.1))
def test_they_are_valid_near_the_pool_and_a_plan_costs_no_more(
    seed: int, length: int, share: float
) -> None:
    problem = random_problem(seed, length)
    peak = max(live_bytes(problem, problem.program_order), default=0)
    pool = int(peak * share)
    found = list(cut_plans(problem, pool))
    assert len(found) <= 2
    planned = plan(problem, pool, Effort(rounds=2))
    for positions in found:
        schedule = schedule_of(positions)
        validate(problem, schedule)
        reached = max(live_bytes(problem, schedule), default=0)
        assert reached <= 1.3 * pool
        state = Retention(problem)
        state.restore(positions)
        assert state.peak() == reached
        if reached <= pool:
            assert planned.fits
            assert planned.cost <= problem.cost(schedule) * (1 + 1e-9)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
