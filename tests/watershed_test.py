"""Where the clock is put forward, and the calls that do it, without a GPU."""

import random
from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from validate_test import random_problem

from coop_jax._fitting.watershed import Watershed
from coop_jax._planning.buffer_assignment import assign, packed, schedule_buffers
from coop_jax._planning.types import Problem


def where(problem: Problem, parts: Sequence[Sequence[int]]) -> int | None:
    """The first part that the watershed is in front of."""
    watershed = Watershed(problem, parts, range(len(parts)))
    return next((i for i in range(len(parts)) if watershed.is_at(i)), None)


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    """Problems whose program order packs better with a watershed."""
    made = (random_problem(seed, 40, alignment=1) for seed in range(60))
    possible = [replace(problem, has_watershed=True) for problem in made]
    found = [p for p in possible if packed(p, p.program_order).watershed is not None]
    assert len(found) > 3
    return found


def test_with_a_part_for_each_op_it_is_where_the_planner_puts_it(problems) -> None:
    for problem in problems:
        order = problem.program_order
        at = where(problem, [[op] for op in order])
        # What is next to it is looked at too.
        buffers = schedule_buffers(problem, order)
        assert at is not None
        least = assign(buffers, problem.alignment, [at])
        assert least.watershed == at
        assert least.peak <= packed(problem, order).peak


def test_it_is_in_front_of_a_part_near_the_fullest_place(problems) -> None:
    rng, gains = random.Random(0), 0
    for problem in problems:
        order = problem.program_order
        cuts = sorted(rng.sample(range(1, len(order)), 12))
        ends = [*cuts, len(order)]
        parts = [order[a:b] for a, b in zip([0, *cuts], ends, strict=True)]
        at = where(problem, parts)
        if at is None:
            continue
        gains += 1
        start = sum(map(len, parts[:at]))
        buffers = schedule_buffers(problem, order)
        assert assign(buffers, 1, [start]).peak < assign(buffers, 1).peak
    assert gains


def test_there_is_none_where_it_gains_nothing_or_xla_runs_what_it_is_made_of(
    problems,
) -> None:
    for problem in problems:
        parts = [[op] for op in problem.program_order]
        assert where(replace(problem, has_watershed=False), parts) is None
        assert Watershed(problem, parts, []).is_at(0) is False
    plain = 0
    for seed in range(20):
        problem = replace(random_problem(seed, 40, alignment=1), has_watershed=True)
        parts = [[op] for op in problem.program_order]
        at = where(problem, parts)
        size = packed(problem, problem.program_order)
        if at is None:
            plain += 1
            assert size.watershed is None
    assert plain > 3
    assert where(Problem((), (), has_watershed=True), []) is None


def test_more_buffers_come_and_go_than_there_are_and_in_between(problems) -> None:
    problem = problems[0]
    parts = [[op] for op in problem.program_order]

    def step(x):
        watershed = Watershed(problem, parts, range(len(parts)))
        (x,) = watershed.pass_over([jnp.sin(x)])
        x, byte = lax.optimization_barrier((x, watershed.touched()))
        watershed.passed(byte)
        assert watershed.touched() is None
        return jnp.exp(x)

    text = (
        jax.jit(step).trace(jnp.ones(8)).lower(lowering_platforms=("cuda",)).as_text()
    )
    lines = [line.strip() for line in text.splitlines() if " = " in line]
    kinds = ("sine", "optimization_barrier", "AllocateBuffer", "exponential")
    ran = [next((k for k in kinds if k in line), None) for line in lines]
    ran = [kind for kind in ran if kind is not None]
    *first, last, end = ran
    assert first[:2] == ["sine", "optimization_barrier"] and end == "exponential"
    assert last == "AllocateBuffer" and first[-1] == "optimization_barrier"
    calls = [line for line in lines if "AllocateBuffer" in line]
    assert len(calls) == len(first) - 3 + 1
    results = sum(line.split("->")[1].count("tensor<1xui8>") for line in calls[:-1])
    assert results >= 2 * len(schedule_buffers(problem, problem.program_order))
    # Only the last, which nothing reads, has to be told to stay.
    assert ["has_side_effect = true" in line for line in calls] == [
        *(False for _ in calls[:-1]),
        True,
    ]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
