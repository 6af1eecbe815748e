"""The planner: two cases by eye, random problems, and the optimum of tiny ones."""

import dataclasses
import heapq
import itertools
import random
import statistics
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from segment_plans_test import layers
from validate_test import random_problem

from benchmarks.optimum_problems import layered
from coop_jax._planning import planner
from coop_jax._planning.crew import Crew, Way
from coop_jax._planning.planner import Effort, Planned, plan, smallest
from coop_jax._planning.refine import LocalSearch
from coop_jax._planning.retention import Retention
from coop_jax._planning.types import Op, Problem, Value, ValueId
from coop_jax._planning.validate import live_bytes, validate

seeds = st.integers(0, 2**32)
QUICK = Effort(rounds=10, time_limit=5.0)


def op(inputs: tuple[int, ...], output: int, cost: float, workspace: int = 0) -> Op:
    return Op(f"op{output}", inputs, (output,), cost, workspace)


# 1 (cheap) and 2 (dear) are computed from the argument and wait for op 3, 4 and 5
# while 3 needs room; both are 4 bytes.
CHEAP_AND_DEAR = Problem(
    ops=(
        op((0,), 1, cost=1.0),
        op((1,), 2, cost=9.0),
        op((2,), 3, cost=1.0, workspace=4),
        op((1, 3), 4, cost=1.0),
        op((2, 4), 5, cost=1.0),
    ),
    values=(
        Value("x", 0, is_argument=True),
        Value("cheap", 4),
        Value("dear", 4),
        Value("small", 1),
        Value("smaller", 1),
        Value("y", 0, is_output=True),
    ),
    alignment=1,
)


def peak_of(problem: Problem) -> int:
    return max(live_bytes(problem, problem.program_order), default=0)


def test_drops_what_is_cheap_to_recompute_and_keeps_what_is_dear() -> None:
    assert live_bytes(CHEAP_AND_DEAR, (0, 1, 2, 3, 4)) == [4, 8, 13, 10, 5]
    planned = plan(CHEAP_AND_DEAR, 10)
    assert planned.fits
    assert planned.schedule == (0, 1, 2, 0, 3, 4)
    assert planned.positions == ((0, 3), (1,), (2,), (3,), (4,))
    assert (planned.peak, planned.cost) == (10, 14.0)


def test_moves_what_is_needed_late_for_free() -> None:
    # 1 is written first but read last, after the 8 bytes of 2 have come and gone.
    problem = Problem(
        ops=(op((0,), 1, 5.0), op((0,), 2, 5.0), op((2,), 3, 1.0), op((1, 3), 4, 1.0)),
        values=(
            Value("x", 0, is_argument=True),
            Value("late", 4),
            Value("big", 8),
            Value("small", 1),
            Value("y", 0, is_output=True),
        ),
    )
    assert live_bytes(problem, problem.program_order) == [4, 12, 13, 5]
    planned = plan(problem, 9)
    assert planned.fits
    assert planned.schedule == (1, 2, 0, 3)
    assert planned.positions == ((3,), (1,), (2,), (3,))
    assert (planned.peak, planned.cost) == (9, problem.cost(problem.program_order))


def test_what_takes_much_room_to_compute_is_computed_before_the_rest() -> None:
    # The mask has to go in op 2. Computed again for op 4, its bits would lie beside the
    # array that op 3 makes; computed for op 3, they are gone by then.
    values = (
        Value("bits", 8),
        Value("mask", 2),
        Value("done", 0, is_output=True),
        Value("array", 6),
        Value("result", 0, is_output=True),
    )
    ops = (
        op((), 0, 1.0),
        op((0,), 1, 1.0),
        op((1,), 2, 1.0),
        Op("array", (), (3,), 1.0, is_recomputable=False),
        op((1, 3), 4, 1.0),
    )
    middle = dataclasses.replace(ops[2], inputs=(), workspace=11)
    problem = Problem((*ops[:2], middle, *ops[3:]), values)
    found = plan(problem, 12)
    assert found.fits
    assert found.schedule == (2, 0, 1, 3, 4)


def test_no_schedule_goes_below_what_one_op_reads_and_writes() -> None:
    # Op 2 reads `dear`, writes `small` and has 4 bytes of workspace.
    assert CHEAP_AND_DEAR.least_pool == 9
    assert smallest(CHEAP_AND_DEAR).size >= 9
    assert Problem((), ()).least_pool == 0


def test_says_so_when_nothing_fits() -> None:
    planned = plan(CHEAP_AND_DEAR, 8)
    assert not planned.fits
    assert planned.peak > 8
    validate(CHEAP_AND_DEAR, planned.schedule)


def test_the_smallest_pool_by_eye() -> None:
    # Op 2 reads 4 bytes, writes 1 and has 4 of workspace: no schedule has less.
    planned = smallest(CHEAP_AND_DEAR)
    assert planned.fits
    assert planned.peak == 9


class Sent(Crew):
    """A crew whose ways all end where a table says, by their seeds."""

    def __init__(self, problem: Problem, sizes: dict[int, int]) -> None:
        self.lead = LocalSearch(Retention(problem), 0, QUICK)
        self.sizes = sizes
        self.seeds: list[int] = []

    def follow(self, ways, pool: int, polish: Effort, waits: bool = True):
        for way in ways:
            self.seeds.append(way.seed)
            size = self.sizes.get(way.seed, max(self.sizes.values()))
            yield way, Planned((), (), size, size, 1.0, size <= pool)


@pytest.mark.parametrize(
    ("one_by_one", "by_estimates", "sent"),
    [
        (150, 120, [0, 1, 2, 4, 6]),
        (120, 150, [0, 1, 2, 3, 5]),
        (150, 140, [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_a_kind_of_way_that_ends_far_behind_is_not_sent_again(
    one_by_one: int, by_estimates: int, sent: list[int]
) -> None:
    crew = Sent(CHEAP_AND_DEAR, {0: 150, 1: one_by_one, 2: by_estimates})
    start = planner.program_order(CHEAP_AND_DEAR)
    ways = [Way(start)] + [Way(start, 0.3, k % 2 == 0, seed=k) for k in range(1, 7)]
    list(planner._sent(crew, ways, 100, QUICK))
    assert crew.seeds == sent


@pytest.mark.parametrize(("ends", "sent"), [(111, 1), (110, 2)])
def test_one_fresh_start_that_ends_far_off_is_enough(ends: int, sent: int) -> None:
    crew = Sent(CHEAP_AND_DEAR, {0: ends, 1: 90, 2: 90})
    ways = planner._ways_down(CHEAP_AND_DEAR)
    hopeless = planner._HOPELESS_AFRESH
    followed = planner._followed(crew, 100, ways, QUICK, 2, hopeless=hopeless)
    assert len(list(followed)) == sent


def short_of_room(count: int) -> Iterator[tuple[LocalSearch, Planned]]:
    """Searches of random nets for a quarter of their peak, and where they ended."""
    for seed in range(count):
        problem = layered(seed, 20)
        state = Retention(problem)
        search = LocalSearch(state, state.peak() // 4, Effort())
        yield search, search.reach(planner.program_order(problem))


def test_where_relief_ends_nothing_is_left_that_is_not_needed() -> None:
    ended = 0
    for search, found in short_of_room(12):
        if found.fits:
            continue
        ended += 1
        search.room = found.peak
        search.trim()
        assert search.state.cost == pytest.approx(found.cost, rel=1e-12)
    assert ended > 4


def test_relief_goes_on_from_what_is_needed_and_ends_no_higher() -> None:
    lower = 0
    for search, found in short_of_room(24):
        state = search.state
        search.begin(search.pool)
        state.restore(planner.program_order(search.problem))
        search.relieve()
        assert found.peak <= state.peak()
        lower += found.peak < state.peak()
    assert lower > 0


def test_a_poor_plan_to_begin_with_does_not_make_a_poor_plan() -> None:
    ratios = []
    for seed in range(20):
        problem = random_problem(seed, 60)
        pool = int(peak_of(problem) * 0.7)
        from_scratch = plan(problem, pool)
        if from_scratch.fits:
            tightest = smallest(problem).positions
            started = plan(problem, pool, starts=[tightest])
            ratios.append(started.cost / from_scratch.cost)
    assert len(ratios) > 10
    assert statistics.mean(ratios) < 1.002


def test_an_argument_is_not_read_after_it_is_overwritten() -> None:
    # Value 1 had best be computed just before its only reader, but x is gone by then.
    values = [
        Value("x", 0, is_argument=True),
        Value("read", 8),
        Value("grad", 4),
        Value("new x", 0, is_output=True),
        Value("y", 0, is_output=True),
    ]
    ops = (op((0,), 1, 1.0), op((0,), 2, 1.0, 8), op((2,), 3, 1.0), op((1,), 4, 1.0))
    assert plan(Problem(ops, tuple(values)), 12).schedule == (1, 2, 0, 3)
    values[3] = Value("new x", 0, is_output=True, overwrites=0)
    donated = Problem(ops, tuple(values))
    schedule = plan(donated, 12).schedule
    validate(donated, schedule)
    assert schedule.index(0) < schedule.index(2)


@settings(max_examples=200, deadline=None)
@given(seed=seeds, length=st.integers(1, 30), share=st.floats(0.3, 1.1))
def test_a_plan_is_valid_and_no_larger_than_it_claims(
    seed: int, length: int, share: float
) -> None:
    problem = random_problem(seed, length)
    pool = int(peak_of(problem) * share)
    planned = plan(problem, pool, QUICK)
    # This includes that no argument is read after it was overwritten.
    validate(problem, planned.schedule)
    assert planned.peak == max(live_bytes(problem, planned.schedule))
    assert planned.fits == (planned.peak <= pool)
    assert planned.cost == pytest.approx(problem.cost(planned.schedule))
    assert planned.cost >= problem.cost(problem.program_order) * (1 - 1e-9)
    steps = [(b, k) for k, places in enumerate(planned.positions) for b in places]
    assert planned.schedule == tuple(k for _, k in sorted(steps))
    assert plan(problem, pool, QUICK) == planned, "plans are deterministic"


@settings(max_examples=100, deadline=None)
@given(seed=seeds, length=st.integers(1, 30))
def test_with_room_for_everything_the_program_runs_as_it_is(
    seed: int, length: int
) -> None:
    problem = random_problem(seed, length)
    planned = plan(problem, peak_of(problem), QUICK)
    assert planned.fits
    assert planned.schedule == problem.program_order
    assert planned.positions == tuple((k,) for k in problem.program_order)


@settings(max_examples=100, deadline=None)
@given(seed=seeds, length=st.integers(1, 30))
def test_the_smallest_plan_is_feasible_and_no_larger_than_the_program(
    seed: int, length: int
) -> None:
    problem = random_problem(seed, length)
    planned = smallest(problem, QUICK)
    validate(problem, planned.schedule)
    assert planned.fits
    assert planned.peak == max(live_bytes(problem, planned.schedule))
    assert planned.peak <= peak_of(problem)
    assert smallest(problem, QUICK) == planned


def test_a_program_without_bytes_has_a_smallest_plan() -> None:
    values = (Value("x", 0, is_argument=True), Value("y", 0, is_output=True))
    problem = Problem((op((0,), 1, 1.0),), values)
    assert smallest(problem).schedule == (0,)
    assert smallest(Problem((), ())).schedule == ()


def tiny_training_step(seed: int) -> Problem:
    """At most four layers forward, and the same backward, reading some of them."""
    rng = random.Random(seed)
    layers = rng.randint(2, 4)
    values = [Value("x", 0, is_argument=True)]
    ops: list[Op] = []

    def add(inputs: set[int], size: int, cost: float) -> int:
        values.append(Value(f"v{len(values)}", size, is_output=size == 0))
        ops.append(op(tuple(sorted(inputs)), len(values) - 1, cost))
        return len(values) - 1

    state, saved = 0, []
    for _ in range(layers):
        new = add({state}, rng.choice([1, 2, 4, 8]), rng.choice([1.0, 1.0, 2.0, 5.0]))
        saved.append((state, new))
        state = new
    for layer in reversed(range(layers)):
        reads = {state, *(v for v in saved[layer] if rng.random() < 0.7)}
        state = add(reads, rng.choice([1, 2, 4]) if layer else 0, 1.0)
    return Problem(tuple(ops), tuple(values), alignment=1)


def cheapest_cost(problem: Problem, pool: int) -> float | None:
    """The least cost of any schedule, in any order, by Dijkstra over live sets."""
    wanted = {v for v, value in enumerate(problem.values) if value.is_output}
    start: frozenset[ValueId] = frozenset()
    best = {start: 0.0}
    tie = itertools.count()
    heap = [(0.0, next(tie), start)]
    while heap:
        cost, _, live = heapq.heappop(heap)
        if wanted <= live:
            return cost
        for paid, after in _next_states(problem, pool, live):
            if cost + paid < best.get(after, float("inf")):
                best[after] = cost + paid
                heapq.heappush(heap, (cost + paid, next(tie), after))
    return None


def _next_states(
    problem: Problem, pool: int, live: frozenset[ValueId]
) -> Iterator[tuple[float, frozenset[ValueId]]]:
    """Drop a value, or run an op for which there is room."""
    for v in live:
        yield 0.0, live - {v}
    for spec in problem.ops:
        is_ready = all(v in live or problem.values[v].is_argument for v in spec.inputs)
        after = live.union(spec.outputs)
        size = sum(problem.values[v].size for v in after) + spec.workspace
        if is_ready and size <= pool:
            yield spec.cost, after


def test_tiny_plans_cost_what_the_optimum_costs() -> None:
    # Observed on 244 (problem, pool) pairs: 233 planned, all of them at the optimum; 11
    # (5 %) not planned although some schedule fits. The smallest pool was on average
    # 1.01 and at worst 1.34 times the smallest of any schedule.
    planned_pools = missed_pools = 0
    for seed in range(60):
        problem = tiny_training_step(seed)
        feasible = []
        for pool in range(1, peak_of(problem) + 1):
            optimum = cheapest_cost(problem, pool)
            planned = plan(problem, pool, QUICK)
            if optimum is None:
                assert not planned.fits, (seed, pool)
                continue
            feasible.append(pool)
            if planned.fits:
                assert optimum - 1e-9 <= planned.cost <= 1.1 * optimum, (seed, pool)
                planned_pools += 1
            else:
                missed_pools += 1
        assert feasible[0] <= smallest(problem, QUICK).peak <= 1.5 * feasible[0], seed
    assert missed_pools <= 0.1 * planned_pools


def test_refines_more_than_one_schedule_and_thoroughly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problems = [layered(seed, 60) for seed in range(4)]

    def costs() -> list[float]:
        return [plan(each, int(0.35 * peak_of(each))).cost for each in problems]

    few_thorough = costs()
    monkeypatch.setattr(planner, "_FINALISTS", 1)
    one_thorough = costs()
    monkeypatch.setattr(planner, "_THOROUGH", 1)
    monkeypatch.setattr(planner, "_LAST_MOVES", 1)
    one = costs()
    assert all(
        a <= b <= c for a, b, c in zip(few_thorough, one_thorough, one, strict=True)
    )
    assert sum(few_thorough) < sum(one_thorough) < sum(one)


def test_where_packing_is_in_the_way_a_plan_is_the_same_every_time() -> None:
    problem = random_problem(5, 80)
    pool = int(0.6 * Retention(problem).peak())
    little = Effort(rounds=4, moves=400, time_limit=600.0)
    first, *others = (plan(problem, pool, little, is_packed=True) for _ in range(8))
    assert first.peak <= pool
    assert others == [first] * 7


def test_where_few_ways_fit_a_way_down_in_strides_is_tried_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problems = [layered(seed, 60) for seed in (6, 26, 48)]
    pools = [int(1.1 * smallest(p, QUICK, is_packed=True).size) for p in problems]

    def costs() -> list[float]:
        tried = [
            plan(problem, pool, QUICK, is_packed=True)
            for problem, pool in zip(problems, pools, strict=True)
        ]
        assert all(planned.fits for planned in tried)
        return [planned.cost for planned in tried]

    with_strides = costs()
    monkeypatch.setattr(planner, "_FEW", 1)
    without = costs()
    assert all(a <= b for a, b in zip(with_strides, without, strict=True))
    assert sum(with_strides) < 0.97 * sum(without)


def test_where_few_ways_fit_segments_are_tried_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Two streams are all there is room for: layers run again for each other.
    problem = layers(24)
    pool = 12 + 2 * 2
    with_segments = plan(problem, pool, QUICK)
    least = smallest(problem, QUICK)
    monkeypatch.setattr(planner, "segment_plans", lambda *_: iter(()))
    assert with_segments.fits
    assert with_segments.cost < 0.85 * plan(problem, pool, QUICK).cost
    assert least.cost <= smallest(problem, QUICK).cost


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
