"""Parts cut into stages, in which the order is the plan's."""

import dataclasses
import random
from itertools import chain

import pytest
from validate_test import random_problem

from coop_jax._fitting.staging import stages
from coop_jax._planning.types import Op, Problem, Value

LARGE = 1 << 20
LAYER = Problem(
    (
        Op("bits", (0,), (2,), 1.0),
        Op("mask", (2,), (3,), 1.0),
        Op("norm", (1,), (4,), 1.0),
        Op("product", (4,), (5,), 1.0),
        Op("dropout", (3, 5), (6,), 1.0),
        Op("product", (1,), (7,), 1.0),
        Op("sum", (6, 7), (8,), 1.0),
    ),
    (
        Value("key", 0, is_argument=True),
        Value("x", LARGE, is_argument=True),
        *(Value(f"y{k}", LARGE) for k in range(6)),
        Value("loss", LARGE, is_output=True),
    ),
)


def test_a_stage_begins_with_each_product_and_masks_wait_for_their_readers() -> None:
    part = [*range(7)]
    assert stages(LAYER, part, {3, 5}) == [[2], [0, 1, 3, 4], [5, 6]]
    assert stages(LAYER, part, set()) == [part]
    # A mask that only a later part reads is made at once.
    assert stages(LAYER, [0, 1, 2, 3], {3}) == [[0, 1, 2], [3]]


def test_what_a_product_reads_comes_before_it() -> None:
    problem = dataclasses.replace(
        LAYER, ops=(*LAYER.ops[:5], Op("product", (3,), (7,), 1.0), LAYER.ops[6])
    )
    found = stages(problem, [*range(7)], {3, 5})
    assert found == [[2], [0, 1, 3, 4], [5, 6]]
    alone = stages(problem, [0, 1, 2, 3, 5], {3, 5})
    assert alone == [[2], [0, 1, 3], [5]]


def test_stages_have_all_of_a_part_in_an_order_that_data_allows() -> None:
    cuts = 0
    for seed in range(300):
        rng, problem = random.Random(seed), random_problem(seed, length=20)
        part = list(problem.program_order)
        beginning = set(rng.sample(part, 4))
        found = stages(problem, part, beginning)
        order = list(chain(*found))
        assert sorted(order) == part
        at = {op: i for i, op in enumerate(order)}
        for op in part:
            for v in problem.ops[op].inputs:
                assert problem.producer[v] < 0 or at[problem.producer[v]] < at[op]
        begun = [op for op in order if op in beginning]
        assert begun == sorted(begun)
        assert all(len(beginning.intersection(stage)) <= 1 for stage in found)
        cuts += len(found)
    assert cuts > 900


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
