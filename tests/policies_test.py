"""The planners by name: what the online ones keep, and what they ask the arena for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from validate_test import random_problem

from coop_jax._planning.buffer_assignment import assign, schedule_buffers
from coop_jax._planning.planner import Effort
from coop_jax._planning.policies import PLANNERS
from coop_jax._planning.types import Op, Problem, Value
from coop_jax._planning.validate import live_bytes, validate

ONLINE = sorted(PLANNERS.keys() - {"coop"})

# In op 3 something has to go. The gradient is the cheapest, but by the time of the
# update the activation that it is computed from is gone.
TRAINING = Problem(
    (
        Op("dear", (0,), (1,), 100.0),
        Op("gradient", (1,), (2,), 1.0, is_expensive=True),
        Op("other", (0,), (3,), 5.0),
        Op("product", (1,), (4,), 10.0, is_expensive=True),
        Op("loss", (3, 4), (5,), 10.0, is_expensive=True),
        Op("update", (0, 2), (6,), 1.0),
    ),
    (
        Value("weight", 0, is_argument=True),
        Value("activation", 4),
        Value("gradient", 4),
        Value("other", 4),
        Value("product", 4),
        Value("loss", 0, is_output=True),
        Value("new weight", 0, is_output=True, overwrites=0),
    ),
    alignment=1,
)


@pytest.mark.parametrize("policy", ONLINE)
def test_gradients_are_kept_while_that_fits(policy: str) -> None:
    found = PLANNERS[policy].plan(TRAINING, 12, Effort(), (), {})
    assert found.fits
    assert found.schedule == (0, 1, 2, 3, 2, 4, 5)


@pytest.mark.parametrize("policy", ONLINE)
def test_gradients_are_evicted_where_nothing_else_fits(policy: str) -> None:
    product = Op("product", (1, 3), (4,), 10.0, is_expensive=True)
    ops = (*TRAINING.ops[:3], product, *TRAINING.ops[4:])
    problem = Problem(ops, TRAINING.values, alignment=1)
    found = PLANNERS[policy].plan(problem, 12, Effort(), (), {})
    assert found.fits
    assert found.schedule == (0, 1, 2, 3, 4, 0, 1, 5)


@pytest.mark.parametrize("policy", ONLINE)
@given(seed=st.integers(0, 2**32), share=st.floats(0.4, 1.0))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_an_online_plan_is_valid_and_packs_within_the_pool(
    policy: str, seed: int, share: float
) -> None:
    problem = random_problem(seed, 30)
    pool = int(share * max(live_bytes(problem, problem.program_order), default=0))
    found = PLANNERS[policy].plan(problem, pool, Effort(), (), {})
    validate(problem, found.schedule)
    packed = assign(schedule_buffers(problem, found.schedule), problem.alignment)
    assert packed.peak == found.size
    assert not found.fits or found.size <= pool


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
