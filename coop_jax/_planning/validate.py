"""Checks a schedule and its arena offsets in the most obvious way. Imports no JAX.

Nothing here is shared with the planners: liveness is read off the schedule step by
step, and the pool is filled and emptied as the steps go by. Tests run it on everything,
its `live_bytes` is the oracle for the incremental versions, and as it is near linear,
every run of the simulator goes through it too.

An instance of a value is alive from the step that computes it to the last step that
reads it before the value is computed again; if nothing reads it, during its own step.
A program output's last instance is alive beyond the last step, so its range ends at
`len(schedule) + 1`. Arguments are there from before the first step, step -1, as long as
something reads them; those of size 0 have their bytes in `Problem.fixed`.
"""

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter

from .types import LiveRange, OpId, Problem, Schedule, ValueId

type Instance = tuple[ValueId, LiveRange]
"""A value and the steps over which one computation of it is alive."""

type Offsets = Mapping[tuple[int, ValueId], int]
"""(Position in the schedule, value computed there) -> offset in the pool, bytes.

Arguments with a size are at position -1."""

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
    values: list[ValueId] = []
    starts: list[int] = []
    ends: list[int] = []
    latest: dict[ValueId, int] = {}

    def begin(value: ValueId, step: int) -> None:
        latest[value] = len(values)
        values.append(value)
        starts.append(step)
        ends.append(step + 1)

    for v, value in enumerate(problem.values):
        if value.is_argument and value.size > 0:
            begin(v, -1)
    for step, op in enumerate(schedule):
        for v in problem.ops[op].inputs:
            if v in latest:
                ends[latest[v]] = step + 1
        for v in problem.ops[op].outputs:
            begin(v, step)
    for v, index in latest.items():
        if problem.values[v].is_output:
            ends[index] = len(schedule) + 1
    return list(zip(values, map(LiveRange, starts, ends), strict=True))


def live_bytes(problem: Problem, schedule: Schedule) -> list[int]:
    """Returns the bytes alive in the pool at each step, `fixed` left out.

    A step's workspace counts at that step. A value that hands its bytes over in place
    counts once, together with its successor, at the step where that happens.
    """
    instances = live_ranges(problem, schedule)
    steps = len(schedule)
    change = [0] * (steps + 2)
    ending: dict[int, set[ValueId]] = defaultdict(set)
    for value, range_ in instances:
        change[max(0, range_.start)] += problem.values[value].size
        change[range_.end] -= problem.values[value].size
        if range_.start < range_.end - 1:
            ending[range_.end - 1].add(value)
    alive = list(accumulate(change))[:steps]
    for step, op in enumerate(schedule):
        alive[step] += problem.ops[op].workspace
        alive[step] -= _handed_over(problem, op, ending[step])
    return alive


def peak_bytes(problem: Problem, schedule: Schedule) -> int:
    """Returns the most bytes alive at any step, `fixed` included."""
    return problem.fixed + max(live_bytes(problem, schedule), default=0)


def _handed_over(problem: Problem, op: OpId, dying: set[ValueId]) -> int:
    size = 0
    taken: set[ValueId] = set()
    for source, target in problem.ops[op].in_place:
        if source in dying and not taken & {source, target}:
            taken |= {source, target}
            size += min(problem.values[source].size, problem.values[target].size)
    return size


def _require(claim: bool, why: str) -> None:
    if not claim:
        raise _invalid(why)


def _invalid(why: str) -> InvalidSchedule:
    return InvalidSchedule(f"The schedule is not valid: {why}.")


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
    count = Counter(schedule)
    for op, spec in enumerate(problem.ops):
        runs = count[op]
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
            if v not in computed:
                what = f"step {step} ({problem.ops[op].name!r}) reads value {v}"
                name = problem.values[v].name
                raise _invalid(f"{what} ({name!r}) before it is computed")
        computed.update(problem.ops[op].outputs)


def _check_overwrites(problem: Problem, schedule: Schedule) -> None:
    """No step reads an argument after a value has taken over its bytes."""
    gone: dict[ValueId, int] = {}
    for step, op in enumerate(schedule):
        for v in problem.ops[op].inputs:
            if v in gone:
                what = f"step {step} ({problem.ops[op].name!r}) reads argument {v}"
                name = problem.values[v].name
                raise _invalid(f"{what} ({name!r}), overwritten by step {gone[v]}")
        for v in problem.ops[op].outputs:
            argument = problem.values[v].overwrites
            if argument is not None:
                gone[argument] = step


@dataclass(slots=True)
class _Placed:
    """An instance in the pool: bytes `offset` to `end`, over the steps `range_`."""

    offset: int
    end: int
    value: ValueId
    range_: LiveRange


_offset, _end = attrgetter("offset"), attrgetter("end")


def _check_offsets(
    problem: Problem, schedule: Schedule, offsets: Offsets, pool: int | None
) -> None:
    """No two instances share bytes while both are alive, save in place."""
    starting: dict[int, list[_Placed]] = defaultdict(list)
    for value, range_ in live_ranges(problem, schedule):
        size = problem.values[value].size
        if size > 0:
            at = (range_.start, value)
            _require(at in offsets, f"step {at[0]} gives value {value} no offset")
            placed = _Placed(offsets[at], offsets[at] + size, value, range_)
            starting[range_.start].append(placed)
    for (step, value), offset in offsets.items():
        if value == WORKSPACE:
            end = offset + problem.ops[schedule[step]].workspace
            placed = _Placed(offset, end, value, LiveRange(step, step + 1))
            starting[step].append(placed)
    there: list[_Placed] = []
    ending: dict[int, list[_Placed]] = defaultdict(list)
    for step in range(-1, len(schedule)):
        for placed in ending.pop(step, ()):
            index = bisect_left(there, placed.offset, key=_offset)
            if index < len(there) and there[index] is placed:
                del there[index]
        for placed in starting.get(step, ()):
            is_inside = placed.offset >= 0 and (pool is None or placed.end <= pool)
            if not is_inside or placed.offset % problem.alignment:
                what = f"step {step} puts value {placed.value} at {placed.offset:,}"
                why = (
                    "not aligned" if is_inside else f"outside the pool of {pool} bytes"
                )
                raise _invalid(f"{what}, which is {why}")
            _make_room(problem, schedule, there, placed)
            insort(there, placed, key=_offset)
            ending[placed.range_.end].append(placed)


def _make_room(
    problem: Problem, schedule: Schedule, there: list[_Placed], new: _Placed
) -> None:
    """Requires that what lies where `new` goes hands its bytes over, and takes it out.

    Instances that are there do not overlap, so they are in the order of their ends too.
    """
    index = bisect_left(there, new.offset + 1, key=_end)
    while index < len(there) and there[index].offset < new.end:
        other = there[index]
        if not _is_in_place(problem, schedule, other, new):
            one = f"value {other.value} of step {other.range_.start}"
            two = f"value {new.value} of step {new.range_.start}"
            raise _invalid(f"{one} and {two} are alive together and share bytes")
        del there[index]


def _is_in_place(
    problem: Problem, schedule: Schedule, source: _Placed, target: _Placed
) -> bool:
    step = target.range_.start
    return (
        step >= 0
        and (source.value, target.value) in problem.ops[schedule[step]].in_place
        and source.range_.start < step == source.range_.end - 1
        and source.offset == target.offset
    )
