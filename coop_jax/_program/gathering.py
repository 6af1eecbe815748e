"""Arguments of a partitioned step that devices send each other parts of.

XLA names a collective after what it moves: that of a weight split over the devices
(FSDP) has the argument's name, or that of the equation which casts or slices it. A
batch is split too, but each device computes on its own part.
"""

import re
from collections.abc import Mapping, Sequence

from .cost import nbytes
from .fusing import FUSIBLE
from .hlo import OwnedBuffer
from .shards import is_moved
from .trace import Program, Variable

_ARGUMENT = re.compile(r"\w+\[(\d+)\]")
"""The name of a flat argument."""


def gathered(
    program: Program,
    buffers: Sequence[OwnedBuffer],
    owned: Mapping[int, Sequence[OwnedBuffer]],
) -> frozenset[Variable]:
    """The arguments that are gathered, and what is computed of them alone.

    Args:
      program: with bytes per device.
      buffers: what XLA assigned to the unplanned step.
      owned: those that an equation owns, by equation.
    """
    split = {
        v: {v}
        for v in program.arguments
        if program.sizes.get(v, nbytes(program.avals[v])) < nbytes(program.avals[v])
    }
    if not split:
        return frozenset()
    moved = {program.arguments[k] for b in buffers if (k := moved_argument(b)) >= 0}
    for k, equation in enumerate(program.equations):
        reads = equation.variables
        if not reads or equation.primitive.name not in FUSIBLE:
            continue
        if all(v in split for v in reads):
            sources = set().union(*(split[v] for v in reads))
            split |= dict.fromkeys(equation.outputs, sources)
            if any(map(is_moved, owned.get(k, ()))):
                moved |= sources
    return frozenset(v for v, sources in split.items() if sources <= moved)


def held(
    program: Program,
    buffers: Sequence[OwnedBuffer],
    owned: Mapping[int, Sequence[OwnedBuffer]],
    moved: frozenset[Variable],
) -> tuple[OwnedBuffer, ...]:
    """The buffers that gathered values lie in once they are moved.

    A plan gathers them once, and holds them from the forward to the backward pass.

    Args:
      program: with bytes per device.
      buffers: what XLA assigned to the unplanned step.
      owned: those that an equation owns, by equation.
      moved: what `gathered` found.
    """
    if not moved:
        return ()
    arguments, equations = program.arguments, program.equations
    found = [
        b for b in buffers if (k := moved_argument(b)) >= 0 and arguments[k] in moved
    ]
    for k, own in owned.items():
        if moved.issuperset(equations[k].outputs):
            found += filter(is_moved, own)
    return tuple(found)


def moved_argument(buffer: OwnedBuffer) -> int:
    """The position of the argument that the buffer holds once it is moved, or -1."""
    name = _ARGUMENT.fullmatch(buffer.op_name)
    return int(name[1]) if name and is_moved(buffer) else -1
