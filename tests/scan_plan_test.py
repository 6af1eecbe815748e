"""What a pair of scans keeps, against every choice there is."""

import itertools
import random

import pytest

from coop_jax._loops.loop_plan import PairChoices, choose
from coop_jax._loops.scan_plan import corners, keep_at_price, keep_within, with_seam
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
    assert known[-1].row == min(size for size, _ in choices)
    for row in range(known[-1].row, known[0].row + 1):
        found = keep_within(body, known, row)
        assert found.row <= row
        assert found.cost >= min(cost for size, cost in choices if size <= row)
        assert found.cost <= min(k.cost for k in known if k.row <= row)


def pair(length=16, carry=1):
    return PairChoices(
        chain(), length=length, carry=carry, forward=11.0, can_chunk=True
    )


def test_chunks_keep_about_twice_the_root_of_the_carries():
    smallest = pair(length=64, carry=1).variants[-1]
    assert smallest.chunk == 8
    assert smallest.size == 8 * 1 + 8 * 1


def test_variants_trade_bytes_for_seconds():
    variants = pair().variants
    assert len(variants) > 1
    for more, less in itertools.pairwise(variants):
        assert more.size > less.size
        assert more.cost < less.cost


def test_pairs_share_the_bytes_at_one_price():
    pairs = [pair(), pair(length=32)]
    most = sum(p.variants[0].size for p in pairs)
    least = sum(p.variants[-1].size for p in pairs)
    costs = []
    for room in range(least, most + 1, 4):
        chosen = choose(pairs, lambda sizes, room=room: sum(sizes) <= room)
        assert sum(v.size for v in chosen) <= room
        costs.append(sum(v.cost for v in chosen))
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == 0


def test_the_smallest_variants_if_nothing_fits():
    pairs = [pair(), pair(length=32)]
    chosen = choose(pairs, lambda sizes: False)
    assert chosen == [p.variants[-1] for p in pairs]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
