"""Gives instructions in bodies that XLA merged the names of their own loops.

XLA:GPU makes one computation of equal bodies, of recurrent layers of one shape, say,
and later a copy for each loop again. All copies are named after the first.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from .scopes import place_of

_WITH_BODIES = ("while", "conditional")


def name_by_loop(module: Any) -> None:
    """Renames, in place, what is in a body after the loop or branch that runs it.

    Args:
      module: `HloModule` of `hlo_messages`, with no computation that two loops run.
    """
    computations = {c.id: c for c in module.computations}
    loops = _loops(module)
    todo = [(computations[module.entry_computation_id], "")]
    while todo:
        computation, around = todo.pop()
        for instruction in computation.instructions:
            written = instruction.metadata.op_name
            name = _within(around, written, loops) if around and written else written
            if name != written:
                instruction.metadata.op_name = name
            is_loop = instruction.opcode in _WITH_BODIES and place_of(name)
            inside = name if is_loop else around
            called = instruction.called_computation_ids
            todo += [(computations[k], inside) for k in called]


def _loops(module: Any) -> Mapping[int, tuple[str, ...]]:
    """Names of loops and branches, by how many are around each, itself included."""
    found: dict[int, dict[str, None]] = {}
    for instruction in _instructions(module):
        if instruction.opcode in _WITH_BODIES:
            name = instruction.metadata.op_name
            found.setdefault(len(place_of(name)), {})[name] = None
    return {depth: tuple(names) for depth, names in found.items()}


def _instructions(module: Any) -> Iterator[Any]:
    for computation in module.computations:
        yield from computation.instructions


def _within(loop: str, name: str, loops: Mapping[int, tuple[str, ...]]) -> str:
    """A name that is inside of another loop as deep as this one, inside of this one."""
    for other in loops.get(len(place_of(loop)), ()):
        if other != loop and name.startswith(f"{other}/"):
            return loop + name.removeprefix(other)
    return name
