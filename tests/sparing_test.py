"""What another run of an op spares, where XLA makes one kernel of several."""

import math
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from validate_test import random_problem

from coop_jax._planning.types import Op, Problem, Value
from coop_jax._program.cost import DeviceRates
from coop_jax._program.sparing import Joining, with_spared

# A second for every byte, and one for a kernel.
RATES = DeviceRates(flops=1.0, bytes=1.0, launch=1.0, joins=True)
CALL, REDUCTION = Joining(False, False), Joining(True, False)
ELEMENTWISE = Joining(True, True)
SIZE = 8


def op(inputs: Iterable[int], output: int, seconds: float = 0.0) -> Op:
    """Takes seconds of arithmetic, and what it reads and writes of `SIZE`."""
    read = tuple(inputs)
    return Op(f"op{output}", read, (output,), seconds + SIZE * (len(read) + 1) + 1)


def softmax(late: Joining, idle: int = 40) -> tuple[Problem, list[Joining]]:
    """Scores, their exponentials, a sum of these, and much later who reads them."""
    values = [Value("x", 0, is_argument=True)]
    values += [Value(name, SIZE) for name in ("scores", "exp", "sum", "gradient")]
    values[3] = Value("sum", 0)
    ops = [op([0], 1, seconds=20.0), op([1], 2), op([2], 3)]
    kinds = [CALL, ELEMENTWISE, REDUCTION]
    for _ in range(idle):
        ops.append(Op("idle", (), (), 1.0))
        kinds.append(CALL)
    ops.append(op([2], 4))
    return Problem(tuple(ops), tuple(values)), [*kinds, late]


def seconds(problem: Problem) -> list[float]:
    return [op.cost for op in problem.ops if op.name != "idle"]


def test_exponentials_again_cost_less_than_nothing_which_their_scores_gain() -> None:
    problem, joining = softmax(late=ELEMENTWISE)
    assert seconds(problem) == [37, 17, 17, 17]
    found = with_spared(problem, joining, RATES)
    # Neither written (8), nor written again (8), nor read (8), nor a kernel (1): 8 of
    # what the scores take, which run again for this alone, are spared beside all 17.
    assert seconds(found) == [37 - 8, 0.01 * 17, 17, 17]
    assert found.cost(found.program_order) == problem.cost(problem.program_order)
    again = (0, 1, *range(2, len(problem.ops) - 1), 0, 1, len(problem.ops) - 1)
    assert found.cost(again) - found.cost(found.program_order) == pytest.approx(29.17)


def test_what_a_call_reads_is_written_again() -> None:
    problem, joining = softmax(late=CALL)
    assert with_spared(problem, joining, RATES) == problem


def test_what_a_call_reads_first_is_written_in_any_case() -> None:
    problem, joining = softmax(late=ELEMENTWISE)
    joining[2] = CALL
    found = with_spared(problem, joining, RATES)
    assert seconds(found) == [37, 0.01 * 17, 17, 17]


def test_scores_that_are_kept_themselves_gain_nothing() -> None:
    problem, joining = softmax(late=ELEMENTWISE)
    *ops, last = problem.ops
    last = Op("reads both", (1, 2), (4,), last.cost)
    problem = Problem((*ops, last), problem.values)
    assert seconds(with_spared(problem, joining, RATES))[0] == 37


def test_traffic_counts_by_its_rate() -> None:
    problem, joining = softmax(late=ELEMENTWISE)
    half = DeviceRates(flops=1.0, bytes=1.0, launch=1.0, traffic=0.5, joins=True)
    assert seconds(with_spared(problem, joining, half)) == [37, 17 - 12.5, 17, 17]


@settings(deadline=None)
@given(st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_no_cost_is_below_nothing_and_the_program_takes_what_it_took(seed, rng) -> None:
    problem = random_problem(seed, 30)
    kinds = [rng.choice([CALL, REDUCTION, ELEMENTWISE]) for _ in problem.ops]
    found = with_spared(problem, kinds, RATES)
    order = problem.program_order
    assert math.isclose(found.cost(order), problem.cost(order), rel_tol=1e-9)
    for before, after in zip(problem.ops, found.ops, strict=True):
        assert 0.0 <= after.cost <= before.cost


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
