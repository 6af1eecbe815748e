"""Gives to equations what XLA wrote for them under the name of an operand.

XLA converts to a narrower type first and moves bytes about after that: of the gradient
of a slice of logits, padded and then converted, it makes a conversion that is padded,
under the name of the padding. That has the bytes of the conversion's result. And what
multiplies by one number may be named after the spreading of that number, which XLA
never writes for a kernel to read.
"""

from collections.abc import Mapping, Sequence

from .fusing import FUSIBLE, PLACING
from .hlo import OwnedBuffer
from .roots import held_sizes
from .trace import Literal
from .units import Graph


def with_misnamed(
    graph: Graph, owned: Mapping[int, Sequence[OwnedBuffer]]
) -> dict[int, list[OwnedBuffer]]:
    """The buffers by equation, each by the one whose result it is."""
    found = {k: list(buffers) for k, buffers in owned.items()}
    for k, buffers in owned.items():
        if graph.equations[k].primitive.name not in PLACING:
            continue
        writer = _multiplication_of(graph, k)
        if writer is None and not _results(graph, k, buffers):
            writer = _conversion_of(graph, k)
        if writer is None or owned.get(writer):
            continue
        if written := _results(graph, writer, buffers):
            found[writer] = written
            found[k] = [b for b in buffers if b not in written]
    return found


def _results(graph: Graph, k: int, buffers: Sequence[OwnedBuffer]) -> list[OwnedBuffer]:
    """Those with the bytes of the equation's first result."""
    sizes = held_sizes(graph, graph.equations[k].outputs[0])
    return [b for b in buffers if b.size in sizes and b.origin == "equation"]


def _conversion_of(graph: Graph, k: int) -> int | None:
    """The conversion of what an equation moves about, if that is all that reads it."""
    reader = _only_reader(graph, k)
    while reader is not None and graph.equations[reader].primitive.name in PLACING:
        reader = _only_reader(graph, reader)
    if reader is None:
        return None
    is_conversion = graph.equations[reader].primitive.name == "convert_element_type"
    return reader if is_conversion else None


def _multiplication_of(graph: Graph, k: int) -> int | None:
    """What alone reads one number spread over an array, element by element."""
    equation = graph.equations[k]
    if equation.primitive.name != "broadcast_in_dim":
        return None
    number = equation.inputs[0]
    is_literal = isinstance(number, Literal)
    shape = number.aval.shape if is_literal else graph.program.avals[number].shape
    reader = _only_reader(graph, k)
    if shape or reader is None:
        return None
    name = graph.equations[reader].primitive.name
    return reader if name in FUSIBLE - PLACING else None


def _only_reader(graph: Graph, k: int) -> int | None:
    readers = graph.consumers[graph.equations[k].outputs[0]]
    is_only = len(readers) == 1 and not graph.is_read_by_caller(k)
    return readers[0] if is_only else None
