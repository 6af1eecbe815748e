"""Which ops of a plan have to be kernels of their own."""

import random
from itertools import chain

import pytest
from validate_test import random_problem

from coop_jax._fitting.parts import joined
from coop_jax._fitting.single import single_kernels, with_single
from coop_jax._planning.types import Op, Problem, Value
from coop_jax._planning.validate import live_bytes

# Of a product a tanh, which two ops read, the second of them into its bytes.
GELU = Problem(
    (
        Op("product", (), (0,), 1.0),
        Op("tanh", (0,), (1,), 1.0),
        Op("gate", (0, 1), (2,), 1.0),
        Op("gradient", (0, 1, 2), (3,), 1.0, in_place=((1, 3),)),
        Op("weights", (3,), (4,), 1.0),
    ),
    (
        Value("product", 10),
        Value("tanh", 10),
        Value("gate", 10),
        Value("gradient", 10),
        Value("weights", 10, is_output=True),
    ),
)
HOME = [[0], [1, 2], [3], [4]]


def test_what_gives_and_what_takes_bytes_are_kernels_of_their_own_where_it_is_full():
    # Without the bytes of "tanh", 40 are alive at "gradient"; the peak is 30.
    assert max(live_bytes(GELU, (0, 1, 2, 3, 4))) == 30
    single = single_kernels(GELU, HOME, alone={0, 4})
    assert single == {1, 3}
    apart = with_single(HOME, single)
    assert apart == [[0], [1], [2], [3], [4]]
    assert joined(GELU, apart, single) == apart


def test_elsewhere_they_may_be_one_of_several_results() -> None:
    roomy = Op("weights", (3,), (4,), 1.0, workspace=30)
    problem = Problem((*GELU.ops[:4], roomy), GELU.values)
    assert not single_kernels(problem, HOME, alone={0, 4})


def test_a_library_call_is_one_kernel_anyway() -> None:
    assert single_kernels(GELU, HOME, alone={0, 1, 4}) == {3}
    assert not single_kernels(GELU, HOME, alone={0, 1, 3, 4})


def test_the_others_need_no_bytes_of_what_they_are_made_of() -> None:
    """With each handover left out alone, the peak stays unless it is one of these."""
    needed = 0
    for seed in range(200):
        rng, problem = random.Random(seed), random_problem(seed, length=20)
        order = problem.program_order
        alone = {op for op in order if rng.random() < 0.3}
        single = single_kernels(problem, [order], alone)
        cut = with_single([order], single)
        assert tuple(chain(*cut)) == order
        assert all(len(part) == 1 for part in cut if single.intersection(part))
        most = max(live_bytes(problem, order))
        for at, op in enumerate(problem.ops):
            if at in alone or not op.in_place:
                continue
            ops = list(problem.ops)
            ops[at] = Op(op.name, op.inputs, op.outputs, op.cost, op.workspace)
            rises = max(live_bytes(Problem(tuple(ops), problem.values), order)) > most
            assert at in single or not rises
            needed += rises
    assert needed > 20


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
