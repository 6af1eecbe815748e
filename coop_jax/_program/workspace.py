"""Bytes that an op takes beside its operands and results, from XLA's own buffers."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from .fusing import FUSIBLE, LAYOUTS, SEVERAL
from .hlo import OwnedBuffer
from .scopes import equation_of
from .units import Graph, Unit, has_call

type Place = tuple[int, int, int]
"""Allocation, offset and size."""

type Owned = Mapping[int, Sequence[OwnedBuffer]]
"""Buffers by equation."""


def workspace(graph: Graph, unit: Unit, owned: Owned, spread: Owned) -> tuple[int, ...]:
    """Bytes of each of the unit's buffers but its results, overlaps counted once.

    Where XLA found room in an argument or output, a plan may not: what was made up for
    the unit to read counts wherever it lies.

    Args:
      graph: of the program.
      unit: one of its units.
      owned: what XLA assigned to each equation.
      spread: per root, the arrays that a literal of its unit becomes.
    """
    results = [graph.bytes(v) for v in graph.equations[unit.root].outputs]
    nameless = _nameless(graph, unit, owned)
    inside = [
        buffer
        for k in unit.inlined
        if graph.equations[k].primitive.name in LAYOUTS
        or graph.equations[k].primitive.name not in FUSIBLE
        for buffer in owned.get(k, ())
    ]
    found = [*owned.get(unit.root, ()), *inside, *spread.get(unit.root, ())]
    # A loop writes its results over and over, in one place; a sum onto a copy of what
    # it adds to lies where that does.
    found.sort(key=lambda buffer: buffer.origin == "equation")
    distinct = {b.place: b for b in found}
    again = _made_again(graph, unit, distinct.values())
    counted = []
    for buffer in distinct.values():
        if buffer.size in results and buffer.origin == "equation":
            results.remove(buffer.size)
        elif buffer.place in again:
            continue
        elif buffer.size in nameless and buffer.origin == "reader":
            nameless.remove(buffer.size)
        elif buffer.is_temporary or buffer.origin == "reader":
            counted.append(buffer)
    return tuple(_uncovered(counted))


def _made_again(graph: Graph, unit: Unit, buffers: Iterable[OwnedBuffer]) -> set[Place]:
    """Places of what XLA made of several equations, or several times of this one.

    Products that share an operand become one call, and what constants make is made for
    each kernel that reads it. Behind barriers neither happens.
    """
    root = graph.equations[unit.root]
    size = graph.bytes(root.outputs[0]) if len(root.outputs) == 1 else 0
    if not size:
        return set()
    written = [b for b in buffers if b.origin == "equation" and b.size >= size]
    if not unit.inputs:
        return {b.place for b in written if b.size == size}
    if root.primitive.name != "dot_general" or any(b.size == size for b in written):
        return set()
    merged = [b for b in written if b.size % size == 0 and b.is_viewed]
    return {b.place for b in merged[:1]}


def without_starts(graph: Graph, units: Iterable[Unit], owned: Owned) -> Owned:
    """The buffers without copies that a product is added onto (`roots`).

    XLA makes them where what is copied is still to be read, and counts them to that.
    They are the sum's bytes.
    """
    sums = {u.root: u.inlined for u in units if has_call(graph.equations, u)}
    kept = dict(owned)
    for root, inside in sums.items():
        written = {
            b.place for k in inside for b in owned.get(k, ()) if b.opcode != "copy"
        }
        sources = [graph.producer.get(v, -1) for v in graph.reads(root)]
        for k in (k for s in sources for k in (s, *sums.get(s, ()))):
            if k in owned and k not in inside:
                kept[k] = [
                    b for b in kept[k] if b.opcode != "copy" or b.place not in written
                ]
    return kept


def with_turned_operands(graph: Graph, owned: Owned) -> Owned:
    """The buffers with what XLA turned around for a product counted to the product.

    XLA names such a copy after what it copies; in a plan it stands while the product
    runs. A transpose itself keeps what it wrote. Of a product and a transpose of it
    XLA:CPU makes one call, under the name of the latter. Where what is turned around
    is computed on the way, it is the equation's own result, unless that is written as
    it is as well.

    Args:
      graph: of the program.
      owned: what XLA assigned to each equation.
    """
    kept = {k: [b for b in found if not b.turned_for] for k, found in owned.items()}
    written = {
        k for k, found in kept.items() if any(b.origin == "equation" for b in found)
    }
    for k, found in owned.items():
        is_layout = graph.equations[k].primitive.name in LAYOUTS
        for buffer in (b for b in found if b.turned_for):
            is_result = is_layout or (buffer.is_computed and k not in written)
            reader = None if is_result else equation_of(buffer.turned_for)
            if reader is None:
                kept[k].append(buffer)
            else:
                product = graph.turned_product(reader)
                call = reader if product is None else product
                kept.setdefault(call, []).append(replace(buffer, origin="reader"))
    return kept


def with_shared_by_reader(graph: Graph, owned: Owned) -> Owned:
    """The buffers with what ragged products share counted to each that reads it.

    XLA computes once the rows that a forward and a backward product spread by group.
    Behind barriers each product computes its own.
    """
    kept: dict[int, list[OwnedBuffer]] = defaultdict(list)
    for k, found in owned.items():
        is_several = graph.equations[k].primitive.name in SEVERAL
        results = {graph.bytes(v) for v in graph.equations[k].outputs}
        for buffer in found:
            equations = map(equation_of, buffer.read_elsewhere)
            readers = {reader for reader in equations if reader is not None}
            is_inside = is_several and buffer.size not in results
            if readers and k not in readers and is_inside:
                for reader in readers:
                    kept[reader].append(replace(buffer, origin="reader"))
            else:
                kept[k].append(buffer)
    return kept


def _nameless(graph: Graph, unit: Unit, owned: Owned) -> list[int]:
    """Sizes of operands that XLA wrote under no name, and turns around in this unit.

    XLA:CPU does so with gradients of convolutions.
    """
    return [
        graph.bytes(v)
        for v in unit.inputs
        if (k := graph.producer.get(v)) is not None
        and graph.equations[k].primitive.name not in FUSIBLE
        and not owned.get(k)
    ]


def covered(buffers: Sequence[OwnedBuffer]) -> int:
    """Bytes of the places taken, each once."""
    return sum(_uncovered(buffers))


def _uncovered(buffers: Sequence[OwnedBuffer]) -> Iterator[int]:
    """Bytes of each place taken that those before it, by place, do not take."""
    spans = sorted((b.allocation, b.offset, b.offset + b.size) for b in buffers)
    block, reach = -1, -1
    for allocation, start, end in spans:
        reach = reach if allocation == block else -1
        if end > max(start, reach):
            yield end - max(start, reach)
        block, reach = allocation, max(reach, end)
