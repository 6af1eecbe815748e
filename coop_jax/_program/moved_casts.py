"""Gives to conversions what XLA wrote for them under the name of their operand.

XLA converts to a narrower type first and moves bytes about after that: of the gradient
of a slice of logits, padded and then converted, it makes a conversion that is padded,
under the name of the padding. That has the bytes of the conversion's result.
"""

from collections.abc import Mapping, Sequence

from .fusing import PLACING
from .hlo import OwnedBuffer
from .roots import held_sizes
from .units import Graph


def with_moved_casts(
    graph: Graph, owned: Mapping[int, Sequence[OwnedBuffer]]
) -> dict[int, list[OwnedBuffer]]:
    """The buffers by equation, each by the one whose result has its bytes."""
    found = {k: list(buffers) for k, buffers in owned.items()}
    for k, buffers in owned.items():
        cast = _cast_of(graph, k)
        if cast is None or owned.get(cast):
            continue
        sizes = held_sizes(graph, graph.equations[cast].outputs[0])
        moved = [b for b in buffers if b.size in sizes and b.origin == "equation"]
        if moved and not _is_written(graph, k, buffers):
            found[cast] = moved
            found[k] = [b for b in buffers if b not in moved]
    return found


def _is_written(graph: Graph, k: int, buffers: Sequence[OwnedBuffer]) -> bool:
    """Whether the equation's own result is among what XLA wrote."""
    sizes = held_sizes(graph, graph.equations[k].outputs[0])
    return any(b.size in sizes and b.origin == "equation" for b in buffers)


def _cast_of(graph: Graph, k: int) -> int | None:
    """The conversion of what an equation moves about, if that is all that reads it."""
    while graph.equations[k].primitive.name in PLACING:
        readers = graph.consumers[graph.equations[k].outputs[0]]
        if len(readers) != 1 or graph.is_read_by_caller(k):
            return None
        k = readers[0]
        if graph.equations[k].primitive.name == "convert_element_type":
            return k
    return None
