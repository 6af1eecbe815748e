"""What a pair of scans keeps, against every choice there is."""

import dataclasses
import itertools
import random

import pytest

from coop_jax._loops.loop_plan import PairChoices, choose
from coop_jax._loops.scan_branch import keep_within
from coop_jax._loops.scan_plan import corners, keep_at_price
from coop_jax._loops.scan_policies import arithmetic, keep_by_rule, policy_keepings
from coop_jax._planning.seam import with_seam
from coop_jax._planning.types import Op, Value


def value(size, **kind):
    return Value("v", size, **kind)


def chain():
    """x -> a (dear, small) -> b (cheap, large) -> the carry; a and b are read later."""
    values = [value(1), value(2), value(6)]
    values += [value(0, is_output=True), value(0, is_output=True)]
    ops = [
        Op("operand", (), (0,), 0.0, is_recomputable=False),
        Op("dot", (0,), (1,), 10.0),
        Op("exp", (1,), (2,), 1.0),
        Op("add", (2,), (3,), 1.0),
        Op("use", (1, 2), (4,), 5.0),
    ]
    return with_seam(ops, values, 4)


def test_cheap_values_are_computed_again_and_dear_ones_kept():
    found = corners(chain())
    # Keep a and b; a alone and run exp again; x alone and run both again.
    assert [keeping.row for keeping in found] == [8, 2, 1]
    assert [keeping.cost for keeping in found] == [17.0, 18.0, 28.0]


def random_body(rng):
    """A few ops before and after a seam; some results are wanted by the first half."""
    values, ops = [], []

    def op(cost, inputs, size, wanted=False, repeats=True):
        values.append(value(0 if wanted else size, is_output=wanted))
        ops.append(Op("op", inputs, (len(values) - 1,), cost, is_recomputable=repeats))

    for _ in range(2):
        op(0.0, (), rng.randint(1, 6), repeats=False)
    for _ in range(rng.randint(3, 7)):
        known = range(len(values))
        inputs = tuple(rng.sample(known, rng.randint(1, 2)))
        op(rng.randint(1, 9), inputs, rng.randint(1, 9))
    # The first half ends with a result of its own, which needs all of it.
    op(1.0, tuple(range(len(values))), 0, wanted=True)
    boundary = len(ops)
    for _ in range(rng.randint(1, 4)):
        inputs = tuple(rng.sample(range(boundary - 1), 2))
        op(1.0, inputs, 0, wanted=True)
    return with_seam(ops, values, boundary)


def all_choices(body):
    """(bytes, cost) of every set of values to keep, by the definition."""
    problem, seam = body.problem, body.seam
    first = [v for op in problem.ops[:seam] for v in op.outputs]
    base = problem.cost(problem.program_order)
    for count in range(len(first) + 1):
        for kept in map(set, itertools.combinations(first, count)):
            todo = [v for op in problem.ops[seam + 1 :] for v in op.inputs]
            again = set()
            while todo:
                v = todo.pop()
                if v in kept or v not in first or problem.producer[v] in again:
                    continue
                again.add(problem.producer[v])
                todo += problem.ops[problem.producer[v]].inputs
            if all(problem.ops[k].is_recomputable for k in again):
                size = sum(problem.values[v].size for v in kept)
                yield size, base + sum(problem.ops[k].cost for k in again)


@pytest.mark.parametrize("seed", range(15))
def test_no_choice_is_better_at_its_price(seed):
    rng = random.Random(seed)
    body = random_body(rng)
    choices = list(all_choices(body))
    for price in (0.01, 0.3, 1.0, 3.0, 100.0):
        found = keep_at_price(body, price)
        best = min(cost + price * size for size, cost in choices)
        assert found.cost + price * found.row == pytest.approx(best)


@pytest.mark.parametrize("seed", range(15))
def test_keeps_within_what_is_allowed(seed):
    body = random_body(random.Random(seed))
    known = corners(body)
    choices = list(all_choices(body))
    least = min(size for size, _ in choices)
    assert known[-1].row == least
    assert keep_within(body, least - 1) is None
    for row in range(least, known[0].row + 1):
        found = keep_within(body, row)
        assert found is not None and found.row <= row
        best = min(cost for size, cost in choices if size <= row)
        assert best <= found.cost + 1e-9 <= best * 1.001
        assert found.cost <= min(k.cost for k in known if k.row <= row)


def two_products():
    """A product of much arithmetic, and one of much traffic, to keep or to repeat."""
    values = [value(1), value(5), value(6), value(0, is_output=True)]
    values += [value(0, is_output=True)]
    ops = [
        Op("operand", (), (0,), 0.0, is_recomputable=False),
        Op("dense", (0,), (1,), 9.0),
        Op("batched", (0,), (2,), 10.0),
        Op("add", (1, 2), (3,), 1.0),
        Op("use", (1, 2), (4,), 1.0),
    ]
    operations = [0.0, 900.0, 100.0, 1.0, 1.0]
    policies = [frozenset(), frozenset({1}), frozenset({1, 2})]
    return with_seam(ops, values, 4, arithmetic=operations, policies=policies)


def test_does_no_more_arithmetic_than_a_policy_in_as_many_bytes():
    body = two_products()
    known = policy_keepings(body)
    # The operand, and what each policy keeps; all but that is repeated.
    assert [keeping.row for keeping in known] == [1, 6, 11]
    assert [arithmetic(body, keeping) for keeping in known] == [2002, 1102, 1002]
    fastest, ruled = keep_within(body, 7), keep_by_rule(body, 7)
    assert fastest is not None and ruled is not None
    # Repeating the dense product is faster by 1 second, and 800 operations more.
    assert (fastest.row, fastest.cost) == (7, 30.0)
    assert (ruled.row, ruled.cost) == (6, 31.0)
    # Where no policy fits better, the fastest may be.
    assert keep_by_rule(body, 11) == keep_within(body, 11)


@pytest.mark.parametrize("seed", range(15))
def test_a_policy_is_never_better_in_arithmetic(seed):
    rng = random.Random(seed)
    body = random_body(rng)
    ops = range(len(body.problem.ops))
    kept = [v for op in body.problem.ops[: body.seam] for v in op.outputs]
    policies = [frozenset(v for v in kept if rng.random() < p) for p in (0.2, 0.5, 0.8)]
    operations = tuple(float(rng.randint(0, 9)) for _ in ops)
    body = dataclasses.replace(body, arithmetic=operations, policies=tuple(policies))
    for policy in policy_keepings(body):
        found = keep_by_rule(body, policy.row)
        assert found is not None and found.row <= policy.row
        allowed = arithmetic(body, policy) + 1e-3 * sum(operations)
        assert arithmetic(body, found) <= allowed


def pair(length=16, carry=1):
    return PairChoices(
        chain(), length=length, carry=carry, forward=11.0, can_chunk=True
    )


def test_chunks_keep_about_twice_the_root_of_the_carries():
    smallest = pair(length=64, carry=1).variants[-1]
    assert smallest.chunk == 8
    assert smallest.size == 8 * 1 + 8 * 1


def test_iterations_of_a_prime_number_are_left_over_after_whole_chunks():
    smallest = pair(length=31, carry=1).variants[-1]
    # Six chunks of five take as much, but only seven are left over to run once.
    assert smallest.chunk == 8
    assert smallest.size == 3 * 1 + 8 * 1
    # Both scans as planned without chunks, and the forward scan of 24 iterations.
    assert smallest.cost == 31 * (28.0 - 17.0) + 24 * 11.0
    assert pair(length=24).chunks == [2, 3, 4, 6, 8, 12]


def test_variants_trade_bytes_for_seconds():
    variants = pair().variants
    assert len(variants) > 1
    for more, less in itertools.pairwise(variants):
        assert more.size >= less.size
    for one, other in itertools.permutations(variants, 2):
        holds_more = any(a > b for a, b in zip(one.held, other.held, strict=True))
        assert holds_more or one.cost > other.cost


def test_rows_of_a_chunk_are_there_while_the_second_scan_runs():
    """What matters is where the peak is: between the scans, carries alone count."""
    one = pair(length=64)
    (cheap,) = choose([one], lambda held: held[0][0] <= 16)
    assert cheap.chunk and cheap.held == (64 // cheap.chunk, cheap.size)
    assert cheap.cost == min(v.cost for v in one.variants if v.held[0] <= 16)
    (small,) = choose([one], lambda held: held[0][1] <= 17)
    assert small.size <= 17 and small.cost > cheap.cost


def held_in_all(held):
    return sum(during for _, during in held)


def test_pairs_share_the_bytes_at_one_price():
    pairs = [pair(), pair(length=32)]
    most = sum(p.variants[0].size for p in pairs)
    least = sum(p.variants[-1].size for p in pairs)
    costs = []
    for room in range(least, most + 1, 4):
        chosen = choose(pairs, lambda held, room=room: held_in_all(held) <= room)
        assert sum(v.size for v in chosen) <= room
        costs.append(sum(v.cost for v in chosen))
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == 0


def test_the_smallest_variants_if_nothing_fits():
    pairs = [pair(), pair(length=32)]
    chosen = choose(pairs, lambda held: False)
    assert chosen == [p.variants[-1] for p in pairs]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
