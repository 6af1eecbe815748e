"""What a user could do about a step that does not fit."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from .._program.cost import nbytes
from .._program.trace import Literal, Program, Variable
from .compile import FlatStep

_REMEDIES = {
    "shard_map": "take the loss inside, over all axes of its mesh",
    "jit": "pass the function beneath, without shardings of its own",
}
_LOOPS = ("scan", "while", "cond")
_REMEDIES |= dict.fromkeys(
    _LOOPS, "apply `jax.checkpoint` to what is differentiated inside"
)
"""What helps against bytes inside of an operation, by its primitive."""


def advise(
    step: FlatStep,
    fixed: int,
    budget: int,
    held: Sequence[tuple[str, int, str]],
    has_collectives: bool,
    looked_inside: bool = False,
) -> Iterator[str]:
    """What would help this step in particular.

    Args:
      step: that does not fit.
      fixed: bytes of its arguments and outputs less donated.
      budget: bytes asked for.
      held: what is alive at the peak of its smallest program (`held_at_peak`).
      has_collectives: whether devices communicate in it.
      looked_inside: whether bodies of its loops are planned, which leaves
        `jax.checkpoint` nothing to do there.
    """
    if budget <= fixed:
        yield (
            f"Arguments and outputs alone take {fixed:,} bytes; no plan can change "
            "them."
        )
    if twice := _held_twice(step.program):
        yield f"Donate the state (`donate_argnums`): {twice:,} bytes are held twice."
    if not _has_gradient(step.program):
        yield (
            "No gradient is taken in this step: pass the whole training step, gradient "
            "and update included."
        )
    if has_collectives and not step.program.rules.recompute_collectives:
        yield (
            "What devices communicate is kept until its last use: "
            "`recompute_collectives=True` lets them communicate again."
        )
    peak = sum(size for _, size, _ in held)
    for name, remedy in _REMEDIES.items():
        inside = sum(size for what, size, _ in held if what == f"inside {name}")
        if inside > peak // 4 and not (looked_inside and name in _LOOPS):
            yield f"A `{name}` takes {inside:,} bytes inside: {remedy}."


def _held_twice(program: Program) -> int:
    """Bytes of outputs for which an argument of their type could be given away."""
    if any(program.donated):
        return 0

    def kind(variable: Variable) -> tuple[Any, Any, int]:
        aval = program.avals[variable]
        return aval.shape, aval.dtype, program.sizes.get(variable, nbytes(aval))

    outputs = {v for v in program.outputs if not isinstance(v, Literal)}
    made = Counter(map(kind, outputs.difference(program.arguments)))
    both = made & Counter(map(kind, program.arguments))
    return sum(size * count for (_, _, size), count in both.items())


def _has_gradient(program: Program) -> bool:
    """Whether one is taken, as far as can be seen: not inside of loops and the like."""
    return any(
        e.primitive.name in _REMEDIES or "transpose(" in str(e.scope)
        for e in program.equations
    )
