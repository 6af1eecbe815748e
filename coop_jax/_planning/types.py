"""The planner's words: operations, values, problems and schedules. Imports no JAX.

A `Problem` is a straight-line program as XLA runs it: each `Op` is one unit that is
computed as a whole (a kernel, a library call, or a loop taken as one), each `Value` is
one block of bytes that such a unit writes. A `Schedule` is a list of op numbers in the
order they run; an op that appears a second time is rematerialized. Which bytes are
alive when follows from the schedule alone: a step reads the latest computed instance of
each input, and an instance is alive from the step that computes it to the last step
that reads it.
"""

from dataclasses import dataclass, field

type OpId = int
"""Position of an op in `Problem.ops`, which is also the program order."""

type ValueId = int
"""Position of a value in `Problem.values`."""

type Schedule = tuple[OpId, ...]
"""Op numbers in the order they run; repeats are rematerializations."""


@dataclass(frozen=True, slots=True)
class LiveRange:
    """Half-open interval `[start, end)` of positions in the schedule."""

    start: int
    end: int

    def overlaps(self, other: "LiveRange") -> bool:
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True, slots=True)
class Value:
    """One block of bytes in the pool.

    Attributes:
      name: for reports.
      size: bytes it takes in the pool. Arguments, and outputs that live in an
        allocation of their own, take none (0): they are part of `Problem.fixed`.
      is_argument: exists before the first step; never computed, never freed.
      is_output: must be alive after the last step.
      overwrites: the (donated) argument whose bytes this value takes over when it is
        computed; no later step may read that argument.
    """

    name: str
    size: int
    is_argument: bool = False
    is_output: bool = False
    overwrites: ValueId | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """One unit of computation.

    Attributes:
      name: for reports.
      inputs: values it reads (no repeats).
      outputs: values it writes.
      cost: seconds that one more execution takes, by the cost model.
      workspace: bytes alive only while it runs.
      is_recomputable: False for effects, stateful random numbers, collectives.
      is_expensive: dense in seconds per byte (matmul, convolution); the arena keeps its
        outputs apart from cheap ones.
      in_place: pairs (input, output): the output takes the input's bytes if the input
        is dead after this step.
      pieces: bytes of each array of the workspace, where it is several: XLA puts them
        where there is room for each.
    """

    name: str
    inputs: tuple[ValueId, ...]
    outputs: tuple[ValueId, ...]
    cost: float
    workspace: int = 0
    is_recomputable: bool = True
    is_expensive: bool = False
    in_place: tuple[tuple[ValueId, ValueId], ...] = ()
    pieces: tuple[int, ...] = ()

    @property
    def workspaces(self) -> tuple[int, ...]:
        """Bytes of each array of the workspace."""
        return self.pieces or ((self.workspace,) if self.workspace else ())


@dataclass(frozen=True, slots=True)
class Problem:
    """A program to be planned.

    Attributes:
      ops: in program order; running them in this order is the unplanned schedule.
      values: all values the ops read and write; each is written by at most one op.
      fixed: bytes outside the pool: arguments plus outputs minus donated aliases.
      alignment: offsets in the pool are multiples of this many bytes.
      has_watershed: what is alive across one place of a schedule can be placed before
        all else (`buffer_assignment`).
      has_durations: how long arrays last is known to the tick of XLA's clock.
      once: seconds that running every op once takes beside their costs.
      producer: op that writes each value, or -1 for arguments (derived).
    """

    ops: tuple[Op, ...]
    values: tuple[Value, ...]
    fixed: int = 0
    alignment: int = 64
    has_watershed: bool = False
    has_durations: bool = True
    once: float = 0.0
    producer: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        producer = [-1] * len(self.values)
        for op_id, op in enumerate(self.ops):
            for value in op.outputs:
                if producer[value] != -1 or self.values[value].is_argument:
                    raise ValueError(
                        f"value {value} ({self.values[value].name!r}) is written twice"
                    )
                producer[value] = op_id
        object.__setattr__(self, "producer", tuple(producer))

    @property
    def pool_sizes(self) -> list[int]:
        """Per value, the bytes it takes in the pool; none for what no op writes."""
        return [
            0 if self.producer[v] < 0 else value.size
            for v, value in enumerate(self.values)
        ]

    @property
    def least_pool(self) -> int:
        """Bytes that no schedule goes below: values that one op reads and writes."""
        sizes = self.pool_sizes
        return max(
            (
                sum(sizes[v] for v in {*op.inputs, *op.outputs})
                - sum(sizes[target] for target in {target for _, target in op.in_place})
                + op.workspace
                for op in self.ops
            ),
            default=0,
        )

    @property
    def program_order(self) -> Schedule:
        return tuple(range(len(self.ops)))

    def cost(self, schedule: Schedule) -> float:
        """Seconds the schedule takes by the cost model."""
        return self.once + sum(self.ops[op].cost for op in schedule)
