"""What a plan does to loops, as data.

Places are numbers of equations: of the loop, after those of the loops around it.
"""

from dataclasses import dataclass, field

from .._budget import format_bytes
from .._program.hlo import OwnedBuffer


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """What becomes of a forward scan and the backward scan that reads its residuals.

    Attributes:
      place: number of the forward scan among the step's equations; inside another loop,
        after the numbers of the loops around it.
      name: the user's `file:line (function)`.
      length: iterations.
      chunk: iterations between the carries that are kept; 0 if each keeps its own row.
      row: bytes kept per iteration (of a chunk).
      size: bytes kept altogether.
      written: bytes kept by the step as written.
      recomputed: operations of one iteration that run again in the backward scan.
      positions: per operation of both bodies, one after the other, where it runs.

    Example:
      >>> for loop in step.plan(state, batch).loops:
      ...     print(loop.name, loop.written, "bytes down to", loop.size)
    """

    place: tuple[int, ...]
    name: str
    length: int
    chunk: int
    row: int
    size: int
    written: int
    recomputed: int
    positions: tuple[tuple[int, ...], ...] = field(repr=False)

    def __str__(self) -> str:
        every = f"the carry of every {self.chunk}th, then " if self.chunk else ""
        return (
            f"{self.length} iterations keep {every}{format_bytes(self.row)} each, "
            f"{format_bytes(self.size)} for {format_bytes(self.written)}; "
            f"{self.recomputed} operations run again"
        )


@dataclass(frozen=True, slots=True)
class BodyPlan:
    """In which order the body of one loop, or a branch, runs.

    Attributes:
      place: of the loop, in the program with its `LoopPlan`s carried out; the number of
        a `cond` is followed by that of its branch.
      name: the user's `file:line (function)`.
      length: iterations; 1 for a branch, and for a `while`, whose number is not known.
      size: bytes that an iteration takes, as planned.
      written: bytes that an iteration takes as it was traced, its `LoopPlan`s apart.
      recomputed: operations of one iteration that run again.
      positions: per operation of the body, where it runs.
      cost: seconds that this adds to the step, by the cost model.
      buffers: what XLA gave the body's equations, named by equation.

    Example:
      >>> for body in step.plan(state, batch).bodies:
      ...     print(body.name, body.written, "bytes down to", body.size)
    """

    place: tuple[int, ...]
    name: str
    length: int
    size: int
    written: int
    recomputed: int
    positions: tuple[tuple[int, ...], ...] = field(repr=False)
    cost: float
    buffers: tuple[OwnedBuffer, ...] = field(repr=False)

    def __str__(self) -> str:
        who = "it takes" if self.length == 1 else f"{self.length} iterations take"
        each = "" if self.length == 1 else " each"
        return (
            f"{who} {format_bytes(self.size)}{each} instead of "
            f"{format_bytes(self.written)}; {self.recomputed} operations run again"
        )
