"""Checks a schedule and its arena offsets in the most obvious way. Imports no JAX.

Nothing here is shared with the planners: liveness is read off the schedule step by
step, and every pair of instances is compared, O(n^2). Tests run it on everything, and
its `live_bytes` is the oracle for the incremental versions.

An instance of a value is alive from the step that computes it to the last step that
reads it before the value is computed again; if nothing reads it, during its own step.
A program output's last instance is alive beyond the last step, so its range ends at
`len(schedule) + 1`. Arguments are always there, and their bytes are `Problem.fixed`.
"""

from collections.abc import Mapping
from itertools import combinations

from ._types import LiveRange, OpId, Problem, Schedule, ValueId

type Instance = tuple[ValueId, LiveRange]
"""A value and the steps over which one computation of it is alive."""

type Offsets = Mapping[tuple[int, ValueId], int]
"""(Position in the schedule, value computed there) -> offset in the pool, bytes."""

WORKSPACE: ValueId = -1
"""Stands for a step's workspace in `Offsets`."""


class InvalidSchedule(ValueError):
    """A schedule that does not compute the program, or does not fit as claimed."""


def validate(
    problem: Problem,
    schedule: Schedule,
    budget: int | None = None,
    offsets: Offsets | None = None,
) -> None:
    """Raises `InvalidSchedule`, naming step and value, unless all is in order.

    Args:
      problem: the program.
      schedule: op numbers in the order they run.
      budget: bytes that `fixed` plus the pool may come to, or None for no limit.
      offsets: where each step puts each value it computes. Values of size 0 need none.
        A step's workspace may be given as value `WORKSPACE`.
    """
    _check_runs(problem, schedule)
    _check_inputs(problem, schedule)
    _check_overwrites(problem, schedule)
    if budget is not None:
        peak = peak_bytes(problem, schedule)
        _require(peak <= budget, f"its peak of {peak:,} bytes is over {budget:,}")
    if offsets is not None:
        pool = None if budget is None else budget - problem.fixed
        _check_offsets(problem, schedule, offsets, pool)


def live_ranges(problem: Problem, schedule: Schedule) -> list[Instance]:
    """Returns every instance of every value, in the order they are computed."""
    found: list[Instance] = []
    latest: dict[ValueId, int] = {}
    for step, op in enumerate(schedule):
        for value in problem.ops[op].inputs:
            if value in latest:
                _, range_ = found[latest[value]]
                found[latest[value]] = (value, LiveRange(range_.start, step + 1))
        for value in problem.ops[op].outputs:
            latest[value] = len(found)
            found.append((value, LiveRange(step, step + 1)))
    for value, index in latest.items():
        if problem.values[value].is_output:
            start = found[index][1].start
            found[index] = (value, LiveRange(start, len(schedule) + 1))
    return found


def live_bytes(problem: Problem, schedule: Schedule) -> list[int]:
    """Returns the bytes alive in the pool at each step, `fixed` left out.

    A step's workspace counts at that step. A value that hands its bytes over in place
    counts once, together with its successor, at the step where that happens.
    """
    instances = live_ranges(problem, schedule)
    alive = []
    for step, op in enumerate(schedule):
        size = problem.ops[op].workspace
        for value, range_ in instances:
            if range_.start <= step < range_.end:
                size += problem.values[value].size
        alive.append(size - _handed_over(problem, op, step, instances))
    return alive


def peak_bytes(problem: Problem, schedule: Schedule) -> int:
    """Returns the most bytes alive at any step, `fixed` included."""
    return problem.fixed + max(live_bytes(problem, schedule), default=0)


def _handed_over(
    problem: Problem, op: OpId, step: int, instances: list[Instance]
) -> int:
    dying = {v for v, range_ in instances if range_.start < step == range_.end - 1}
    size = 0
    taken: set[ValueId] = set()
    for source, target in problem.ops[op].in_place:
        if source in dying and not taken & {source, target}:
            taken |= {source, target}
            size += min(problem.values[source].size, problem.values[target].size)
    return size


def _require(claim: bool, why: str) -> None:
    if not claim:
        raise InvalidSchedule(f"The schedule is not valid: {why}.")


def _overwrites(problem: Problem, op: OpId) -> bool:
    outputs = problem.ops[op].outputs
    return any(problem.values[v].overwrites is not None for v in outputs)


def _check_runs(problem: Problem, schedule: Schedule) -> None:
    """What must run does; what may run once runs once, in program order."""
    last = -1
    for step, op in enumerate(schedule):
        _require(0 <= op < len(problem.ops), f"step {step} runs op {op} of none")
        if problem.ops[op].is_recomputable:
            continue
        name = problem.ops[op].name
        _require(op > last, f"step {step} runs {name!r} again or out of program order")
        last = op
    for op, spec in enumerate(problem.ops):
        runs = schedule.count(op)
        is_wanted = any(problem.values[v].is_output for v in spec.outputs)
        is_effect = not spec.is_recomputable or not spec.outputs
        if is_wanted or is_effect or _overwrites(problem, op):
            _require(runs > 0, f"op {op} ({spec.name!r}) never runs")
        if _overwrites(problem, op):
            _require(runs == 1, f"op {op} ({spec.name!r}) overwrites an argument twice")


def _check_inputs(problem: Problem, schedule: Schedule) -> None:
    """Every step finds its inputs computed."""
    computed = {v for v, value in enumerate(problem.values) if value.is_argument}
    for step, op in enumerate(schedule):
        for v in problem.ops[op].inputs:
            what = f"step {step} ({problem.ops[op].name!r}) reads"
            name = problem.values[v].name
            _require(
                v in computed, f"{what} value {v} ({name!r}) before it is computed"
            )
        computed.update(problem.ops[op].outputs)


def _check_overwrites(problem: Problem, schedule: Schedule) -> None:
    """No step reads an argument after a value has taken over its bytes."""
    gone: dict[ValueId, int] = {}
    for step, op in enumerate(schedule):
        for v in problem.ops[op].inputs:
            what = f"step {step} ({problem.ops[op].name!r}) reads argument {v}"
            why = f"{what} ({problem.values[v].name!r}), overwritten by step"
            _require(v not in gone, f"{why} {gone.get(v)}")
        for v in problem.ops[op].outputs:
            argument = problem.values[v].overwrites
            if argument is not None:
                gone[argument] = step


def _check_offsets(
    problem: Problem, schedule: Schedule, offsets: Offsets, pool: int | None
) -> None:
    """No two instances share bytes while both are alive, save in place."""
    placed: list[tuple[ValueId, LiveRange, int, int]] = []
    for value, range_ in live_ranges(problem, schedule):
        size = problem.values[value].size
        if size > 0:
            at = (range_.start, value)
            _require(at in offsets, f"step {at[0]} gives value {value} no offset")
            placed.append((value, range_, offsets[at], size))
    for (step, value), offset in offsets.items():
        if value == WORKSPACE:
            size = problem.ops[schedule[step]].workspace
            placed.append((value, LiveRange(step, step + 1), offset, size))
    for value, range_, offset, size in placed:
        what = f"step {range_.start} puts value {value} at {offset:,}"
        is_inside = offset >= 0 and (pool is None or offset + size <= pool)
        _require(is_inside, f"{what}, which is outside the pool of {pool} bytes")
        _require(offset % problem.alignment == 0, f"{what}, which is not aligned")
    for one, other in combinations(placed, 2):
        (value, range_, offset, size), (value2, range2, offset2, size2) = one, other
        if not range_.overlaps(range2):
            continue
        if offset + size <= offset2 or offset2 + size2 <= offset:
            continue
        _require(
            _is_in_place(problem, schedule, one, other)
            or _is_in_place(problem, schedule, other, one),
            f"value {value} of step {range_.start} and value {value2} of step "
            f"{range2.start} are alive together and share bytes",
        )


def _is_in_place(
    problem: Problem,
    schedule: Schedule,
    source: tuple[ValueId, LiveRange, int, int],
    target: tuple[ValueId, LiveRange, int, int],
) -> bool:
    step = target[1].start
    return (
        (source[0], target[0]) in problem.ops[schedule[step]].in_place
        and source[1].start < step == source[1].end - 1
        and source[2] == target[2]
    )
