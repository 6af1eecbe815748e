"""Groups equations into units: what XLA computes as a whole and gives bytes.

A jaxpr value is not a buffer: XLA fuses elementwise chains, broadcasts and conversions
into whatever reads them. The unplanned program is compiled once with one name scope per
equation, and the buffer assignment then says which equations own bytes. Those become
the ops of the `Problem`; equations that own none are computed inside every op that
reads them (`Unit.inlined`), as XLA does.

Six corrections to what the assignment says:
  * equations that XLA made one instruction are one unit;
  * a reshape that owns bytes only renames those of its operand: ownership moves there;
  * a product and the transpose of it that owns its bytes are one unit;
  * what is transposed for products alone, or a weight turned around for one library
    call, is theirs: XLA takes the two together, and in halves it turns twice;
  * an equation that XLA cannot fuse into several readers owns its bytes in any case,
    and so does one in which devices communicate; on GPU a reduction only where XLA
    wrote something for it;
  * a value with readers in several ops that lets go of twice its own bytes (a mask of
    its random bits, a bfloat16 copy of its source, a sum of gradients of its terms) is
    worth owning: keeping it can be cheaper than keeping what it is computed from.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax.numpy as jnp

from .cost import nbytes
from .fusing import ACCUMULATING, FUSIBLE, LAYOUTS, REDUCTIONS, VIEWS, fusible
from .hlo import OwnedBuffer
from .shards import communicates
from .trace import Equation, Literal, Program, Variable

_PICKS = {"dynamic_slice", "gather", "slice", "split"}
"""Equations that read no more of their operand than they return."""

_LOOPS = {"scan", "while", "cond"}


@dataclass(frozen=True, slots=True)
class Unit:
    """The equations behind one op.

    Attributes:
      root: the equation that owns bytes.
      inlined: equations computed inside, in program order.
      inputs: variables it reads that other units own, and arguments.
      literals: (equation, input) places where XLA would spread a literal over an array
        of its own.
      scalars: more such places if XLA takes the unit into a library call that reads it.
    """

    root: int
    inlined: tuple[int, ...]
    inputs: tuple[Variable, ...]
    literals: tuple[tuple[int, int], ...]
    scalars: tuple[tuple[int, int], ...] = ()


class Graph:
    """Producers and consumers, with barriers seen through."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.equations = program.equations
        self.alias_of: dict[Variable, Variable] = {}
        self.producer: dict[Variable, int] = {}
        self.consumers: dict[Variable, list[int]] = defaultdict(list)
        for k, equation in enumerate(self.equations):
            if equation.is_barrier:
                for source, target in zip(
                    equation.inputs, equation.outputs, strict=True
                ):
                    if not isinstance(source, Literal):
                        self.alias_of[target] = self.resolve(source)
                continue
            for v in equation.outputs:
                self.producer[v] = k
            for v in self.reads(k):
                self.consumers[v].append(k)
        self.outputs = {
            self.resolve(a) for a in program.outputs if not isinstance(a, Literal)
        }

    def resolve(self, variable: Variable) -> Variable:
        return self.alias_of.get(variable, variable)

    def reads(self, k: int) -> list[Variable]:
        return list(dict.fromkeys(map(self.resolve, self.equations[k].variables)))

    def bytes(self, variable: Variable) -> int:
        size = self.program.sizes.get(variable)
        return nbytes(self.program.avals[variable]) if size is None else size

    def is_read_by_caller(self, k: int) -> bool:
        return any(v in self.outputs for v in self.equations[k].outputs)

    def unit(self, root: int, roots: set[int]) -> Unit:
        """The unit of a root: walk inputs back to other roots and arguments."""
        inlined: set[int] = set()
        inputs: list[Variable] = []
        todo = self.reads(root)[::-1]
        seen = set(todo)
        while todo:
            v = todo.pop()
            k = self.producer.get(v)
            if k is None or k in roots:
                inputs.append(v)
                continue
            inlined.add(k)
            for source in self.reads(k):
                if source not in seen:
                    seen.add(source)
                    todo.append(source)
        order = tuple(sorted(inlined))
        spread = [
            (k, i)
            for k in order
            if self.equations[k].primitive.name == "broadcast_in_dim"
            and not self._is_accumulated(k, root)
            for i in _scalars(self.equations[k])
        ]
        scalars = [
            (k, i)
            for k in (*order, root)
            if self.equations[k].primitive.name != "broadcast_in_dim"
            for i in _scalars(self.equations[k])
        ]
        if self.equations[root].primitive.name not in FUSIBLE:
            # XLA:CPU hands its YNN fusions whole arrays.
            spread += [place for place in scalars if place[0] != root]
            scalars = []
        inputs.sort()
        return Unit(root, order, tuple(inputs), tuple(sorted(spread)), tuple(scalars))

    def _is_accumulated(self, k: int, root: int) -> bool:
        """Whether these are the zeros of a scatter that XLA makes onto what it adds."""
        readers = self.consumers[self.equations[k].outputs[0]]
        names = {self.equations[r].primitive.name for r in readers if r != root}
        return bool(names & ACCUMULATING)

    def touched(self, unit: Unit) -> int:
        """Bytes that a unit reads and writes.

        Of what it only takes slices of, or rows, these alone.
        """
        inside = {*unit.inlined, unit.root}
        written = sum(map(self.bytes, self.equations[unit.root].outputs))
        return written + sum(self._bytes_read(v, inside) for v in unit.inputs)

    def _bytes_read(self, variable: Variable, inside: set[int]) -> int:
        size, read = self.bytes(variable), 0
        for k in self.consumers[variable]:
            if k not in inside:
                continue
            equation = self.equations[k]
            name, results = equation.primitive.name, equation.outputs
            if name in _PICKS and self.reads(k)[0] == variable:
                used = [v for v in results if inside.intersection(self.consumers[v])]
                read += sum(map(self.bytes, used or results))
            elif name in VIEWS | LAYOUTS:
                read += sum(self._bytes_read(v, inside) for v in results) or size
            else:
                read += size
        return min(size, read)


def choose_roots(
    graph: Graph, owned: Mapping[int, Sequence[OwnedBuffer]], platform: str
) -> set[int]:
    """The equations that become ops; all others are computed inside of them.

    Args:
      graph: of the program.
      owned: per equation, what XLA assigned to it in the step as written.
      platform: "cpu" or "gpu"; decides what XLA fuses.
    """
    roots = set()
    of_platform = fusible(platform)
    for k, equation in enumerate(graph.equations):
        if equation.is_barrier:
            continue
        sizes = {size for v in equation.outputs for size in held_sizes(graph, v)}
        is_owner = any(
            buffer.size in sizes and buffer.origin == "equation"
            for buffer in owned.get(k, ())
        )
        is_written = equation.primitive.name in REDUCTIONS and bool(owned.get(k))
        if (
            is_owner
            or is_written
            or equation.primitive.name not in of_platform
            or equation.effects
            or equation.is_pinned
            or graph.is_read_by_caller(k)
            or communicates(owned.get(k, ()))
        ):
            roots.add(k)
    _move_from_views(graph, roots)
    _merge_layouts(graph, roots)
    _merge_turned(graph, owned, roots)
    _merge_accumulations(graph, owned, roots)
    _add_narrow(graph, roots)
    return roots


def held_sizes(graph: Graph, variable: Variable) -> set[int]:
    """Bytes that XLA may hold a value in: 16-bit floats also as float32 (CPU)."""
    size, dtype = graph.bytes(variable), graph.program.avals[variable].dtype
    is_short_float = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize == 2
    return {size, 2 * size} if is_short_float else {size}


def _move_from_views(graph: Graph, roots: set[int]) -> None:
    for k in sorted(roots, reverse=True):
        equation = graph.equations[k]
        if equation.primitive.name not in VIEWS or graph.is_read_by_caller(k):
            continue
        sources = graph.reads(k)
        if sources and sources[0] in graph.producer:
            roots.discard(k)
            roots.add(graph.producer[sources[0]])


def _merge_layouts(graph: Graph, roots: set[int]) -> None:
    """Makes an equation that only moves bytes about part of the calls that read it."""
    for k in sorted(roots):
        equation = graph.equations[k]
        if equation.primitive.name not in LAYOUTS or graph.is_read_by_caller(k):
            continue
        readers = _readers_through_views(graph, k)
        is_of_argument = not any(v in graph.producer for v in graph.reads(k))
        if _is_folded(graph, k) or (
            is_of_argument and len(readers) == 1 and _is_call(graph, readers)
        ):
            roots.discard(k)


def _is_folded(graph: Graph, k: int) -> bool:
    """Whether only products read a transpose: they take operands in any order.

    Held, it would be turned around once to be held and again for each product.
    """
    readers = _readers_through_views(graph, k)
    names = {graph.equations[reader].primitive.name for reader in readers}
    return graph.equations[k].primitive.name == "transpose" and names == {"dot_general"}


def _merge_turned(
    graph: Graph, owned: Mapping[int, Sequence[OwnedBuffer]], roots: set[int]
) -> None:
    """Makes one unit of a product and its transpose, which XLA writes turned at once.

    Such is every layer that `vmap` makes of `weight @ x`. A plain `dot` that XLA:CPU
    makes of the two takes longer than a library's product and the transpose of it.
    """
    for k in sorted(roots):
        equation = graph.equations[k]
        if equation.primitive.name != "dot_general" or owned.get(k):
            continue
        readers = graph.consumers[equation.outputs[0]]
        if len(readers) != 1 or graph.is_read_by_caller(k):
            continue
        is_transpose = graph.equations[readers[0]].primitive.name == "transpose"
        written = owned.get(readers[0])
        is_plain = any(b.opcode == "dot" for b in written or ())
        if is_transpose and readers[0] in roots and written and not is_plain:
            roots.discard(k)


def _is_call(graph: Graph, equations: set[int]) -> bool:
    return all(graph.equations[k].primitive.name not in FUSIBLE for k in equations)


def _readers_through_views(graph: Graph, k: int) -> set[int]:
    found, todo = set(), list(graph.equations[k].outputs)
    while todo:
        for reader in graph.consumers[todo.pop()]:
            if graph.equations[reader].primitive.name in VIEWS:
                todo += graph.equations[reader].outputs
            else:
                found.add(reader)
    return found


def _merge_accumulations(
    graph: Graph, owned: Mapping[int, Sequence[OwnedBuffer]], roots: set[int]
) -> None:
    """Makes one unit of two equations that XLA made one instruction.

    XLA turns `x + scatter(zeros)` into a scatter onto `x` and a product plus `x` into
    one library call: the first equation's buffer lies where `x` does, and the sum has
    none, or, after a scatter, a copy in another layout.
    """
    for k in sorted(roots):
        equation = graph.equations[k]
        if len(equation.outputs) != 1 or graph.is_read_by_caller(k):
            continue
        if equation.primitive.name in _LOOPS | FUSIBLE:
            continue
        readers = graph.consumers[graph.equations[k].outputs[0]]
        if len(readers) != 1:
            continue
        sum_ = readers[0]
        if owned.get(sum_) and equation.primitive.name not in ACCUMULATING:
            continue
        if graph.equations[sum_].primitive.name not in ("add", "add_any"):
            continue
        places = _places(owned.get(k, ()))
        others = (graph.producer.get(v) for v in graph.reads(sum_))
        if any(
            places & _places(owned.get(x, ()))
            for x in others
            if x is not None and x != k
        ):
            roots.discard(k)
            roots.add(sum_)


def _places(buffers: Sequence[OwnedBuffer]) -> set[tuple[int, int, int]]:
    return {(b.allocation, b.offset, b.size) for b in buffers}


def _add_narrow(graph: Graph, roots: set[int]) -> None:
    """Makes roots of fused values that let go of twice their bytes or more.

    And of transposes that others than products read: free next to what they transpose,
    where XLA chooses the layout of both, they are strided copies in every reader behind
    a barrier.
    """
    readers = reading_units(graph, roots)
    for k, equation in enumerate(graph.equations):
        if k in roots or equation.is_barrier or len(equation.outputs) != 1:
            continue
        if equation.primitive.name in VIEWS or len(readers.get(k, ())) < 2:
            continue
        if equation.primitive.name == "transpose":
            if not _is_folded(graph, k):
                roots.add(k)
            continue
        last = max(readers[k])
        let_go = sum(
            graph.bytes(v)
            for v in graph.unit(k, roots).inputs
            if v in graph.producer and _last_reader(graph, v, k, roots) < last
        )
        if 0 < graph.bytes(equation.outputs[0]) <= let_go / 2:
            roots.add(k)


def _last_reader(
    graph: Graph, variable: Variable, avoiding: int, roots: set[int]
) -> int:
    """The last root that reads a variable, other than through one equation."""
    last, todo, seen = -1, [variable], set()
    while todo:
        for k in graph.consumers[todo.pop()]:
            if k in roots:
                last = max(last, k)
            elif k != avoiding and k not in seen:
                seen.add(k)
                todo += graph.equations[k].outputs
    return last


def reading_units(graph: Graph, roots: set[int]) -> dict[int, set[int]]:
    """Per fused equation, the roots it is computed inside of."""
    readers: dict[int, set[int]] = defaultdict(set)
    for k in range(len(graph.equations) - 1, -1, -1):
        if k in roots or graph.equations[k].is_barrier:
            continue
        for v in graph.equations[k].outputs:
            for consumer in graph.consumers[v]:
                readers[k] |= {consumer} if consumer in roots else readers[consumer]
    return readers


def _scalars(equation: Equation) -> list[int]:
    """Which inputs are literals of one element."""
    return [
        i
        for i, atom in enumerate(equation.inputs)
        if isinstance(atom, Literal) and atom.aval.shape == ()
    ]
