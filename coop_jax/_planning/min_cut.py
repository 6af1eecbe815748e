"""The cheapest way to have values again behind a seam, exactly. Imports no JAX.

At a price per byte, each value is carried across the seam (its bytes times the price),
or its op is repeated behind it (the op's cost), which takes the op's inputs there. The
total is a sum of terms over pairs of yes-or-no choices that never gain from two choices
differing, so its minimum is a minimum cut of a graph (Greig, Porteous and Seheult,
1989):

    source -> value   endless      the value is read behind the seam
    value  -> op      price*bytes  there, but not repeated: it was carried
    op     -> sink    cost         repeated
    op     -> value   endless      repeated: its inputs must be there

The flow is found by shortest augmenting paths in layers (Dinic, 1970).
"""

import ctypes
from collections import deque
from collections.abc import Iterable
from functools import cached_property

import numpy as np

from .library import library

_ENDLESS = 1 << 80
_WORD = 1 << 32


class FlowNetwork:
    """A directed graph with whole-number capacities.

    Edges are added before anything else is asked of it.
    """

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._added: list[int] = []

    def add(self, start: int, end: int, capacity: int | None) -> int:
        """Adds an edge and returns its number; `None` is endless capacity."""
        self._starts.append(start)
        self._ends.append(end)
        self._added.append(_ENDLESS if capacity is None else capacity)
        return len(self._starts) - 1

    def change(self, edges: np.ndarray, capacities: np.ndarray) -> None:
        """Gives edges other capacities, rounded; infinite ones are endless."""
        whole = np.minimum(np.rint(capacities), float(_ENDLESS))
        _, _, high, low = self._arrays
        high[edges] = np.floor(whole / _WORD)
        low[edges] = whole - np.floor(whole / _WORD) * _WORD

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, ...]:
        """Starts, ends, and capacities in two words each: they take over 64 bits."""
        return (
            np.array(self._starts, np.int32),
            np.array(self._ends, np.int32),
            np.array([c // _WORD for c in self._added], np.int64),
            np.array([c % _WORD for c in self._added], np.uint32),
        )

    def source_side(self, source: int, sink: int) -> set[int]:
        """Nodes on the source's side of a minimum cut, as few as possible.

        The cut is the same whichever way the flow was found, so the native library may.
        """
        native = library()
        if native is None:
            return self.source_side_in_python(source, sink)
        arrays = self._arrays
        side = np.zeros(self._nodes, np.uint8)
        native.coop_jax_min_cut(
            ctypes.c_int32(len(side)),
            ctypes.c_int64(len(arrays[0])),
            *(ctypes.c_void_p(array.ctypes.data) for array in arrays),
            ctypes.c_int32(source),
            ctypes.c_int32(sink),
            ctypes.c_void_p(side.ctypes.data),
        )
        return set(np.flatnonzero(side).tolist())

    def source_side_in_python(self, source: int, sink: int) -> set[int]:
        """The same without the native library."""
        starts, ends, high, low = (array.tolist() for array in self._arrays)
        whole = [a * _WORD + b for a, b in zip(high, low, strict=True)]
        edges = zip(starts, ends, whole, strict=True)
        return _Flow(self._nodes, edges).source_side(source, sink)


class _Flow:
    """What is left of each edge, and of its way back."""

    def __init__(self, nodes: int, edges: Iterable[tuple[int, int, int]]) -> None:
        self._edges: list[list[int]] = [[] for _ in range(nodes)]
        self._target: list[int] = []
        self._capacity: list[int] = []
        for start, end, capacity in edges:
            for a, b, c in ((start, end, capacity), (end, start, 0)):
                self._edges[a].append(len(self._target))
                self._target.append(b)
                self._capacity.append(c)

    def source_side(self, source: int, sink: int) -> set[int]:
        while True:
            level = self._levels(source)
            if sink not in level:
                return set(level)
            self._saturate(source, sink, level)

    def _levels(self, source: int) -> dict[int, int]:
        level = {source: 0}
        queue = deque([source])
        while queue:
            node = queue.popleft()
            for edge in self._edges[node]:
                target = self._target[edge]
                if self._capacity[edge] and target not in level:
                    level[target] = level[node] + 1
                    queue.append(target)
        return level

    def _saturate(self, source: int, sink: int, level: dict[int, int]) -> None:
        """Pushes flow along shortest paths until each has a full edge."""
        untried = [list(edges) for edges in self._edges]
        path: list[int] = []
        node = source
        while True:
            if node == sink:
                amount = min(self._capacity[edge] for edge in path)
                for edge in path:
                    self._capacity[edge] -= amount
                    self._capacity[edge ^ 1] += amount
                path, node = [], source
            while untried[node]:
                edge = untried[node][-1]
                target = self._target[edge]
                if self._capacity[edge] and level.get(target) == level[node] + 1:
                    path.append(edge)
                    node = target
                    break
                untried[node].pop()
            else:
                if node == source:
                    return
                edge = path.pop()
                node = self._target[edge ^ 1]
                untried[node].pop()
