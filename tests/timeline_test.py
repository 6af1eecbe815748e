"""What the pictures show is what the plan says, computed a second way."""

import dataclasses

import numpy as np
import pytest

from coop_jax._measure import MemoryUse
from coop_jax._plan import Action, Argument, Plan
from coop_jax._planning.buffer_assignment import assign, schedule_buffers
from coop_jax._planning.types import Op, Problem, Value
from coop_jax._planning.validate import live_bytes
from coop_jax._report.timeline import (
    FIXED,
    after,
    before,
    places_of_program_order,
)
from tests.small_step import small_plan

# Two layers by hand: a -> b -> gradient of b -> gradient of a, in 10-byte values.
HAND = Plan(
    budget=60,
    unplanned=MemoryUse(20, 14, 10, 40),
    measured=MemoryUse(20, 14, 10, 30),
    predicted=54,
    flops=1.1,
    time=1.2,
    actions=(
        Action("f at m.py:1 (loss)", 10, "recomputed", 2, 1, "float32[10]"),
        Action("g at m.py:2 (loss)", 20, "kept", 1, 2, "float32[20]"),
        Action("h at m.py:2 (loss)", 10, "kept", 1, 3, "float32[2]", is_backward=True),
    ),
    positions=((0, 2), (1,), (2,), (3,)),
    policy="coop",
    compiles=2,
    plan_seconds=0.1,
    compile_seconds=1.0,
    baseline_compile_seconds=0.5,
    equations=4,
    fingerprint="f" * 16,
    problem=Problem(
        (
            Op("f", (0,), (1,), 1.0),
            Op("g", (1,), (2,), 1.0, workspace=5),
            Op("h", (1, 2), (3,), 1.0),
            Op("update", (3,), (4,), 1.0),
        ),
        (
            Value("argument 0", 0, is_argument=True),
            Value("f at m.py:1 (loss)", 10),
            Value("g at m.py:2 (loss)", 20),
            Value("h at m.py:2 (loss)", 10),
            Value("update at m.py:3 (step)", 0, is_output=True, overwrites=0),
        ),
        fixed=24,
        alignment=1,
    ),
    arguments=(Argument("[0]", "float32[2]", 12, "parameters"),),
)


def test_a_case_checked_by_eye() -> None:
    timeline = after(HAND)
    assert [(b.name, b.size, b.start, b.end, b.category) for b in timeline.boxes] == [
        ("f", 10, 0, 2, "temporaries"),
        ("g", 20, 1, 4, "temporaries"),
        ("workspace of g", 5, 1, 2, "temporaries"),
        ("f", 10, 2, 4, "recomputed"),
        ("h", 10, 3, 5, "gradients"),
    ]
    assert timeline.fixed == {
        "parameters": 12, "optimizer state": 0, "inputs": 8, "outputs": 4,
    }  # fmt: skip
    assert timeline.live().tolist() == [34, 59, 54, 64, 34]
    assert timeline.peak == 3
    assert [box.name for box in timeline.alive(3)] == ["g", "f", "h"]
    assert timeline.is_again == (False, False, True, False, False)
    assert timeline.steps[0] == "f at m.py:1 (loss)"
    assert places_of_program_order(HAND) == [1, 2, 4, 5]


@pytest.mark.parametrize("show", [after, before])
def test_bytes_alive_are_those_of_the_validator(show) -> None:
    plan = small_plan()
    schedule = plan.schedule if show is after else plan.problem.program_order
    timeline = show(plan)
    buffers = schedule_buffers(plan.problem, schedule)
    packed = assign(buffers, plan.problem.alignment)
    assert timeline.block == packed.peak
    fixed = sum(timeline.fixed[name] for name in FIXED)
    assert fixed == plan.measured.fixed
    # In place, two values share bytes where the validator may count both.
    slow = np.array(live_bytes(plan.problem, schedule))
    assert timeline.live().max() == fixed + packed.live_peak
    assert (timeline.live() - fixed <= slow[: len(timeline.steps)]).all()


@pytest.mark.parametrize("show", [after, before])
def test_no_two_buffers_alive_at_once_share_an_address(show) -> None:
    boxes = show(small_plan()).boxes
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            is_together = a.start < b.end and b.start < a.end
            is_overlapping = (
                a.offset < b.offset + b.size and b.offset < a.offset + a.size
            )
            assert not (is_together and is_overlapping), (a, b)


def test_categories_tell_residuals_from_gradients_and_recomputation() -> None:
    plan = small_plan()
    boxes = after(plan).boxes
    assert {b.type for b in boxes if b.category == "gradients"} == {"float32[64,64]"}
    kept = [b for b in boxes if b.category == "kept"]
    assert kept and all(b.end - b.start > 4 for b in kept)
    again = sum(b.category == "recomputed" for b in boxes)
    assert again == sum(a.runs - 1 for a in plan.actions)


def test_the_program_as_written_is_one_axis_with_the_plan() -> None:
    plan = small_plan()
    places = places_of_program_order(plan)
    assert places == sorted(places) and places[-1] == len(plan.schedule)
    untouched = dataclasses.replace(plan, positions=())
    assert places_of_program_order(untouched) == list(
        range(1, len(plan.problem.ops) + 1)
    )


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
