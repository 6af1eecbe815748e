"""What is made of little runs right before its first reader."""

import random
from dataclasses import replace
from itertools import chain

import pytest
from joining_test import reads_what_is_made
from validate_test import random_problem

from coop_jax._fitting.late import with_large_of_small_late
from coop_jax._planning.types import Op, Problem, Value
from coop_jax._planning.validate import live_bytes
from coop_jax._program.shelving import small_size

# A key, a mask drawn with it, and a product that the mask is for.
DROPOUT = Problem(
    (
        Op("key", (0,), (1,), 1.0),
        Op("mask", (1,), (2,), 1.0),
        Op("product", (5,), (3,), 1.0),
        Op("dropout", (2, 3), (4,), 1.0),
    ),
    (
        Value("seed", 0, is_argument=True),
        Value("key", 8),
        Value("mask", 1 << 20),
        Value("made", 1 << 22),
        Value("dropped", 1 << 22, is_output=True),
        Value("activations", 1 << 22),
    ),
)
PARTS = [[0], [1], [2], [3]]


def test_a_mask_is_drawn_right_before_what_reads_it() -> None:
    assert with_large_of_small_late(DROPOUT, PARTS) == [[0], [2], [1], [3]]


def test_of_several_readers_before_the_first() -> None:
    again = [[0], [1], [2], [3], [1], [2], [3]]
    late = [[0], [2], [1], [3], [2], [1], [3]]
    assert with_large_of_small_late(DROPOUT, again) == late
    both = (*DROPOUT.ops, Op("later", (2, 4), (6,), 1.0))
    values = (*DROPOUT.values, Value("last", 8, is_output=True))
    found = with_large_of_small_late(Problem(both, values), [*PARTS, [4]])
    assert found == [[0], [2], [1], [3], [4]]


@pytest.mark.parametrize(
    "value",
    [
        (1, Value("key", 1 << 20)),
        (2, Value("mask", 8)),
        (2, Value("mask", 1 << 20, overwrites=0)),
    ],
    ids=("of large", "small", "update"),
)
def test_anything_else_stays(value: tuple[int, Value]) -> None:
    values = list(DROPOUT.values)
    values[value[0]] = value[1]
    assert with_large_of_small_late(Problem(DROPOUT.ops, tuple(values)), PARTS) == PARTS


def test_a_result_that_nothing_reads_stays() -> None:
    values = (*DROPOUT.values, Value("noise", 1 << 20, is_output=True))
    problem = Problem((*DROPOUT.ops, Op("noise", (1,), (6,), 1.0)), values)
    parts = [[0], [4], [1], [2], [3]]
    assert with_large_of_small_late(problem, parts) == [[0], [4], [2], [1], [3]]


def test_it_stays_where_what_it_reads_is_overwritten() -> None:
    values = list(DROPOUT.values)
    values[3] = replace(values[3], overwrites=0)
    ops = list(DROPOUT.ops)
    ops[1] = replace(ops[1], inputs=(0,))
    problem = Problem(tuple(ops), tuple(values))
    assert with_large_of_small_late(problem, PARTS) == PARTS


def uneven(seed: int) -> Problem:
    """A random problem with large values and small ones."""
    rng, problem = random.Random(seed), random_problem(seed, length=30)
    factors = [rng.choice((1, 1 << 16)) for _ in problem.values]
    sized = zip(problem.values, factors, strict=True)
    values = tuple(replace(value, size=value.size * by) for value, by in sized)
    return replace(problem, values=values)


@pytest.mark.parametrize("seed", range(100))
def test_it_takes_no_more_but_for_keys(seed: int) -> None:
    problem = uneven(seed)
    found = with_large_of_small_late(problem, [[op] for op in problem.program_order])
    schedule = tuple(chain(*found))
    assert reads_what_is_made(problem, list(schedule))
    before, after = (live_bytes(problem, s) for s in (problem.program_order, schedule))
    least = small_size(problem)
    keys = sum(value.size for value in problem.values if value.size < least)
    assert max(after) <= max(before) + keys


def test_of_random_ones_some_move() -> None:
    parts = [[op] for op in range(30)]
    moved = [
        with_large_of_small_late(uneven(seed), parts) != parts for seed in range(100)
    ]
    assert 10 < sum(moved) < 90


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
