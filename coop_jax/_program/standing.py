"""Arrays that XLA makes of constants alone, and may hold all the time."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from .hlo import OwnedBuffer
from .scopes import equation_of
from .units import Graph, Unit


def standing_and_spread(
    graph: Graph, units: Sequence[Unit], buffers: Sequence[OwnedBuffer]
) -> tuple[int, dict[int, list[OwnedBuffer]]]:
    """What becomes of `buffers`, arrays that XLA made of constants alone.

    Returns:
      Bytes that stand all the time, and per root the arrays that it reads and that a
      literal of it is spread into: tied, those come and go with it. Those that literals
      of others are spread into, inside of a kernel of many, go with the kernel.
    """
    unit_of: dict[int | None, Unit] = {
        k: unit for unit in units for k in (*unit.inlined, unit.root)
    }
    readers: dict[tuple[int, int, int], list[OwnedBuffer]] = defaultdict(list)
    for buffer in buffers:
        readers[buffer.allocation, buffer.offset, buffer.size].append(buffer)
    standing = 0
    spread: dict[int, list[OwnedBuffer]] = defaultdict(list)
    for (_, _, size), group in readers.items():
        reading = {
            unit_of[k] for b in group if (k := equation_of(b.op_name)) in unit_of
        }
        tied = [unit.root for unit in reading if _spreads(graph, unit, size)]
        for root in tied:
            spread[root].append(replace(group[0], origin="reader"))
        inside = {equation_of(name) for b in group for name in b.read_inside}
        is_cut = inside and all(
            k in unit_of and _spreads(graph, unit_of[k], size) for k in inside
        )
        standing += 0 if tied or is_cut else size
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
