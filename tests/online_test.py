"""The online executor: small runs by eye, random programs against the validator."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from validate_test import random_problem

from coop_jax._planning.buffer_assignment import assign, live_peak, schedule_buffers
from coop_jax._planning.deadlines import Lifetimes, deadlines
from coop_jax._planning.eviction import (
    COOP,
    COPY_ON_WRITE,
    DTE,
    DTR,
    NO_PARTITION,
    NO_WINDOW,
    POLICIES,
    SIZE_TERM,
    Policy,
)
from coop_jax._planning.online import Failure, OnlineRun, run_online
from coop_jax._planning.scores import EvictedSets
from coop_jax._planning.types import Op, Problem, Value
from coop_jax._planning.validate import live_bytes, peak_bytes, validate


def problem(ops: list[Op], sizes: list[int], **changes: Value) -> Problem:
    """Value 0 is an argument; the others are named v1, v2, ..., or replaced by name."""
    values = [Value("x", 0, is_argument=True)]
    values += [Value(f"v{i}", size) for i, size in enumerate(sizes, start=1)]
    values = [changes.get(value.name, value) for value in values]
    return Problem(tuple(ops), tuple(values), alignment=1)


def op(inputs: tuple[int, ...], outputs: tuple[int, ...], cost: float = 1.0) -> Op:
    return Op(f"make{outputs}", inputs, outputs, cost)


# x -> 1 -> 2 -> 3, then 4 from 1 and 3, over 3.
SKIP = problem(
    [
        op((0,), (1,)),
        op((1,), (2,)),
        op((2,), (3,)),
        Op("join", (1, 3), (4,), 1.0, in_place=((3, 4),)),
    ],
    [4, 4, 4, 4],
    v4=Value("v4", 4, is_output=True),
)


def test_evicts_what_is_not_in_use_and_computes_it_again() -> None:
    run = run_online(SKIP, 8)
    assert run.is_feasible
    assert run.schedule == (0, 1, 2, 0, 3)
    # Cheap values grow from the high end; 3 takes the place of 1, and 4 that of 3.
    assert run.offsets == {(0, 1): 4, (1, 2): 0, (2, 3): 4, (3, 1): 0, (4, 4): 4}
    assert (run.evictions, run.rematerializations, run.depth) == (1, 1, 2)
    assert run.cost == 5.0
    assert run.fragmentation == (0.0,)
    validate(SKIP, run.schedule, 8, run.offsets)


def test_a_failure_says_what_was_pinned_and_how_many_bytes() -> None:
    # A copy of 3 needs 4 more bytes beside 1 and 3, which are being read.
    run = run_online(SKIP, 11, COPY_ON_WRITE)
    assert not run.is_feasible
    assert run.failure == Failure("no room", 3, 4, 3, (1, 3), 8)
    assert run.schedule == (0, 1, 2, 0)


def test_a_budget_under_the_fixed_bytes_is_a_failure_and_no_exception() -> None:
    run = run_online(replace(SKIP, fixed=100), 90)
    assert run.failure == Failure("no room", None, 10)
    assert run.schedule == ()


def test_expensive_values_lie_low_and_cheap_ones_high() -> None:
    ops = [op((0,), (1,)), Op("matmul", (1,), (2,), 9.0, is_expensive=True)]
    ops += [op((2,), (3,)), op((1, 2, 3), (4,))]
    several = problem(ops, [2, 3, 4, 1])
    coop, plain = run_online(several, 20), run_online(several, 20, NO_PARTITION)
    assert coop.offsets == {(0, 1): 18, (1, 2): 0, (2, 3): 14, (3, 4): 13}
    assert plain.offsets == {(0, 1): 0, (1, 2): 2, (2, 3): 5, (3, 4): 9}


def four_and_a_large_one(costs: list[float], dead: int | None = None) -> Problem:
    """Four values of 4 bytes side by side, then one of 8; then all are read.

    Before the large one comes a long wait, which makes the four equally stale. If one
    is `dead`, it is read before that.
    """
    ops = [op((0,), (i,), cost) for i, cost in enumerate(costs, start=1)]
    ops.append(op((dead or 0,), (6,), 1e9))
    ops += [op((0,), (5,)), op((5,), (7,))]
    later = [i for i in range(1, 5) if i != dead]
    ops += [op((i,), (7 + k,)) for k, i in enumerate(later, start=1)]
    return problem(ops, [4, 4, 4, 4, 8, 0, 0, 0, 0, 0, 0][: 7 + len(later)])


def evicted(problem: Problem, run: OnlineRun) -> set[int]:
    again = {o for o in run.schedule if run.schedule.count(o) > 1}
    return {v for o in again for v in problem.ops[o].outputs}


def test_a_window_evicts_neighbours_where_one_by_one_evicts_more() -> None:
    # One by one: 1 and 3 are the cheapest but not adjacent, so 4 has to go as well.
    several = four_and_a_large_one([10.0, 90.0, 11.0, 14.0])
    window = run_online(several, 16, NO_PARTITION)
    single = run_online(several, 16, DTR)
    assert evicted(several, window) == {3, 4}
    assert evicted(several, single) == {1, 3, 4}
    assert (window.evictions, single.evictions) == (2, 3)
    for run in (window, single):
        validate(several, run.schedule, 16, run.offsets)


def test_free_neighbours_make_a_victim_for_dte() -> None:
    # 4 is cheaper than 1, but 1 lies next to the free bytes of 2.
    several = four_and_a_large_one([18.0, 1.0, 50.0, 10.0], dead=2)
    assert evicted(several, run_online(several, 16, DTE)) == {1}
    assert evicted(several, run_online(several, 16, DTR)) == {1, 4}
    assert evicted(several, run_online(several, 16, NO_PARTITION)) == {1}


def test_evicting_a_value_raises_the_cost_of_what_is_computed_from_it() -> None:
    sets = EvictedSets([1.0, 2.0, 4.0])
    sets.evict(0, ())
    sets.evict(1, {0})
    assert sets.cost(0) == sets.cost(1) == 3.0
    sets.evict(2, {1})
    assert sets.cost(0) == 7.0
    sets.restore(0)
    assert sets.cost(0) == 1.0
    assert sets.cost(1) == sets.cost(2) == 6.0


def test_in_place_needs_the_input_to_be_dead() -> None:
    ops = [op((0,), (1,)), Op("over", (1,), (2,), 1.0, in_place=((1, 2),))]
    dead = problem([*ops, op((2,), (3,))], [4, 4, 0])
    alive = problem([*ops, op((1, 2), (3,))], [4, 4, 0])
    assert run_online(dead, 4).is_feasible
    assert not run_online(alive, 4).is_feasible
    assert run_online(alive, 8).is_feasible
    assert not run_online(dead, 4, COPY_ON_WRITE).is_feasible


def test_what_another_op_waits_for_is_not_overwritten() -> None:
    # 3 is computed again from 1 and 2, and meanwhile 2 must not take the bytes of 1.
    over = Op("over", (1,), (2,), 1.0, in_place=((1, 2),))
    ops = [op((0,), (1,)), over, op((1, 2), (3,)), op((), (4,)), op((4,), (5,))]
    several = problem([*ops, op((3,), (6,))], [4, 4, 4, 12, 0, 0])
    run = run_online(several, 12)
    assert run.schedule == (0, 1, 2, 3, 4, 0, 1, 2, 5)
    validate(several, run.schedule, 12, run.offsets)


def test_an_output_that_is_still_there_stays_when_its_op_runs_again() -> None:
    # 2 and 3 come from one op, 2 over 1. 3 is evicted for 4, and 2 is not.
    both = Op("both", (1,), (2, 3), 1.0, in_place=((1, 2),))
    ops = [op((0,), (1,)), both, op((), (4,)), op((4,), (5,)), op((3,), (6,))]
    several = problem([*ops, op((2,), (7,))], [4, 4, 4, 8, 0, 0, 0])
    run = run_online(several, 12)
    assert run.schedule == (0, 1, 2, 3, 0, 1, 4, 5)
    first, again = {(0, 1): 8, (1, 2): 8, (1, 3): 4}, {(4, 1): 4, (5, 2): 8, (5, 3): 0}
    assert run.offsets == first | {(2, 4): 0} | again
    validate(several, run.schedule, 12, run.offsets)


def test_what_needs_an_argument_comes_back_before_it_is_overwritten() -> None:
    # 1 comes from the argument, is evicted for 2, and is read after the update.
    several = problem(
        [op((0,), (1,)), op((), (2,)), op((2,), (3,)), op((0,), (4,)), op((1,), (5,))],
        [4, 8, 0, 0, 0],
        v4=Value("v4", 0, is_output=True, overwrites=0),
        v5=Value("v5", 0, is_output=True),
    )
    for policy in POLICIES:
        run = run_online(several, 8, policy)
        assert run.schedule == (0, 1, 2, 0, 3, 4)
        validate(several, run.schedule, 8, run.offsets)


def test_a_tiny_value_is_held_for_what_may_be_computed_from_it_again() -> None:
    # 1 comes from the argument; 2, of 64 times its bytes, from 1; then the update.
    several = problem(
        [op((0,), (1,)), op((1,), (2,)), op((0,), (3,)), op((2,), (4,))],
        [4, 256, 0, 0],
        v3=Value("v3", 0, is_output=True, overwrites=0),
        v4=Value("v4", 0, is_output=True),
    )
    limits = deadlines(several, Lifetimes())
    assert limits.held == {1: 3} and limits.due == {2: [1]}
    # What is never evicted is never computed again, and needs nothing for it.
    limits = deadlines(several, Lifetimes(kept=frozenset({2})))
    assert limits.held == {} and 1 not in limits.due[2]


def test_a_tiny_value_is_held_no_longer_than_it_is_of_use() -> None:
    # 2 comes from argument 0; 3, of 64 times its bytes, from 2 and argument 1. First 0
    # is overwritten, then 1, and then 3 is read: it has to be there since op 3.
    several = problem(
        [
            op((0,), (2,)),
            op((1, 2), (3,)),
            op((0,), (4,)),
            op((1,), (5,)),
            op((3,), (6,)),
        ],
        [0, 4, 256, 0, 0, 0],
        v1=Value("v1", 0, is_argument=True),
        v4=Value("v4", 0, is_output=True, overwrites=0),
        v5=Value("v5", 0, is_output=True, overwrites=1),
        v6=Value("v6", 0, is_output=True),
    )
    limits = deadlines(several, Lifetimes())
    assert limits.held == {2: 3} and limits.due == {2: [2], 3: [3]}


def test_what_comes_from_an_op_that_runs_once_comes_back_while_that_is_there() -> None:
    # 1 is drawn once and last read by op 4; 2 comes from it and is read by op 5.
    draw = Op("draw", (0,), (1,), 1.0, is_recomputable=False)
    ops = [draw, op((1,), (2,)), op((), (3,)), op((3,), (4,)), op((1,), (5,))]
    several = problem([*ops, op((2,), (6,))], [2, 4, 6, 0, 0, 0])
    for policy in POLICIES:
        run = run_online(several, 8, policy)
        assert run.schedule == (0, 1, 2, 3, 1, 4, 5), policy
        validate(several, run.schedule, 8, run.offsets)
        # What is drawn is never evicted, whatever it costs not to.
        assert not run_online(several, 7, policy).is_feasible


def test_a_long_chain_needs_no_recursion() -> None:
    length = 3000
    ops = [op((i,), (i + 1,)) for i in range(length)]
    ops += [op((), (length + 1,), 1e9), op((length + 1,), (length + 2,))]
    ops += [op((length,), (length + 3,))]
    chain = problem(ops, [4] * length + [8, 0, 0])
    run = run_online(chain, 8)
    assert run.is_feasible and run.depth == length + 1
    assert run.rematerializations == length


def test_gives_up_when_recomputation_gets_out_of_hand() -> None:
    run = run_online(SKIP, 8, steps_per_op=1)
    assert run.failure == Failure("too many steps", 3, 0)
    assert len(run.schedule) == 4


def training_step(layers: int, sizes: tuple[int, ...]) -> Problem:
    """Per layer a matmul and a cheap op, then backwards, updating donated weights."""
    values = [Value(f"arg{i}", 0, is_argument=True) for i in range(layers + 1)]
    ops: list[Op] = []

    def add(name: str, inputs: set[int], size: int, cost: float, **rest: object) -> int:
        values.append(Value(name, size))
        spec = Op(name, tuple(sorted(inputs)), (len(values) - 1,), cost)
        ops.append(replace(spec, **rest))
        return len(values) - 1

    saved = []
    state = 0
    for i in range(layers):
        size = sizes[i % len(sizes)]
        product = add(f"mul{i}", {state, 1 + i}, size, 10.0, is_expensive=True)
        saved.append((state, product))
        state = add(f"act{i}", {product}, size, 1.0)
    for i in reversed(range(layers)):
        before, product = saved[i]
        size = values[product].size
        state = add(f"dact{i}", {state, product}, size, 1.0)
        weight = add(f"dmul{i}", {state, before}, 2, 10.0, is_expensive=True)
        state = add(f"dx{i}", {state, 1 + i}, size, 10.0, is_expensive=True)
        new = add(f"update{i}", {weight, 1 + i}, 0, 1.0)
        values[new] = Value(f"new{i}", 0, is_output=True, overwrites=1 + i)
    return Problem(tuple(ops), tuple(values), fixed=7, alignment=1)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_a_training_step_fits_half_of_its_bytes(policy: Policy) -> None:
    step = training_step(24, (4, 8, 4))
    budget = peak_bytes(step, step.program_order) // 2
    run = run_online(step, budget, policy)
    assert run.failure is None
    validate(step, run.schedule, budget, run.offsets)
    assert run.cost == pytest.approx(step.cost(run.schedule))
    assert 1.0 < run.cost / step.cost(step.program_order) < 1.5
    assert run.rematerializations == len(run.schedule) - len(step.ops) > 0
    assert all(0 <= share < 1 for share in run.fragmentation)


def test_less_memory_never_makes_a_training_step_much_cheaper() -> None:
    step = training_step(24, (4,))
    peak = peak_bytes(step, step.program_order)
    costs = [run_online(step, peak * share // 10).cost for share in (10, 8, 6, 4)]
    assert costs == sorted(costs)


@settings(max_examples=400, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    length=st.integers(1, 24),
    alignment=st.sampled_from([1, 4]),
    share=st.floats(0.3, 1.3),
    policy=st.sampled_from(POLICIES),
)
def test_whatever_runs_is_valid_and_what_does_not_says_why(
    seed: int, length: int, alignment: int, share: float, policy: Policy
) -> None:
    program = random_problem(seed, length, alignment)
    budget = int(peak_bytes(program, program.program_order) * share)
    run = run_online(program, budget, policy)
    assert run == run_online(program, budget, policy)
    if run.failure is None:
        validate(program, run.schedule, budget, run.offsets)
        buffers = schedule_buffers(program, run.schedule)
        assert live_peak(buffers) == max(live_bytes(program, run.schedule))
        assert assign(buffers, alignment).peak >= live_peak(buffers)
    else:
        pool = budget - program.fixed
        failure = run.failure
        assert failure.reason == "no room"
        assert failure.request > 0 or failure.op is None
        assert pool < 0 or failure.free + failure.pinned_bytes <= pool


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), policy=st.sampled_from(POLICIES))
def test_with_room_for_everything_the_program_runs_as_it_is(
    seed: int, policy: Policy
) -> None:
    program = random_problem(seed)
    room = sum(value.size for value in program.values) + 100
    run = run_online(program, program.fixed + room, policy)
    assert run.schedule == program.program_order
    assert run.evictions == run.rematerializations == 0
    assert run.fragmentation == ()
    validate(program, run.schedule, program.fixed + room, run.offsets)


def test_the_ablations_differ_from_coop_in_one_thing() -> None:
    for ablation, changed in (
        (NO_PARTITION, {"is_partitioned"}),
        (COPY_ON_WRITE, {"is_in_place"}),
        (NO_WINDOW, {"is_windowed", "size_term"}),
        (SIZE_TERM, {"size_term"}),
    ):
        fields = set(Policy.__slots__) - {"name"}
        differ = {f for f in fields if getattr(COOP, f) != getattr(ablation, f)}
        assert differ == changed


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
