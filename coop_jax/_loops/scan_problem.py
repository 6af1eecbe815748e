"""The joint body of a scan pair as a planning problem."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from .._planning.seam import SeamProblem, with_seam
from .._planning.types import Op, Value, ValueId
from .._program.cost import DeviceRates, flops, work
from .._program.fusing import FUSIBLE
from .._program.pins import dropped, late_equations
from .._program.repeating import is_recomputable
from .._program.trace import Atom, Equation, Literal, Program, Variable
from .._program.units import Graph
from .scan_pairs import ScanPair, ScanParts, row_bytes

_FUSED = 0.25
"""Share of a streaming pass that an elementwise equation inside a fusion costs."""

_PRODUCTS = {"dot_general", "conv_general_dilated"}


@dataclass(frozen=True, slots=True, eq=False)
class BodyProblem:
    """A seam problem and the equations behind its ops.

    Attributes:
      equations: per op, the equation of the joint body; None for the seam and for
        operands that would have to be kept between the scans.
      can_repeat_forward: whether the whole forward scan may run again.
      alias_of: barrier outputs of the joint body and what they stand for.
    """

    body: SeamProblem
    equations: tuple[int | None, ...]
    can_repeat_forward: bool
    alias_of: dict[Variable, Variable] = field(repr=False)


def body_problem(
    pair: ScanPair,
    program: Program,
    rates: DeviceRates,
    is_cheap_only: bool = False,
) -> BodyProblem:
    """Builds the problem of a pair.

    Operands of the forward scan that are not held in any case come first, as ops that
    cannot be repeated: to read one behind the seam is to keep it.

    Args:
      is_cheap_only: whether only what XLA fuses may run again.
    """
    builder = _Builder(pair, program, rates, is_cheap_only)
    builder.add_operands()
    for k, equation in enumerate(builder.joint.equations):
        if k == pair.joint.boundary:
            builder.add_seam()
        if not equation.is_barrier:
            builder.add(k, equation)
    if pair.joint.boundary == len(builder.joint.equations):
        builder.add_seam()
    return builder.build()


class _Builder:
    """Collects ops and values, and the equations behind them."""

    def __init__(
        self,
        pair: ScanPair,
        program: Program,
        rates: DeviceRates,
        is_cheap_only: bool,
    ) -> None:
        self.pair, self.program, self.rates = pair, program, rates
        self.is_cheap_only = is_cheap_only
        self.joint = pair.joint.program
        self.graph = Graph(self.joint)
        self.wanted, self.results = _wanted(pair, program, self.graph)
        self.number: dict[Variable, int] = {}
        self.values: list[Value] = []
        self.ops: list[Op] = []
        self.equations: list[int | None] = []
        self.arithmetic: list[float] = []
        self.boundary = 0

    def add_operands(self) -> None:
        """Operands that the seam costs bytes come first, as ops that run once."""
        for v in (*self.joint.arguments, *(v for v, _ in self.joint.constants)):
            is_argument = v in self.joint.arguments
            size = row_bytes(self.pair, v, self.program) if is_argument else 0
            if not size:
                self._new(v, 0, is_argument=True)
                continue
            self._fixed("operand", (), self._new(v, size))

    def add_seam(self) -> None:
        """Ends the first half by reading its results."""
        self.values.append(Value("results", 0, is_output=True))
        inputs = tuple(self.number[v] for v in self.results)
        self._fixed("results", inputs, len(self.values) - 1)
        self.boundary = len(self.ops)

    def add(self, k: int, equation: Equation) -> None:
        """The op of equation `k`."""
        name = equation.primitive.name
        reads = list(dict.fromkeys([*self.graph.reads(k), *self._index(k)]))
        outputs = tuple(map(self._result, equation.outputs))
        written = sum(map(self.graph.bytes, equation.outputs))
        is_fused = name in FUSIBLE
        moved = written + sum(map(self.graph.bytes, reads))
        touched = _FUSED * written if is_fused else moved
        operations = work(equation, self.joint.avals, self.rates)
        repeats = self.program.rules.recompute_collectives
        self.ops.append(
            Op(
                name,
                tuple(self.number[v] for v in reads),
                outputs,
                self.rates.seconds(operations, touched),
                is_recomputable=is_recomputable(equation, repeats)
                and (is_fused or not self.is_cheap_only),
            )
        )
        self.equations.append(k)
        self.arithmetic.append(flops(equation, self.joint.avals))

    def _index(self, k: int) -> list[Variable]:
        """What says whether the equation runs, if it is out of a branch."""
        apart = self.pair.joint.apart.get(k)
        if apart is None or isinstance(apart.index, Literal):
            return []
        return [self.graph.resolve(apart.index)]

    def build(self) -> BodyProblem:
        second = range(self.pair.joint.boundary, len(self.joint.equations))
        late = late_equations(self.joint, second, {*self.wanted, *self.results})
        never = frozenset(
            self.number[v]
            for v in dropped(self.joint, second, late)
            if self.values[self.number[v]].size
        )
        body = with_seam(
            self.ops,
            self.values,
            self.boundary,
            never,
            self.arithmetic,
            self._policies(),
        )
        first = zip(self.ops[: self.boundary], self.equations, strict=False)
        can_repeat = all(op.is_recomputable for op, k in first if k is not None)
        self.equations.insert(body.seam, None)
        return BodyProblem(body, tuple(self.equations), can_repeat, self.graph.alias_of)

    def _new(self, variable: Variable, size: int, **kind: bool) -> int:
        self.number[variable] = len(self.values)
        self.values.append(Value(str(variable), size, **kind))
        return self.number[variable]

    def _result(self, variable: Variable) -> int:
        if variable in self.wanted:
            return self._new(variable, 0, is_output=True)
        return self._new(variable, row_bytes(self.pair, variable, self.program))

    def _fixed(self, name: str, inputs: tuple[int, ...], output: int) -> None:
        self.ops.append(Op(name, inputs, (output,), 0.0, is_recomputable=False))
        self.equations.append(None)
        self.arithmetic.append(0.0)

    def _policies(self) -> list[frozenset[ValueId]]:
        """What the usual policies of `jax.checkpoint` keep."""
        products = [
            (equation, frozenset(self.number[v] for v in equation.outputs))
            for equation in self.joint.equations[: self.pair.joint.boundary]
            if equation.primitive.name in _PRODUCTS
        ]
        unbatched = [kept for equation, kept in products if not _is_batched(equation)]
        every = [kept for _, kept in products]
        return [frozenset().union(*some) for some in ([], unbatched, every)]


def _is_batched(equation: Equation) -> bool:
    """Whether a policy that saves products without batch dimensions leaves it out."""
    if equation.primitive.name != "dot_general":
        return True
    _, (batch, _) = equation.params["dimension_numbers"]
    return bool(batch)


def _wanted(
    pair: ScanPair, program: Program, graph: Graph
) -> tuple[set[Variable], list[Variable]]:
    """Results of either body that cost nothing to have, and results of the first.

    Free are those of the second body and what the first stacks in any case. What the
    first carries into its next iteration is not there in the second.
    """
    outputs = pair.joint.program.outputs
    first = ScanParts.of(program.equations[pair.forward])
    stacked = [p for p in first.stacked if p not in pair.residuals]
    free = [*stacked, *range(pair.joint.results, len(outputs))]
    ours = [*first.carried, *stacked]
    return (
        set(_resolved(graph, [outputs[place] for place in free])),
        _resolved(graph, [outputs[place] for place in ours]),
    )


def _resolved(graph: Graph, atoms: Iterable[Atom]) -> list[Variable]:
    found = (graph.resolve(a) for a in atoms if not isinstance(a, Literal))
    return list(dict.fromkeys(found))
