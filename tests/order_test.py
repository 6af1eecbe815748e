"""What takes no bytes of the pool runs as soon as it can."""

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from validate_test import random_problem

from coop_jax._planning.order import early_order, in_order, longest_in_order
from coop_jax._planning.types import Op, Problem, Value
from coop_jax._planning.validate import live_bytes, validate

# Two weights (arguments 0, 1); their gradients are made one after the other, and both
# weights are updated at the end.
STEP = Problem(
    (
        Op("forward", (0, 1), (2,), 1.0),
        Op("gradient of 1", (2,), (3,), 1.0),
        Op("gradient of 0", (2, 1), (4,), 1.0),
        Op("update 0", (0, 4), (5,), 1.0),
        Op("update 1", (1, 3), (6,), 1.0),
    ),
    (
        Value("weight 0", 0, is_argument=True),
        Value("weight 1", 0, is_argument=True),
        Value("activation", 8),
        Value("gradient 1", 8),
        Value("gradient 0", 8),
        Value("new 0", 0, is_output=True, overwrites=0),
        Value("new 1", 0, is_output=True, overwrites=1),
    ),
)


def test_an_update_waits_for_its_gradient_and_the_readers_of_the_weight() -> None:
    # Update 1 after op 2, the last to read weight 1.
    assert early_order(STEP) == (0, 1, 2, 3, 4)
    apart = dataclasses.replace(STEP.ops[2], inputs=(2,))
    ops = (*STEP.ops[:2], apart, *STEP.ops[3:])
    assert early_order(dataclasses.replace(STEP, ops=ops)) == (0, 1, 4, 2, 3)


# A weight (0) and its moment (1) are updated by a gradient, the weight with a factor
# that is made of the number of the step (2), at the end of the program.
ADAM = Problem(
    (
        Op("gradient", (0,), (3,), 1.0),
        Op("rest", (3,), (4,), 1.0),
        Op("moment", (1, 3), (5,), 1.0),
        Op("next number", (2,), (6,), 1.0),
        Op("correction", (6,), (7,), 1.0),
        Op("update", (0, 5, 7), (8,), 1.0),
    ),
    (
        Value("weight", 0, is_argument=True),
        Value("moment", 0, is_argument=True),
        Value("number", 0, is_argument=True),
        Value("gradient", 4096),
        Value("rest", 4096, is_output=True),
        Value("new moment", 0, is_output=True, overwrites=1),
        Value("new number", 0, is_output=True, overwrites=2),
        Value("correction", 4),
        Value("new weight", 0, is_output=True, overwrites=0),
    ),
)


def test_a_weight_is_updated_with_its_moment_if_all_it_waits_for_is_a_scalar() -> None:
    assert early_order(ADAM) == (0, 2, 1, 3, 4, 5)
    assert early_order(ADAM, scalars_too=True) == (0, 2, 3, 4, 5, 1)


@pytest.mark.parametrize(
    ("op", "changed"),
    [
        # What the correction is made of takes bytes; it may run once, in its place;
        # the number of the step is read later, before it goes on.
        (4, {"outputs": (4,)}),
        (4, {"is_recomputable": False}),
        (1, {"inputs": (2, 3)}),
    ],
)
def test_what_is_no_scalar_or_cannot_run_yet_is_waited_for(op: int, changed) -> None:
    ops = list(ADAM.ops)
    ops[op] = dataclasses.replace(ops[op], **changed)
    if op == 4 and "outputs" in changed:
        ops[1] = dataclasses.replace(ops[1], outputs=(7,))
        ops[5] = dataclasses.replace(ops[5], inputs=(0, 5, 4))
    problem = dataclasses.replace(ADAM, ops=tuple(ops))
    assert early_order(problem, scalars_too=True) == early_order(problem)


def test_an_update_of_what_no_op_made_stays() -> None:
    counter = Op("count", (0,), (1,), 1.0)
    values = (
        Value("count", 0, is_argument=True),
        Value("next", 0, is_output=True, overwrites=0),
        Value("other", 8, is_output=True),
    )
    ops = (Op("other", (), (2,), 1.0), counter)
    assert early_order(Problem(ops, values)) == (0, 1)


def test_a_result_that_takes_bytes_stays_in_its_place() -> None:
    values = (Value("array", 8), Value("sum", 1), Value("result", 0, is_output=True))
    ops = (
        Op("array", (), (0,), 1.0),
        Op("other", (), (), 1.0),
        Op("sum", (0,), (1,), 1.0),
        Op("last", (), (), 1.0),
        Op("result", (1,), (2,), 1.0),
    )
    assert early_order(Problem(ops, values)) == (0, 1, 2, 4, 3)


@given(seed=st.integers(0, 2**32), length=st.integers(1, 40))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_the_order_is_valid_and_no_op_finds_more_bytes_alive(
    seed: int, length: int
) -> None:
    problem = random_problem(seed, length)
    order = early_order(problem)
    validate(problem, order)
    assert sorted(order) == list(problem.program_order)
    before = live_bytes(problem, problem.program_order)
    after = live_bytes(problem, order)
    done: set[int] = set()
    for step, op in enumerate(order):
        if done.issuperset(range(op)):
            assert after[step] <= before[op]
        done.add(op)
    assert early_order(in_order(problem, order)) == problem.program_order


@given(seed=st.integers(0, 2**32), length=st.integers(1, 40))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_scalars_run_early_take_their_own_bytes_at_most(seed: int, length: int) -> None:
    problem = random_problem(seed, length, alignment=8)
    order = early_order(problem, scalars_too=True)
    validate(problem, order)
    assert sorted(order) == list(problem.program_order)
    small = [v.size for v in problem.values if v.size <= problem.alignment]
    before = live_bytes(problem, problem.program_order)
    after = live_bytes(problem, order)
    assert max(after) <= max(before) + sum(small)


def test_all_but_what_runs_first_and_what_runs_last_keep_their_order() -> None:
    # The fourth runs in the first turn, the second in the last.
    assert longest_in_order([1, 4, 2, 0, 3]) == {0, 2, 4}
    assert longest_in_order([0, 1, 1, 2]) == {0, 1, 2, 3}
    assert longest_in_order([]) == set()


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), max_size=9))
def test_no_more_could_keep_their_order(turns: list[int]) -> None:
    found = sorted(longest_in_order(turns))
    kept = [turns[op] for op in found]
    assert kept == sorted(kept)
    longest = max(
        len(some)
        for k in range(len(turns) + 1)
        for some in itertools.combinations(turns, k)
        if list(some) == sorted(some)
    )
    assert len(found) == longest


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
