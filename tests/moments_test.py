"""Moments of an optimizer wait for their weight where there is room."""

import random
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from coop_jax._fitting.moments import with_moments_waiting
from coop_jax._planning.types import Op, OpId, Problem, Value
from coop_jax._planning.validate import live_bytes, validate

WEIGHT, MOMENT, GRADIENT, MOMENT_AFTER, PASSED, WEIGHT_AFTER, BALLAST, SUM = range(8)


def one_weight(ballast: int = 12) -> Problem:
    """A gradient of 4 bytes, passed on through a weight, and something large after."""
    return Problem(
        (
            Op("gradient", (), (GRADIENT,), 1.0),
            Op("moment", (MOMENT, GRADIENT), (MOMENT_AFTER,), 1.0),
            Op("pass on", (WEIGHT,), (PASSED,), 1.0),
            Op("update", (WEIGHT, MOMENT_AFTER), (WEIGHT_AFTER,), 1.0),
            Op("ballast", (), (BALLAST,), 1.0),
            Op("sum", (PASSED, BALLAST), (SUM,), 1.0),
        ),
        (
            Value("weight", 0, is_argument=True),
            Value("moment", 0, is_argument=True),
            Value("gradient", 4),
            Value("moment after", 0, is_output=True, overwrites=MOMENT),
            Value("passed", 8),
            Value("weight after", 0, is_output=True, overwrites=WEIGHT),
            Value("ballast", ballast),
            Value("sum", 0, is_output=True),
        ),
    )


PARTS = [[0, 1], [2], [3], [4, 5]]


def test_a_moment_waits_for_its_weight() -> None:
    # Meanwhile 4 bytes are alive beside 8, and later 12 beside 8.
    found = with_moments_waiting(one_weight(), PARTS, frozenset())
    assert found == [[0], [2], [1, 3], [4, 5]]


def test_not_without_room() -> None:
    tight = one_weight(ballast=3)
    assert with_moments_waiting(tight, PARTS, frozenset()) == PARTS


def test_workspace_takes_room_and_more_where_it_may_be_written_early() -> None:
    problem = one_weight()
    ops = list(problem.ops)
    ops[2] = replace(ops[2], workspace=6)
    problem = replace(problem, ops=tuple(ops))
    assert with_moments_waiting(problem, PARTS, frozenset()) != PARTS
    assert with_moments_waiting(problem, PARTS, {2}) == PARTS


def test_not_if_something_else_reads_the_moment() -> None:
    problem = one_weight()
    ops = list(problem.ops)
    ops[2] = replace(ops[2], inputs=(WEIGHT, MOMENT_AFTER))
    problem = replace(problem, ops=tuple(ops))
    assert with_moments_waiting(problem, PARTS, frozenset()) == PARTS


def test_not_if_what_it_reads_is_overwritten_meanwhile() -> None:
    problem = one_weight()
    ops = [*problem.ops[:2], Op("other", (), (8,), 1.0), *problem.ops[2:]]
    other = Value("other", 0, is_output=True, overwrites=9)
    decay = Value("decay", 0, is_argument=True)
    problem = replace(problem, ops=tuple(ops), values=(*problem.values, other, decay))
    parts = [[0, 1], [2, 3], [4], [5, 6]]
    assert with_moments_waiting(problem, parts, frozenset()) != parts
    ops[1] = replace(ops[1], inputs=(MOMENT, GRADIENT, 9))
    problem = replace(problem, ops=tuple(ops))
    assert with_moments_waiting(problem, parts, frozenset()) == parts


def test_what_a_moment_is_made_of_goes_along_if_it_is_an_update_too() -> None:
    problem = one_weight()
    ops = list(problem.ops)
    ops.insert(1, Op("count", (8, GRADIENT), (9,), 1.0))
    ops[2] = replace(ops[2], inputs=(MOMENT, 9))
    count = Value("count", 0, is_argument=True)
    counted = Value("counted", 0, is_output=True, overwrites=8)
    problem = replace(problem, ops=tuple(ops), values=(*problem.values, count, counted))
    found = with_moments_waiting(problem, [[0, 1, 2], [3], [4], [5, 6]], frozenset())
    assert found == [[0], [3], [1, 2, 4], [5, 6]]


def random_optimizer(rng: random.Random) -> tuple[Problem, list[list[OpId]]]:
    """Layers backwards, each with a gradient, moments and a weight, cut at random."""
    ops: list[Op] = []
    values: list[Value] = []

    def value(size: int, **kind: Any) -> int:
        values.append(Value(f"value {len(values)}", size, **kind))
        return len(values) - 1

    def op(name: str, inputs: set[int], output: int, workspace: int = 0) -> OpId:
        ops.append(Op(name, tuple(sorted(inputs)), (output,), 1.0, workspace))
        return len(ops) - 1

    passed = value(rng.randint(1, 8))
    schedule = [op("loss", set(), passed)]
    for _ in range(rng.randint(1, 5)):
        weight = value(0, is_argument=True)
        gradient = value(rng.randint(1, 8))
        schedule.append(op("gradient", {passed}, gradient, rng.randint(0, 2)))
        moments = []
        for _ in range(rng.randint(0, 2)):
            before = value(0, is_argument=True)
            read = {
                before,
                gradient,
                *rng.sample(moments, rng.randint(0, len(moments))),
            }
            moments.append(value(0, is_output=True, overwrites=before))
            schedule.append(op("moment", read, moments[-1]))
        following = value(rng.randint(1, 8))
        pass_on = op("pass on", {weight, passed}, following, rng.randint(0, 2))
        again = [pass_on, 0] if rng.random() < 0.3 else [pass_on]
        passed = following
        after = value(0, is_output=True, overwrites=weight)
        read = {weight, *moments} if moments else {weight, gradient}
        schedule += [*again, op("update", read, after)]
    schedule.append(op("rest", {passed}, value(rng.randint(1, 20), is_output=True)))
    parts: list[list[OpId]] = [[]]
    for each in schedule:
        if each in parts[-1] or rng.random() < 0.5:
            parts.append([])
        parts[-1].append(each)
    return Problem(tuple(ops), tuple(values)), [part for part in parts if part]


def all_alive(problem: Problem, part: int, parts: list[list[OpId]]) -> int:
    """Bytes of what is there before a part and read later, and of all that it makes."""
    made = {v: i for i in range(part) for v in written(problem, parts[i])}
    total = sum(problem.values[v].size for v in written(problem, parts[part]))
    for v in made:
        for later in parts[part:]:
            if any(v in problem.ops[op].inputs for op in later):
                total += problem.values[v].size
                break
            if v in written(problem, later):
                break
        else:
            total += problem.values[v].is_output * problem.values[v].size
    return total + max(problem.ops[op].workspace for op in parts[part])


def written(problem: Problem, ops: list[OpId]) -> set[int]:
    return {v for op in ops for v in problem.ops[op].outputs}


@pytest.mark.parametrize("seed", range(200))
def test_random_ones_stay_valid_and_within_the_peak(seed: int) -> None:
    problem, parts = random_optimizer(random.Random(seed))
    schedule = tuple(chain(*parts))
    validate(problem, schedule)
    most = max(live_bytes(problem, schedule))
    found = with_moments_waiting(problem, parts, frozenset())
    validate(problem, tuple(chain(*found)))
    assert sorted(chain(*found)) == sorted(schedule)
    origin = 0
    for i, part in enumerate(found):
        while part[-1] not in parts[origin]:
            origin += 1
        known = all_alive(problem, origin, parts)
        assert all_alive(problem, i, found) <= max(most, known)
        origin += 1


def test_of_random_ones_some_wait_and_some_do_not() -> None:
    problems = (random_optimizer(random.Random(seed)) for seed in range(200))
    waits = [with_moments_waiting(*each, frozenset()) != each[1] for each in problems]
    assert 10 < sum(waits) < len(waits) - 10


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
