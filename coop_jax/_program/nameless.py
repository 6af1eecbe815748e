"""Finds the equations whose products and convolutions XLA left no name.

XLA:CPU rewrites gradients of convolutions into others and drops their metadata: their
results and what was turned around for them are found under the name of what reads them,
an optimizer's update at the other end of the step, say.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from .fusing import FUSIBLE
from .hlo import OwnedBuffer
from .roots import held_sizes
from .units import Graph


def named(
    graph: Graph, owned: Mapping[int, Sequence[OwnedBuffer]]
) -> dict[int, list[OwnedBuffer]]:
    """The buffers by equation, those of calls without a name by the call's."""
    found: dict[int, list[OwnedBuffer]] = defaultdict(list)
    for reader, buffers in owned.items():
        calls = _nameless_calls(graph, owned, reader) if _has_call(buffers) else {}
        for buffer in buffers:
            k = calls.get(buffer.call)
            if k is None:
                found[reader].append(buffer)
            else:
                is_result = buffer.size == buffer.call
                origin = "equation" if is_result else buffer.origin
                found[k].append(replace(buffer, origin=origin))
    return dict(found)


def _has_call(buffers: Sequence[OwnedBuffer]) -> bool:
    return any(buffer.call for buffer in buffers)


def _nameless_calls(
    graph: Graph, owned: Mapping[int, Sequence[OwnedBuffer]], reader: int
) -> dict[int, int]:
    """Per size, the only equation of it that goes into the reader and owns nothing."""
    found: dict[int, set[int]] = defaultdict(set)
    todo, seen = [reader], {reader}
    while todo:
        for v in graph.reads(todo.pop()):
            k = graph.producer.get(v)
            if k is None or k in seen:
                continue
            seen.add(k)
            if graph.equations[k].primitive.name in FUSIBLE:
                todo.append(k)
            elif not owned.get(k):
                for size in held_sizes(graph, v):
                    found[size].add(k)
    return {
        size: equations.pop()
        for size, equations in found.items()
        if len(equations) == 1
    }
