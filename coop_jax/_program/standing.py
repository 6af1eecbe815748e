"""Arrays that XLA makes of constants alone, and may hold all the time."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from .fusing import FUSIBLE
from .hlo import OwnedBuffer
from .scopes import equation_of, place_of
from .units import Graph, Unit
from .workspace import Place


def standing_and_spread(
    graph: Graph,
    units: Sequence[Unit],
    buffers: Sequence[OwnedBuffer],
    written: Mapping[Place, Collection[int]],
) -> tuple[int, dict[int, list[OwnedBuffer]]]:
    """What becomes of `buffers`, arrays that XLA made of constants alone.

    Args:
      graph: of the program.
      units: of the graph.
      buffers: the arrays, each once for every reader.
      written: places that results of equations lie in, and whose. An array without a
        name that shares one does not stand all the time.

    Returns:
      Bytes that stand all the time, and per root the arrays that it reads and that a
      literal of it is spread into: tied, those come and go with it, as do those made in
      a loop or branch, and those that a loop alone starts from and writes over. Those
      that literals of others are spread into, inside of a kernel of many, go with the
      kernel.
    """
    unit_of: dict[int | None, Unit] = {
        k: unit for unit in units for k in (*unit.inlined, unit.root)
    }
    readers: dict[Place, list[OwnedBuffer]] = defaultdict(list)
    for buffer in buffers:
        readers[buffer.place].append(buffer)
    standing = 0
    spread: dict[int, list[OwnedBuffer]] = defaultdict(list)
    for place, group in readers.items():
        size = place[-1]
        reading = {
            (unit_of[k], len(place_of(b.op_name)) > 1)
            for b in group
            if (k := equation_of(b.op_name)) in unit_of
        }
        tied = {
            unit.root
            for unit, is_inside in reading
            if is_inside or _spreads(graph, unit, size)
        }
        if len(reading) == 1:
            tied |= {u.root for u, _ in reading if u.root in written.get(place, ())}
        for root in tied:
            spread[root].append(replace(group[0], origin="reader"))
        inside = {equation_of(name) for b in group for name in b.read_inside}
        is_cut = inside and all(
            k is not None
            and k in unit_of
            and _spreads_inside(graph, unit_of[k], k, size)
            for k in inside
        )
        passes = place in written and not any(b.op_name for b in group)
        standing += 0 if tied or is_cut or passes else size
    return standing, spread


def bytes_of(buffers: Sequence[OwnedBuffer]) -> int:
    """Of all together; several may be parts of one."""
    return sum(
        size for _, _, size in {(b.allocation, b.offset, b.size) for b in buffers}
    )


def _spreads(graph: Graph, unit: Unit, size: int) -> bool:
    """Whether a literal of the unit becomes an array of this many bytes."""
    results = (graph.equations[k].outputs[0] for k, _ in unit.literals)
    return any(graph.bytes(v) == size for v in results)


def _spreads_inside(graph: Graph, unit: Unit, k: int, size: int) -> bool:
    """Whether a literal of the unit, or of its equation `k`, is spread in its kernel.

    In the step as written XLA may read an array there that it made for a library call.
    """
    if _spreads(graph, unit, size):
        return True
    is_kernel = graph.equations[unit.root].primitive.name in FUSIBLE
    return is_kernel and graph.bytes(graph.equations[k].outputs[0]) == size
