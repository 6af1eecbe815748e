"""The oracle itself: small schedules by eye, and each rule broken once."""

import random
import re
from dataclasses import replace

import pytest

from coop_jax._planning.types import LiveRange, Op, Problem, Schedule, Value
from coop_jax._planning.validate import (
    WORKSPACE,
    InvalidSchedule,
    live_bytes,
    live_ranges,
    peak_bytes,
    validate,
)


def random_problem(seed: int, length: int = 12, alignment: int = 1) -> Problem:
    """A small program with every feature: a chain with long skips, like a backward
    pass, some outputs in pairs, in-place pairs, effects, donated arguments."""
    rng = random.Random(seed)
    values = [Value(f"arg{i}", 0, is_argument=True) for i in range(rng.randint(1, 3))]
    ops: list[Op] = []
    donated = list(range(len(values)))
    rng.shuffle(donated)
    writes_from = length - rng.randint(0, 3)
    for k in range(length):
        readable = [v for v in range(len(values)) if v not in _gone(values)]
        recent = readable[-3:]
        count = min(len(readable), rng.randint(1, 3))
        inputs = {rng.choice(recent), *rng.sample(readable, count)}
        first = len(values)
        for _ in range(rng.choice([1, 1, 1, 2, 0])):
            size = rng.choice([0, 1, 2, 3, 4, 4, 8])
            values.append(Value(f"v{len(values)}", size, is_output=rng.random() < 0.1))
        outputs = tuple(range(first, len(values)))
        if k >= writes_from and outputs and donated:
            target = donated.pop()
            name = values[first].name
            values[first] = Value(name, 0, is_output=True, overwrites=target)
        pairs = [
            (v, w)
            for v in inputs
            for w in outputs
            if not values[v].is_argument and values[v].size == values[w].size
        ]
        ops.append(
            Op(
                f"op{k}",
                tuple(sorted(inputs)),
                outputs,
                cost=rng.choice([0.0, 1.0, 2.0, 10.0]),
                workspace=rng.choice([0, 0, 0, 2]),
                is_recomputable=rng.random() < 0.9,
                is_expensive=rng.random() < 0.3,
                in_place=tuple(pairs) if rng.random() < 0.5 else (),
            )
        )
        if ops[-1].workspace and k % 2:
            ops[-1] = replace(ops[-1], pieces=(1, 1))
    return Problem(
        tuple(ops),
        tuple(values),
        fixed=rng.choice([0, 5]),
        alignment=alignment,
        once=rng.choice([0.0, 4.0]),
    )


def _gone(values: list[Value]) -> set[int]:
    return {value.overwrites for value in values if value.overwrites is not None}


# x -> a (4 bytes) -> b (2) -> c (4, output); c also reads a.
BY_EYE = Problem(
    ops=(
        Op("a", (0,), (1,), cost=1.0),
        Op("b", (1,), (2,), cost=1.0, workspace=3),
        Op("c", (1, 2), (3,), cost=1.0, in_place=((1, 3),)),
    ),
    values=(
        Value("x", 0, is_argument=True),
        Value("a", 4),
        Value("b", 2),
        Value("c", 4, is_output=True),
    ),
    fixed=10,
    alignment=1,
)


def test_live_ranges_by_eye() -> None:
    assert live_ranges(BY_EYE, (0, 1, 0, 2)) == [
        (1, LiveRange(0, 2)),
        (2, LiveRange(1, 4)),
        (1, LiveRange(2, 4)),
        (3, LiveRange(3, 5)),
    ]


def test_live_bytes_by_eye() -> None:
    # The last step reads a and b and writes c over a: 4 + 2, not 4 + 2 + 4.
    assert live_bytes(BY_EYE, (0, 1, 2)) == [4, 4 + 2 + 3, 4 + 2]
    assert peak_bytes(BY_EYE, (0, 1, 2)) == 10 + 9


def test_an_output_is_alive_to_the_end_and_a_dead_value_in_its_own_step() -> None:
    values = (Value("o", 4, is_output=True), Value("d", 2), Value("e", 1))
    ops = (Op("o", (), (0,), 1.0), Op("d", (), (1,), 1.0), Op("e", (), (2,), 1.0))
    assert live_bytes(Problem(ops, values), (0, 1, 2)) == [4, 6, 5]


def test_an_output_is_not_handed_over_by_the_last_step() -> None:
    values = (Value("o", 4, is_output=True), Value("p", 4, is_output=True))
    ops = (Op("o", (), (0,), 1.0), Op("p", (0,), (1,), 1.0, in_place=((0, 1),)))
    assert live_bytes(Problem(ops, values), (0, 1)) == [4, 8]
    with pytest.raises(InvalidSchedule, match="share bytes"):
        validate(Problem(ops, values), (0, 1), offsets={(0, 0): 0, (1, 1): 0})


def test_program_order_is_valid_for_random_programs() -> None:
    for seed in range(300):
        problem = random_problem(seed)
        peak = peak_bytes(problem, problem.program_order)
        validate(problem, problem.program_order, budget=peak)
        with pytest.raises(InvalidSchedule, match="peak"):
            validate(problem, problem.program_order, budget=peak - 1)


def test_valid_offsets_pass() -> None:
    offsets = {(0, 1): 0, (1, 2): 4, (1, WORKSPACE): 6, (2, 3): 0}
    validate(BY_EYE, (0, 1, 2), budget=19, offsets=offsets)


@pytest.mark.parametrize(
    ("offsets", "why"),
    [
        ({(0, 1): 0, (1, 2): 3, (2, 3): 0}, "value 1 of step 0 and value 2 of step 1"),
        ({(0, 1): 0, (1, 2): 4, (2, 3): 1}, "value 1 of step 0 and value 3 of step 2"),
        ({(0, 1): 0, (1, 2): 4, (2, 3): 4}, "value 2 of step 1 and value 3 of step 2"),
        ({(0, 1): 0, (1, 2): 4, (1, WORKSPACE): 5, (2, 3): 0}, "share bytes"),
        ({(0, 1): 0, (1, 2): 8, (2, 3): 0}, "outside the pool"),
        ({(0, 1): -1, (1, 2): 4, (2, 3): 0}, "outside the pool"),
        ({(0, 1): 0, (2, 3): 0}, "step 1 gives value 2 no offset"),
    ],
)
def test_offsets_that_do_not_hold_are_refused(
    offsets: dict[tuple[int, int], int], why: str
) -> None:
    with pytest.raises(InvalidSchedule, match=re.escape(why)):
        validate(BY_EYE, (0, 1, 2), budget=19, offsets=offsets)


def test_offsets_must_be_aligned() -> None:
    problem = Problem(BY_EYE.ops, BY_EYE.values, alignment=4)
    with pytest.raises(InvalidSchedule, match="not aligned"):
        validate(problem, (0, 1, 2), offsets={(0, 1): 0, (1, 2): 6, (2, 3): 0})


# A random op, then one that reads the argument, then one that overwrites it.
STATEFUL = Problem(
    ops=(
        Op("draw", (0,), (1,), 1.0, is_recomputable=False),
        Op("use", (0, 1), (2,), 1.0),
        Op("send", (2,), (), 1.0, is_recomputable=False),
        Op("update", (0, 2), (3,), 1.0),
    ),
    values=(
        Value("state", 0, is_argument=True),
        Value("noise", 4),
        Value("used", 4),
        Value("new", 0, is_output=True, overwrites=0),
    ),
)


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        ((0, 1, 2), "op 3 ('update') never runs"),
        ((0, 1, 3), "op 2 ('send') never runs"),
        ((0, 0, 1, 2, 3), "step 1 runs 'draw' again"),
        ((0, 1, 2, 3, 3), "op 3 ('update') overwrites an argument twice"),
        ((0, 2, 1, 3), "step 1 ('send') reads value 2 ('used') before"),
        ((0, 1, 2, 3, 1), "step 4 ('use') reads argument 0 ('state'), overwritten"),
        ((0, 1, 2, 3, 9), "step 4 runs op 9"),
    ],
)
def test_schedules_that_do_not_compute_the_program_are_refused(
    schedule: Schedule, why: str
) -> None:
    validate(STATEFUL, (0, 1, 2, 3))
    with pytest.raises(InvalidSchedule, match=re.escape(why)):
        validate(STATEFUL, schedule)


def test_effects_keep_their_order() -> None:
    ops = (
        Op("first", (), (), 1.0, is_recomputable=False),
        Op("second", (), (), 1.0, is_recomputable=False),
    )
    with pytest.raises(InvalidSchedule, match="out of program order"):
        validate(Problem(ops, ()), (1, 0))


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
