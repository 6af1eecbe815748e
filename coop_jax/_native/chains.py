"""Finds the chains that an in-place call computes in fewer bytes than XLA does.

XLA overwrites a dying operand by itself when one fusion does all the work. It does not
where a chain needs arrays of its own on the way: a softmax or a normalisation, whose
reductions read an array that must exist, or random bits, which are made whole before
they are compared. Such a chain becomes one op: units that nothing outside of it reads
are computed inside, from the operands straight to the result.

What XLA held is read from its buffer assignment, so a chain that it computes in place
already is left to it.

XLA:GPU computes what reads the same arrays in one kernel: the gradients of a
normalisation and of its weights, a mask's random bits and what is masked. There a chain
is what is one kernel by itself, a softmax, which XLA never does in place.
"""

from collections.abc import Mapping, Sequence

from .._program.hlo import OwnedBuffer
from .._program.roots import reading_units
from .._program.trace import Variable
from .._program.units import Graph, Unit
from .program_words import InplaceProgram
from .translate import is_translatable, translate

_SMALLEST = 65536
_WORTH = 0.5
"""Share of the result's bytes that XLA must have held beside it."""

_REASONS = {"reduce_sum", "reduce_max", "reduce_min", "random_bits"}
"""What XLA needs an array for on the way to the result."""


def choose_chains(
    graph: Graph,
    roots: set[int],
    owned: Mapping[int, Sequence[OwnedBuffer]],
    platform: str,
) -> tuple[set[int], dict[int, InplaceProgram]]:
    """Joins units into chains.

    Args:
      graph: of the step.
      roots: of the units as XLA holds them.
      owned: per equation, what XLA assigned to it.
      platform: "cpu" or "gpu".

    Returns:
      The roots that are left, and per chain its root and program.
    """
    finder = _Finder(graph, roots, owned, joins=platform == "cpu")
    for root in sorted(roots, reverse=True):
        finder.try_root(root)
    return roots - finder.absorbed, finder.programs


class _Finder:
    def __init__(
        self,
        graph: Graph,
        roots: set[int],
        owned: Mapping[int, Sequence[OwnedBuffer]],
        joins: bool,
    ) -> None:
        self.graph = graph
        self.roots = set(roots)
        self.owned = owned
        self.joins = joins
        self.readers = reading_units(graph, roots)
        self.absorbed: set[int] = set()
        self.programs: dict[int, InplaceProgram] = {}

    def try_root(self, root: int) -> None:
        graph = self.graph
        equation = graph.equations[root]
        if root in self.absorbed or not is_translatable(equation):
            return
        if graph.bytes(equation.outputs[0]) < _SMALLEST or not self._may_be_one(root):
            return
        inside, program = self._grow(root)
        if program is None or not program.is_contiguous:
            return
        has_bits = self.joins and self._has_random_bits(root, inside)
        if not program.has_reductions and not has_bits:
            return
        held = self._held(root, inside)
        if program.has_reductions and not self._overwrites(root, program):
            held = graph.bytes(equation.outputs[0])
        if held >= _WORTH * graph.bytes(equation.outputs[0]):
            self.absorbed |= inside
            self.programs[root] = program

    def _may_be_one(self, root: int) -> bool:
        """Whether there is a reason for a call in all that a chain could take in."""
        inside: set[int] = set()
        while True:
            unit = self._unit(root, inside)
            members = (*unit.inlined, unit.root)
            if any(self.graph.equations[k].primitive.name in _REASONS for k in members):
                return True
            wider = self._candidates(unit, inside) if self.joins else set()
            if not wider:
                return False
            inside |= wider

    def _grow(self, root: int) -> tuple[set[int], InplaceProgram | None]:
        """Takes in one unit after the other, as long as a program can express it."""
        inside: set[int] = set()
        refused: set[int] = set()
        program = self._program(root, inside)
        while program is not None and self.joins:
            candidates = self._candidates(self._unit(root, inside), inside) - refused
            if not candidates:
                break
            unit = max(candidates)
            wider = self._program(root, inside | {unit})
            if wider is None or unit in wider.outside:
                refused.add(unit)
            else:
                program = wider
                inside.add(unit)
        return inside, program

    def _program(self, root: int, inside: set[int]) -> InplaceProgram | None:
        unit = self._unit(root, inside)
        return translate(self.graph, root, {*unit.inlined, root})

    def _unit(self, root: int, inside: set[int]) -> Unit:
        """The chain as one unit."""
        self.roots -= inside
        unit = self.graph.unit(root, self.roots)
        self.roots |= inside
        return unit

    def _candidates(self, unit: Unit, inside: set[int]) -> set[int]:
        """Units that only the chain reads."""
        chain = inside | {unit.root}
        graph = self.graph
        found = set()
        for v in unit.inputs:
            k = graph.producer.get(v)
            if (
                k is not None
                and k not in self.absorbed
                and k not in self.programs
                and is_translatable(graph.equations[k])
                and not graph.is_read_by_caller(k)
                and self._readers_of(v) <= chain
            ):
                found.add(k)
        return found

    def _has_random_bits(self, root: int, inside: set[int]) -> bool:
        unit = self._unit(root, inside)
        names = {self.graph.equations[k].primitive.name for k in (root, *unit.inlined)}
        return "random_bits" in names

    def _readers_of(self, v: Variable) -> set[int]:
        found: set[int] = set()
        for consumer in self.graph.consumers[v]:
            is_root = consumer in self.roots
            found |= {consumer} if is_root else self.readers[consumer]
        return found

    def _overwrites(self, root: int, program: InplaceProgram) -> bool:
        """Whether XLA put the result where one of the chain's operands was."""
        mine = {(b.allocation, b.offset) for b in self.owned.get(root, ())}
        producers = [
            self.graph.producer.get(program.operands[k].variable)
            for k in program.overwritable
        ]
        return any(
            (b.allocation, b.offset) in mine
            for k in producers
            if k is not None
            for b in self.owned.get(k, ())
        )

    def _held(self, root: int, inside: set[int]) -> int:
        """Most bytes that XLA held on the way to the chain's result."""
        graph = self.graph
        held = [0]
        for k in inside:
            held += [graph.bytes(v) for v in graph.equations[k].outputs]
        results = {graph.bytes(v) for v in graph.equations[root].outputs}
        held += [
            buffer.size
            for k in (root, *inside)
            for buffer in self.owned.get(k, ())
            if buffer.is_temporary and not (k == root and buffer.size in results)
        ]
        return max(held)
