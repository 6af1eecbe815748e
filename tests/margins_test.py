"""Room left beside the fullest place of a schedule: by eye, at random, its effect."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from validate_test import random_problem

from benchmarks.optimum_problems import layered
from coop_jax._planning import planner
from coop_jax._planning.crew import open_search
from coop_jax._planning.margins import with_margins
from coop_jax._planning.planner import Effort, Planned, plan, program_order, smallest
from coop_jax._planning.types import Op, Problem, Value
from coop_jax._planning.validate import live_bytes, validate

QUICK = Effort(rounds=5, time_limit=5.0)


def as_planned(problem: Problem) -> Planned:
    order = problem.program_order
    peak = max(live_bytes(problem, order))
    return Planned(order, program_order(problem), peak, peak, problem.cost(order), True)


def test_what_piles_up_leaves_less_room_before_and_after() -> None:
    """100 bytes are alive throughout, 50 more from the second op on, all at op 3."""
    problem = Problem(
        ops=(
            Op("first", (0,), (1,), 1.0),
            Op("second", (1,), (2,), 1.0),
            Op("brief", (2,), (3,), 1.0),
            Op("fullest", (1, 2, 3), (4,), 1.0),
            Op("last", (1, 4), (5,), 1.0),
        ),
        values=(
            Value("x", 0, is_argument=True),
            Value("long", 100),
            Value("later", 50),
            Value("brief", 10),
            Value("small", 40),
            Value("y", 0, is_output=True),
        ),
        alignment=1,
    )
    margins = with_margins(problem, as_planned(problem), 0.3)
    # Of the 200 at op 3, 100 are alive at op 0, 160 at op 2 and 140 at op 4.
    idle = {
        k: op.workspace for k, op in enumerate(margins.problem.ops) if not op.outputs
    }
    assert idle == {0: 30, 3: 12, 6: 18}
    assert margins.homes == (1, 2, 4, 5, 7)
    ran = ((0,), (1, 6), (2, 6), (3,), (4,), (5,), (6,), (7,))
    assert margins.without(ran) == ((0, 4), (1, 4), (2,), (3,), (4,))


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.integers(0, 2**32), st.floats(0.4, 1.0))
def test_a_schedule_with_margins_is_one_without(seed: int, share: float) -> None:
    problem = random_problem(seed)
    margins = with_margins(problem, as_planned(problem), 0.3)
    assert margins.without(program_order(margins.problem)) == program_order(problem)
    pool = math.ceil(share * max(live_bytes(problem, problem.program_order), default=0))
    planned = plan(margins.problem, pool, QUICK)
    positions = margins.without(planned.positions)
    groups = [
        [op for op, p in enumerate(positions) if k in p] for k in range(len(positions))
    ]
    schedule = tuple(op for group in groups for op in group)
    validate(problem, schedule)
    assert problem.cost(schedule) <= planned.cost * (1 + 1e-9)


def test_where_packing_loses_bytes_margins_save_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of random nets with gradients, where the smallest packs badly."""
    problems = [layered(seed, 60) for seed in (0, 3, 11)]

    def sizes() -> list[int]:
        return [smallest(problem, is_packed=True).size for problem in problems]

    with_room = sizes()
    monkeypatch.setattr(planner, "_MARGINS", ())
    without = sizes()
    # Of those that are as small, the cheapest is taken.
    assert all(a <= 1.005 * b for a, b in zip(with_room, without, strict=True))
    assert sum(with_room) < 0.96 * sum(without)


def test_beside_the_smallest_plan_are_cheaper_ones_a_little_larger() -> None:
    """Where plans for a little more start, they cost no more than these."""
    problems = [layered(seed, 60) for seed in (0, 3, 11)]
    found = [(problem, smallest(problem, is_packed=True)) for problem in problems]
    assert any(least.nearby for _, least in found)
    for problem, least in found:
        for positions in least.nearby:
            search = open_search(problem, least.size, Effort(), is_packed=True)
            near = search.at(positions)
            validate(problem, near.schedule)
            assert least.size <= near.size <= 1.1 * least.size
            assert near.cost < least.cost
            again = plan(problem, near.size, Effort(), [positions], is_packed=True)
            assert again.cost <= near.cost


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
