"""Finds the equations whose products and convolutions XLA left no name.

XLA:CPU rewrites gradients of convolutions into others and drops their metadata: their
results and what was turned around for them are found under the name of what reads them,
an optimizer's update at the other end of the step, say.
"""

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from .fusing import FUSIBLE
from .hlo import OwnedBuffer
from .roots import held_sizes
from .scopes import equation_of
from .units import Graph


def named(
    graph: Graph, owned: Mapping[int, Sequence[OwnedBuffer]]
) -> dict[int, list[OwnedBuffer]]:
    """The buffers by equation, those of calls without a name by the call's.

    A norm reads all gradients, and several may have as many bytes: then whatever else
    reads a call says which it is.
    """
    found: dict[int, list[OwnedBuffer]] = defaultdict(list)
    calls = functools.cache(lambda reader: _nameless_calls(graph, owned, reader))
    for reader, buffers in owned.items():
        for buffer in buffers:
            others = map(equation_of, buffer.read_elsewhere) if buffer.call else ()
            readers = [reader, *(k for k in others if k is not None)]
            known = (calls(each).get(buffer.call) for each in readers if buffer.call)
            k = next((k for k in known if k is not None), None)
            if k is None:
                found[reader].append(buffer)
            else:
                is_result = buffer.size == buffer.call
                origin = "equation" if is_result else buffer.origin
                found[k].append(replace(buffer, origin=origin))
    return dict(found)


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
