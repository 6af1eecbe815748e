"""Parts of a plan, and how they are put together."""

import dataclasses
import random
from collections.abc import Hashable, Sequence
from itertools import chain

import pytest
from validate_test import random_problem

from coop_jax._fitting.joining import joined
from coop_jax._fitting.parts import overwriting, parts
from coop_jax._planning.types import Op, OpId, Problem, Value
from coop_jax._planning.validate import live_bytes

# The gradient of a weight (argument 0), its momentum (argument 1), the product that
# goes on with the weight, and the new weight.
UPDATE = Problem(
    (
        Op("gradient", (), (2,), 1.0),
        Op("momentum", (1, 2), (3,), 1.0),
        Op("product", (0,), (4,), 1.0),
        Op("weight", (0, 3), (5,), 1.0),
    ),
    (
        Value("weight", 0, is_argument=True),
        Value("momentum", 0, is_argument=True),
        Value("gradient", 8),
        Value("new momentum", 0, is_output=True, overwrites=1),
        Value("product", 8, is_output=True),
        Value("new weight", 0, is_output=True, overwrites=0),
    ),
)


def test_parts_end_after_products_and_before_what_overwrites_their_operands() -> None:
    home = [(0,), (1,), (2,), (3,)]
    assert overwriting(UPDATE) == {1, 3}
    assert parts(UPDATE, home, ends={0, 2}) == [[0, 1], [2], [3]]
    again = [(0, 2), (1,), (2,), (3,)]
    assert parts(UPDATE, again, ends=set()) == [[0, 1], [0, 2], [3]]


def test_updates_that_read_what_they_overwrite_stay_together() -> None:
    decayed = dataclasses.replace(UPDATE.ops[1], inputs=(0, 1, 2))
    ops = (UPDATE.ops[0], decayed, UPDATE.ops[3])
    problem = dataclasses.replace(UPDATE, ops=ops)
    assert parts(problem, [(0,), (1,), (2,)], ends={0}) == [[0, 1, 2]]


CHAIN = Problem(
    tuple(Op(f"f{k}", (k,), (k + 1,), 1.0, workspace=k) for k in range(4)),
    (Value("x", 0, is_argument=True), *(Value(f"y{k}", 8) for k in range(4))),
)


def test_parts_are_joined_as_far_as_any_order_fits_the_peak() -> None:
    alone = [[0], [1], [2], [3]]
    # The peak is 19 bytes, in the last part, with 3 of workspace.
    assert joined(CHAIN, alone) == [[0, 1], [2], [3]]
    assert joined(CHAIN, alone, apart={1}) == alone
    assert joined(CHAIN, [[0], [1], [0], [1, 2, 3]]) == [[0, 1], [0], [1, 2, 3]]


def test_products_that_share_an_operand_are_in_two_parts() -> None:
    roomy = dataclasses.replace(CHAIN.ops[3], workspace=100)
    problem = dataclasses.replace(CHAIN, ops=(*CHAIN.ops[:3], roomy))
    alone = [[0], [1], [2], [3]]
    assert joined(problem, alone) == [[0, 1, 2], [3]]
    shared = {0: {"x", "y"}, 1: {"z"}, 2: {"y"}}
    assert joined(problem, alone, sharing=shared) == [[0, 1], [2], [3]]


def test_an_update_is_a_part_after_what_reads_the_weight() -> None:
    product = dataclasses.replace(UPDATE.ops[2], workspace=100)
    update = dataclasses.replace(UPDATE.ops[3], inputs=(0, 2, 3))
    ops = (*UPDATE.ops[:2], product, update, Op("last", (4,), (6,), 1.0))
    problem = Problem(ops, (*UPDATE.values, Value("last", 200, is_output=True)))
    # With the momentum, which it reads: XLA makes one kernel of both.
    assert joined(problem, [[0, 1], [2], [3], [4]]) == [[0, 2], [1, 3], [4]]
    assert joined(problem, [[0, 1], [2], [3, 4]]) == [[0, 1, 2], [3, 4]]


def test_what_reads_an_updated_weight_comes_after_it() -> None:
    product = dataclasses.replace(UPDATE.ops[2], workspace=100)
    update = dataclasses.replace(UPDATE.ops[3], inputs=(0, 2, 3))
    values = (
        *UPDATE.values,
        Value("average", 0, is_argument=True),
        Value("new average", 0, is_output=True, overwrites=6),
    )
    average = Op("average", (5, 6), (7,), 1.0)
    problem = Problem((*UPDATE.ops[:2], product, update, average), values)
    for cut in ([[0, 1], [2], [3], [4]], [[0, 1], [2], [3, 4]]):
        assert joined(problem, cut) == [[0, 2], [1, 3, 4]]
    # What is no update does not wait in that part for what waits.
    norm = Op("norm", (5,), (7,), 1.0)
    values = (*values[:7], Value("norm", 8, is_output=True))
    problem = Problem((*UPDATE.ops[:2], product, update, norm), values)
    assert joined(problem, [[0, 1], [2], [3], [4]]) == [[0, 2], [1, 3], [4]]


def layers(count: int, room: int) -> Problem:
    """Layers of five ops that make 8 bytes each, and room for some at a time."""
    ops = tuple(Op(f"f{k}", (k,), (k + 1,), 1.0) for k in range(5 * count))
    last = dataclasses.replace(ops[-1], workspace=8 * room - 8)
    values = (Value("x", 0, is_argument=True), *(Value("y", 8) for _ in ops))
    return Problem((*ops[:-1], last), values)


def firsts(problem: Problem, kinds: Sequence[Hashable] | None = None) -> list[OpId]:
    """What the parts begin with when each op was one, but for the first part."""
    found = joined(problem, [[op] for op in problem.program_order], kinds=kinds)
    return [part[0] for part in found[1:]]


def test_alike_layers_are_cut_at_alike_places() -> None:
    problem, kinds = layers(6, room=7), list(range(5)) * 6
    # Seven fit beside what was made before, up to the last, which the peak is in.
    assert firsts(problem) == [8, 15, 22, 29]
    # In front of the fourth op of a layer again: five joined of seven are enough.
    assert firsts(problem, kinds) == [8, 13, 18, 23, 28, 29]
    # Layers of nothing alike are filled.
    assert firsts(problem, list(range(30))) == firsts(problem)


def test_not_if_that_is_much_earlier() -> None:
    problem, kinds = layers(6, room=9), list(range(5)) * 6
    assert firsts(problem, kinds) == firsts(problem) == [10, 19, 28, 29]


def test_the_first_choice_is_in_front_of_a_kernel_of_its_own() -> None:
    problem, kinds = layers(6, room=7), list(range(5)) * 6
    cut = [[op] for op in problem.program_order]
    second = set(range(1, 30, 5))
    found = joined(problem, cut, alone=second, kinds=kinds)
    assert [part[0] for part in found[1:]] == [6, 11, 16, 21, 26, 29]
    # Where none is among the last three places, alike ones count.
    found = joined(problem, cut, alone={2, 14, 22}, kinds=kinds)
    assert [part[0] for part in found[1:]] == [8, 14, 19, 24, 29]


def test_what_runs_again_is_not_like_what_runs_first() -> None:
    problem, kinds = layers(3, room=7), list(range(15))
    cut = [[op] for op in (*range(13), 3, 13, 14)]
    filled = joined(problem, cut)
    # The first cut is in front of op 8. Op 3 runs again among the next places.
    kinds[8] = kinds[3]
    assert joined(problem, cut, kinds=kinds) == filled


def test_a_cut_is_made_earlier_only_for_want_of_room() -> None:
    problem, kinds = layers(6, room=100), list(range(5)) * 6
    cut = [[op] for op in problem.program_order]
    found = joined(problem, cut, apart={7, 14, 20}, kinds=kinds)
    assert [part[0] for part in found] == [0, 7, 8, 14, 15, 20, 21, 29]


def gelu(*, is_overwritten: bool) -> Problem:
    """An activation and its gradient: a product, tanh, gelu, and so on back."""
    in_place = ((2, 5),) if is_overwritten else ()
    return Problem(
        (
            Op("product", (0,), (1,), 1.0),
            Op("tanh", (1,), (2,), 1.0),
            Op("gelu", (1, 2), (3,), 1.0),
            Op("gradient of weights", (3,), (6,), 1.0),
            Op("product", (0,), (4,), 1.0),
            Op("gradient of tanh", (1, 2, 4), (5,), 1.0, in_place=in_place),
        ),
        (Value("x", 0, is_argument=True), *(Value(f"y{k}", 8) for k in range(1, 6)),
         Value("weights", 0, is_output=True)),
    )  # fmt: skip


def test_what_the_peak_has_to_overwrite_is_no_result_of_a_kernel_of_several() -> None:
    cut, products = [[0], [1, 2, 3], [4], [5]], {0, 3, 4}
    apart = joined(gelu(is_overwritten=True), cut, alone=products)
    assert [part for part in apart if 1 in part] in ([[1]], [[0, 1]])
    together = joined(gelu(is_overwritten=False), cut, alone=products)
    assert any({1, 2} <= {*part} for part in together)
    # Nothing is near the peak where another takes as much again.
    roomy = gelu(is_overwritten=True)
    wide = dataclasses.replace(roomy.ops[0], workspace=40)
    roomy = dataclasses.replace(roomy, ops=(wide, *roomy.ops[1:]))
    together = joined(roomy, cut, alone=products)
    assert any({1, 2} <= {*part} for part in together)


def test_an_array_written_before_all_else_of_a_part_fits_beside_all_it_makes() -> None:
    values = (Value("x", 0, is_argument=True), Value("y0", 2000))
    values += tuple(Value(f"y{k}", 8) for k in range(1, 4))
    workspaces = enumerate((0, 6, 6, 2010))
    ops = tuple(Op(f"f{k}", (k,), (k + 1,), 1.0, workspace=w) for k, w in workspaces)
    problem, alone = Problem(ops, values), [[0], [1], [2], [3]]
    # The peak is 2026 bytes, in the last part.
    assert joined(problem, alone) == [[0, 1, 2], [3]]
    assert joined(problem, alone, spreading={1, 2}) == [[0, 1], [2], [3]]


@pytest.mark.parametrize("are_alike", [False, True])
def test_parts_joined_in_any_order_fit_the_peak(are_alike: bool) -> None:
    many = waiting = 0
    for seed in range(300):
        rng, problem = random.Random(seed), random_problem(seed, length=20)
        kinds = [rng.randrange(3) for _ in problem.ops] if are_alike else None
        schedule = list(problem.program_order)
        for _ in range(rng.randrange(8)):
            at = rng.randrange(1, len(schedule))
            schedule.insert(at, rng.choice(schedule[:at]))
        found = joined(problem, [[op] for op in schedule], kinds=kinds)
        assert sorted(chain(*found)) == sorted(schedule)
        assert reads_what_is_made(problem, list(chain(*found)))
        assert all(len(set(part)) == len(part) for part in found)
        many += len(schedule) - len(found)
        waiting += list(chain(*found)) != schedule
        most = max(live_bytes(problem, tuple(schedule)))
        for _ in range(5):
            order = chain(*(in_any_order(problem, part, rng) for part in found))
            assert max(live_bytes(problem, tuple(order))) <= most
    assert many > 1000 and waiting > 5


def reads_what_is_made(problem: Problem, order: list[int]) -> bool:
    """Whether each op comes after those that make what it reads."""
    made = {v for v, value in enumerate(problem.values) if value.is_argument}
    for op in order:
        if not made.issuperset(problem.ops[op].inputs):
            return False
        made.update(problem.ops[op].outputs)
    return True


def in_any_order(problem: Problem, part: list[int], rng: random.Random) -> list[int]:
    """The ops of a part, each after those in it that make what it reads."""
    left, order = list(part), list[int]()
    while left:
        makes = {op: set(problem.ops[op].outputs) for op in left}
        ready = [
            op
            for k, op in enumerate(left)
            if not any(makes[o] & set(problem.ops[op].inputs) for o in left[:k])
        ]
        order.append(rng.choice(ready))
        left.remove(order[-1])
    return order


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
