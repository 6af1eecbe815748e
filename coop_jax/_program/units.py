"""Groups equations into units: what XLA computes as a whole and gives bytes.

A jaxpr value is not a buffer: XLA fuses elementwise chains, broadcasts and conversions
into whatever reads them. The unplanned program is compiled once with one name scope per
equation, and the buffer assignment then says which equations own bytes. Those become
the ops of the `Problem`; equations that own none are computed inside every op that
reads them (`Unit.inlined`), as XLA does. Which they are is for `roots` to say.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from .cost import nbytes
from .fusing import ACCUMULATING, FUSIBLE, LAYOUTS, REDUCTIONS, VIEWS
from .trace import Equation, Literal, Program, Variable

_PICKS = {"dynamic_slice", "gather", "slice", "split"}
"""Equations that read no more of their operand than they return."""
_SMALL = 1 << 12
"""Bytes of an array, a page, that hardly matter if they stand all through a step."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The equations behind one op.

    Attributes:
      root: the equation that owns bytes.
      inlined: equations computed inside, in program order.
      inputs: variables it reads that other units own, and arguments.
      literals: (equation, input) places where XLA would spread a literal over an array
        of its own, of more than a page.
      scalars: more such places if XLA takes the unit into a library call that reads it.
    """

    root: int
    inlined: tuple[int, ...]
    inputs: tuple[Variable, ...]
    literals: tuple[tuple[int, int], ...]
    scalars: tuple[tuple[int, int], ...] = ()


def has_call(equations: Sequence[Equation], unit: Unit) -> bool:
    """Whether some equation of the unit, its root apart, is one that XLA never fuses.

    Then XLA made one call of that and what follows it: a product onto a sum.
    """
    inside = (equations[k].primitive.name for k in unit.inlined)
    return any(name not in FUSIBLE | REDUCTIONS for name in inside)


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

    def turned_product(self, k: int) -> int | None:
        """The product that an equation turns around, if it is such a transpose."""
        sources = [self.producer.get(v, -1) for v in self.reads(k)]
        names = {self.equations[s].primitive.name for s in sources if s >= 0}
        is_transpose = self.equations[k].primitive.name == "transpose"
        return sources[0] if is_transpose and names == {"dot_general"} else None

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
            for i in self._spread_scalars(k)
        ]
        scalars = [
            (k, i)
            for k in (*order, root)
            if self.equations[k].primitive.name != "broadcast_in_dim"
            and not self._is_padded_for_windows(k)
            for i in self._spread_scalars(k)
        ]
        if self.equations[root].primitive.name not in FUSIBLE:
            # XLA:CPU hands its YNN fusions whole arrays.
            spread += [place for place in scalars if place[0] != root]
            scalars = []
        inputs.sort()
        return Unit(root, order, tuple(inputs), tuple(sorted(spread)), tuple(scalars))

    def operands(self, unit: Unit) -> list[Variable]:
        """A unit's inputs in the order in which XLA's fusion lists them.

        It starts from what the root reads; what is fused into it appends what it reads.
        """
        inlined, found = set(unit.inlined), dict[Variable, None]()
        level = self.reads(unit.root)
        seen = set(level)
        while level:
            found.update(
                dict.fromkeys(v for v in level if self._made(v) not in inlined)
            )
            fused = [k for v in level if (k := self._made(v)) in inlined]
            level = [v for k in fused for v in self.reads(k) if v not in seen]
            level = list(dict.fromkeys(level))
            seen.update(level)
        return list(found)

    def _made(self, v: Variable) -> int:
        return self.producer.get(v, -1)

    def _spread_scalars(self, k: int) -> list[int]:
        """Which inputs are literals of one element that meet no small array."""
        equation = self.equations[k]
        if sum(map(self.bytes, equation.outputs)) <= _SMALL:
            return []
        return [
            i
            for i, atom in enumerate(equation.inputs)
            if isinstance(atom, Literal) and atom.aval.shape == ()
        ]

    def _is_padded_for_windows(self, k: int) -> bool:
        """Whether XLA pads in the windows that read it, if it knows with what."""
        readers = [r for v in self.equations[k].outputs for r in self.consumers[v]]
        return self.equations[k].primitive.name == "pad" and all(
            self.equations[r].primitive.name.startswith("reduce_window")
            for r in readers
        )

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
