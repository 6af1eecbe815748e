"""Plans that run segments again: by eye, beside an exhaustive search, properties."""

import heapq
import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from cuts_test import schedule_of
from hypothesis import given, settings
from hypothesis import strategies as st
from validate_test import random_problem

from coop_jax._planning.checkpoints import Checkpoints
from coop_jax._planning.planner import Effort, plan
from coop_jax._planning.segment_plans import segment_plans
from coop_jax._planning.segments import Segment, kept_bytes, segments
from coop_jax._planning.types import Op, Problem, Value
from coop_jax._planning.validate import live_bytes, validate


def layers(count: int, stream: int = 2, hidden: int = 8, is_shared: bool = False):
    """A stream through layers, each with something hidden, and the way back.

    If `is_shared`, the first layer's hidden value is read by the loss as well.
    """
    ops, values = [], [Value("x", 0, is_argument=True)]

    def add(name: str, inputs: Sequence[int], size: int, cost: float) -> int:
        values.append(Value(name, size))
        ops.append(Op(name, tuple(inputs), (len(values) - 1,), cost))
        return len(values) - 1

    streams, inner = [0], []
    for _ in range(count):
        inner.append(add("hidden", [streams[-1]], hidden, 4.0))
        streams.append(add("stream", [streams[-1], inner[-1]], stream, 1.0))
    shared = inner[:1] if is_shared else []
    back = add("loss", [streams[-1], *shared], stream, 1.0)
    for before, within in reversed(list(zip(streams, inner, strict=False))):
        back = add("back", [back, before, within], stream, 10.0)
    values[back] = Value("gradient", stream, is_output=True)
    return Problem(tuple(ops), tuple(values), alignment=1)


def test_a_network_is_cut_between_its_layers() -> None:
    problem = layers(4)
    # Each layer makes its hidden value, then the stream; the loss is op 8.
    chain = segments(problem)
    assert [(one.first, one.turn) for one in chain] == [
        (0, 12),
        (2, 11),
        (4, 10),
        (6, 9),
    ]
    assert [one.cost for one in chain] == [5.0, 5.0, 5.0, 6.0]
    # Of the last layer the loss has read the stream; the way back reads what is hidden.
    assert [one.made for one in chain] == [10, 10, 10, 10]
    assert np.array_equal(np.triu(kept_bytes(problem, chain), 1)[0], [0, 2, 2, 2])


def test_keeps_the_stream_and_runs_layers_again() -> None:
    problem = layers(4)
    as_written = max(live_bytes(problem, problem.program_order))
    assert as_written == 4 * 8 + 3 * 2 + 2 * 2
    # Beside three streams: what is hidden, and two of the way back.
    least, *_ = map(schedule_of, segment_plans(problem, 20))
    assert max(live_bytes(problem, least)) <= 20
    assert least.count(0) == least.count(2) == least.count(4) == 2
    assert least.count(6) == 1
    # For less, no stream is kept but the first: each layer runs for those behind it.
    least, *_ = map(schedule_of, segment_plans(problem, 14))
    assert max(live_bytes(problem, least)) <= 14
    assert [least.count(k) for k in (0, 2, 4, 6)] == [4, 3, 2, 1]


def test_what_the_loss_reads_of_an_early_layer_does_not_bring_its_turn() -> None:
    # The first layer's turn would be before all others'.
    first, *rest = segments(layers(6, is_shared=True))
    assert first.first == 0 and first.turn > max(one.turn for one in rest)


@pytest.mark.parametrize("count", [0, 1])
def test_there_are_none_of_a_chain_of_one(count: int) -> None:
    assert list(segment_plans(layers(count), 4)) == []


def cheapest(
    costs: Sequence[float], kept: int, made: int, inside: int, pool: int
) -> float | None:
    """By trying all: at each turn, which places and which segments to keep."""
    count = len(costs)

    def after(start: int, last: int, held: frozenset[int], whole: frozenset[int]):
        """What may be kept when the segments from `start` to `last` have run."""
        places, segments = range(start + 1, last + 1), range(start, last)
        for new in powerset(places):
            for more in powerset(segments):
                yield held | {*new}, whole | {*more}

    def fits(now: int, held: frozenset[int], whole: frozenset[int]) -> bool:
        """With what crosses into the one whose turn it is; a whole one has its own."""
        places = {k for k in held | {now} if k > 0 and k - 1 not in whole}
        return kept * len(places) + made * len(whole) + inside <= pool

    states = [(sum(costs), count, frozenset(), frozenset())]
    seen = set()
    while states:
        cost, turn, held, whole = heapq.heappop(states)
        if turn == 0:
            return cost
        if (turn, held, whole) in seen:
            continue
        seen.add((turn, held, whole))
        now = turn - 1
        if turn == count:
            choices = [(0.0, *each) for each in after(0, now, held, whole)]
        else:
            # A place is there if it was kept or all of what is in front of it.
            start = max(k for k in {0} | held | {k + 1 for k in whole} if k <= now)
            seconds = sum(costs[start:turn])
            choices = [(seconds, *each) for each in after(start, now, held, whole)]
            if now in whole and start == now:
                choices = [(0.0, held, whole)]
        for seconds, new, more in choices:
            # Its own reader takes all of the segment; places behind are done with.
            new = frozenset(k for k in new if k <= now)
            more = frozenset(k for k in more if k < now)
            if fits(now, new, more):
                heapq.heappush(states, (cost + seconds, now, new, more))
    return None


def powerset(items: Sequence[int]):
    return itertools.chain.from_iterable(
        itertools.combinations(items, k) for k in range(len(items) + 1)
    )


def table_of(costs: Sequence[float], kept: int, made: int, inside: int, pool: int):
    count = len(costs)
    chain = [Segment(k, k + 1, 2 * count - k, costs[k], made) for k in range(count)]
    crossing = np.triu(np.full((count, count), kept), 1)
    return Checkpoints(chain, crossing, [inside] * count, pool, [1.0])


@settings(max_examples=150, deadline=None)
@given(
    costs=st.lists(st.integers(1, 5), min_size=2, max_size=5),
    kept=st.integers(1, 30),
    extra=st.integers(0, 60),
    inside=st.integers(1, 64),
)
def test_the_table_costs_what_the_exhaustive_search_does(
    costs: list[int], kept: int, extra: int, inside: int
) -> None:
    about = kept, kept + extra, inside, 64
    best, table = cheapest(costs, *about), table_of(costs, *about)
    again = table.runs_again(0)
    if again is None:
        assert best is None
        return
    runs = [cost * (1 + len(turns)) for cost, turns in zip(costs, again, strict=True)]
    assert sum(runs) == best


def step(seed: int, count: int) -> Problem:
    """Layers of different sizes and costs; some values are also read further on."""
    rng = random.Random(seed)
    made = layers(count, is_shared=rng.random() < 0.5)
    values = [
        value if value.is_argument else replace(value, size=rng.randint(1, 40))
        for value in made.values
    ]
    ops = [
        Op(op.name, op.inputs, op.outputs, rng.random(), rng.choice((0, 0, 9)))
        for op in made.ops
    ]
    return Problem(tuple(ops), tuple(values), alignment=1)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(0, 12),
    share=st.floats(0.2, 1.1),
    is_chain=st.booleans(),
)
def test_they_are_valid_and_near_the_pool(
    seed: int, count: int, share: float, is_chain: bool
) -> None:
    problem = step(seed, count) if is_chain else random_problem(seed, 3 * count)
    pool = int(share * max(live_bytes(problem, problem.program_order), default=0))
    found = list(segment_plans(problem, pool))
    assert len(set(found)) == len(found)
    for positions in found:
        schedule = schedule_of(positions)
        validate(problem, schedule)
        assert max(live_bytes(problem, schedule)) <= 1.3 * pool


@pytest.mark.parametrize("seed", [0, 2, 3, 4, 5, 7])
def test_a_plan_far_down_costs_no_more_than_one_of_them(seed: int) -> None:
    problem = step(seed, 12)
    pool = int(0.35 * max(live_bytes(problem, problem.program_order)))
    fitting = [
        problem.cost(schedule)
        for schedule in map(schedule_of, segment_plans(problem, pool))
        if max(live_bytes(problem, schedule)) <= pool
    ]
    found = plan(problem, pool, Effort(rounds=4))
    assert fitting
    assert found.fits and found.cost <= min(fitting) * (1 + 1e-9)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
