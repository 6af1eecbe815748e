"""Which results may take the bytes of an operand that dies, by XLA's rules.

XLA's heap simulator gives a result the place of an operand where the instruction is
elementwise in it, the operand is what another instruction wrote and not a view of that,
and neither of the two shares its place otherwise: what a loop starts from or ends with,
and an array before and after part of it is updated in place, take no bytes over from an
elementwise operand and pass none on to an elementwise reader.

A gradient of pooling by windows (`pooling`) is done with what was pooled before it
writes its result. The two are never there at once, as if the result took those bytes;
not so on CPU with padding, where there is a padded copy as well at first.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from .._native.program_words import InplaceProgram
from .cost import nbytes
from .fusing import FUSIBLE, SUMS
from .hlo import OwnedBuffer
from .pooling import is_by_windows, is_padded
from .trace import Equation, Literal, Variable
from .units import Graph, Unit, has_call

type Pair = tuple[Variable, Variable]
"""An operand, and the result that may take its bytes."""

_UPDATES = {
    "dynamic_update_slice", "scatter", "scatter-add", "scatter-max", "scatter-min",
    "scatter-mul", "scatter-sub",
}  # fmt: skip
"""Equations that XLA makes in their first operand, or in a copy of it."""

_CONVOLUTION = "conv_general_dilated"
_OPAQUE = {"cond", "while"}
_MOVING = {"concatenate", "rev", "transpose"}
"""Fusible equations that read elsewhere than they write."""


class Overwriting:
    """The pairs of every unit of a program.

    Args:
      graph: of the program.
      units: all of them.
      owned: what XLA assigned to each equation.
      programs: per root, the chain that an in-place call computes.
      platform: whose XLA it is.
    """

    def __init__(
        self,
        graph: Graph,
        units: Iterable[Unit],
        owned: Mapping[int, Sequence[OwnedBuffer]],
        programs: Mapping[int, InplaceProgram],
        platform: str,
    ) -> None:
        self._graph = graph
        self._owned = owned
        self._programs = programs
        self._platform = platform
        self._shared: set[Variable] = set()
        for unit in units:
            starts = self._kept(unit)
            if starts is not None:
                results = graph.equations[unit.root].outputs
                self._shared.update(results, (start for start, _ in starts))

    def pairs(self, unit: Unit) -> tuple[Pair, ...]:
        """Pairs (input, output) of a unit, both in the pool."""
        graph = self._graph
        found = self._kept(unit)
        if found is None and is_by_windows(graph.equations[unit.root]):
            found = self._pooled(unit)
        if found is None:
            found = [] if self._moves(unit.root) else self._elementwise(unit)
        return tuple(
            (source, target)
            for source, target in found
            if source in graph.producer
            and source in unit.inputs
            and target not in graph.outputs
        )

    def _kept(self, unit: Unit) -> list[Pair] | None:
        """Pairs of a loop, a call or an update in place; None for all else."""
        graph, root = self._graph, self._graph.equations[unit.root]
        if unit.root in self._programs:
            program = self._programs[unit.root]
            sources = [program.operands[k].variable for k in program.overwritable]
        elif root.primitive.name == "scan":
            return _carried(graph, root)
        elif root.primitive.name in _OPAQUE:
            return []
        elif root.primitive.name in _UPDATES:
            operand = root.inputs[0]
            sources = [] if isinstance(operand, Literal) else [graph.resolve(operand)]
        elif root.primitive.name in SUMS and has_call(graph.equations, unit):
            # A convolution's library reads what it adds, and writes elsewhere.
            is_convolved = any(self._name(k) == _CONVOLUTION for k in unit.inlined)
            reads = [] if is_convolved else graph.reads(unit.root)
            sources = [v for v in reads if self._has_bytes_of(v, root)]
        else:
            return None
        return [(source, root.outputs[0]) for source in sources]

    def _pooled(self, unit: Unit) -> list[Pair]:
        """What was pooled and its gradient, where nothing else takes its place."""
        root = self._graph.equations[unit.root]
        is_copied = self._platform == "cpu" and is_padded(root)
        _, operand = root.inputs
        if is_copied or isinstance(operand, Literal):
            return []
        source = self._graph.resolve(operand)
        return [(source, root.outputs[0])] if self._has_bytes_of(source, root) else []

    def _elementwise(self, unit: Unit) -> list[Pair]:
        root = self._graph.equations[unit.root]
        if root.outputs[0] in self._shared:
            return []
        moved = self._read_elsewhere(unit)
        return [
            (source, root.outputs[0])
            for source in self._graph.operands(unit)
            if source not in self._shared
            and source not in moved
            and not self._is_viewed(source, root.outputs[0])
            and self._has_bytes_of(source, root)
        ]

    def _read_elsewhere(self, unit: Unit) -> set[Variable]:
        """What goes through something that is not elementwise inside of the unit."""
        found = set[Variable]()
        for k in sorted(unit.inlined, reverse=True):
            equation = self._graph.equations[k]
            if self._moves(k) or not found.isdisjoint(equation.outputs):
                found.update(self._graph.reads(k))
        return found

    def _has_bytes_of(self, source: Variable, root: Equation) -> bool:
        avals = self._graph.program.avals
        a, b = avals[source], avals[root.outputs[0]]
        return nbytes(a) == nbytes(b) and a.dtype == b.dtype

    def _moves(self, k: int) -> bool:
        return self._name(k) not in FUSIBLE or self._name(k) in _MOVING

    def _is_viewed(self, source: Variable, result: Variable) -> bool:
        """Whether XLA wrote the value in another shape than the result has.

        XLA:GPU looks through what a fusion makes of its operand's shape, XLA:CPU not.
        """
        producer = self._graph.producer.get(source, -1)
        if self._platform == "cpu":
            avals = self._graph.program.avals
            is_other = avals[source].shape != avals[result].shape
            return is_other or self._is_flattened(producer)
        size = self._graph.bytes(source)
        written = self._owned.get(producer, ())
        results = [b for b in written if b.origin == "equation" and b.size == size]
        return bool(results) and all(b.is_viewed for b in results)

    def _is_flattened(self, producer: int) -> bool:
        """Whether it is a product of more dimensions than XLA writes it with.

        `DotDecomposer` makes one of all that come from either operand, and of those of
        the batch. What reads the product reads a bitcast. A convolution with a kernel
        of one pixel is a product.
        """
        if producer < 0:
            return False
        equation = self._graph.equations[producer]
        if equation.primitive.name == _CONVOLUTION:
            return self._is_product(equation)
        if equation.primitive.name != "dot_general":
            return False
        _, (batch, _) = equation.params["dimension_numbers"]
        return self._graph.program.avals[equation.outputs[0]].ndim > 2 + bool(batch)

    def _is_product(self, convolution: Equation) -> bool:
        """Whether a kernel of one pixel meets every pixel, features last."""
        params, kernel = convolution.params, convolution.inputs[1]
        numbers = params["dimension_numbers"]
        is_literal = isinstance(kernel, Literal)
        aval = kernel.aval if is_literal else self._graph.program.avals[kernel]
        shape = aval.shape
        last = len(shape) - 1
        ones = (
            *(shape[d] for d in numbers.rhs_spec[2:]),
            *params["window_strides"],
            *params["lhs_dilation"],
            *params["rhs_dilation"],
            params["feature_group_count"],
            params["batch_group_count"],
        )
        is_padded = any(map(any, params["padding"]))
        is_last = numbers.lhs_spec[1] == numbers.out_spec[1] == last
        return not is_padded and is_last and set(ones) == {1}

    def _name(self, k: int) -> str:
        return self._graph.equations[k].primitive.name


def _carried(graph: Graph, scan: Equation) -> list[Pair]:
    """What a scan carries stays in one place, but for what it reads otherwise too."""
    consts, carry, _ = (len(part) for part in scan.params["ft_in"].unpack())
    starts = scan.inputs[consts : consts + carry]
    times = Counter(graph.resolve(v) for v in scan.variables)
    return [
        (graph.resolve(start), end)
        for start, end in zip(starts, scan.outputs, strict=False)
        if not isinstance(start, Literal)
        and graph.resolve(start) not in graph.outputs
        and times[graph.resolve(start)] == 1
    ]
