"""What a user could do about a step that does not fit."""

from collections.abc import Iterator

from .._planning.types import Problem
from .compile import FlatStep

_PLANNED_WHOLE = ("scan", "while", "cond", "shard_map")


def advise(
    step: FlatStep,
    problem: Problem,
    fixed: int,
    budget: int,
    peak: int,
    has_collectives: bool,
) -> Iterator[str]:
    """What would help this step in particular.

    Args:
      step: that does not fit.
      problem: that was planned.
      fixed: bytes of its arguments and outputs less donated.
      budget: bytes asked for.
      peak: bytes alive at the peak of its smallest program.
      has_collectives: whether devices communicate in it.
    """
    if budget <= fixed:
        yield (
            f"Arguments and outputs alone take {fixed:,} bytes; no plan can change "
            "them."
        )
    if not any(step.program.donated):
        yield "Donate the state (`donate_argnums`): its bytes are held twice."
    if has_collectives and not step.program.rules.recompute_collectives:
        yield (
            "What devices communicate is kept until its last use: "
            "`recompute_collectives=True` lets them communicate again."
        )
    whole = [op for op in problem.ops if op.name in _PLANNED_WHOLE]
    largest = max((op.workspace for op in whole), default=0)
    if largest > peak // 4:
        if max(whole, key=lambda op: op.workspace).name == "shard_map":
            what, remedy = (
                "A `jax.shard_map`",
                "take the loss inside, over all axes of its mesh",
            )
        else:
            what = "A loop or branch"
            remedy = "apply `jax.checkpoint` to what is differentiated inside"
        yield (
            f"{what} takes {largest:,} bytes inside, and planning cannot make it "
            f"less: {remedy}."
        )
