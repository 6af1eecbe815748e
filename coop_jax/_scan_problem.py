"""The joint body of a scan pair as a planning problem."""

from dataclasses import dataclass, field

from ._cost import DeviceRates, flops
from ._profile import is_recomputable
from ._scan_pairs import ScanPair, ScanParts, row_bytes
from ._scan_plan import SeamProblem, with_seam
from ._trace import Literal, Program, Variable
from ._types import Op, Value
from ._units import FUSIBLE, Graph

_FUSED = 0.25
"""Share of a streaming pass that an elementwise equation inside a fusion costs."""


@dataclass(frozen=True, slots=True, eq=False)
class BodyProblem:
    """A seam problem and the equations behind its ops.

    Attributes:
      equations: per op, the equation of the joint body; None for the seam and for
        operands that would have to be kept between the scans.
      alias_of: barrier outputs of the joint body and what they stand for.
    """

    body: SeamProblem
    equations: tuple[int | None, ...]
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
    joint = pair.joint.program
    graph = Graph(joint)
    number: dict[Variable, int] = {}
    values: list[Value] = []
    ops: list[Op] = []
    equations: list[int | None] = []

    def new(variable: Variable, size: int, **kind: bool) -> int:
        number[variable] = len(values)
        values.append(Value(str(variable), size, **kind))
        return number[variable]

    for v in (*joint.arguments, *(v for v, _ in joint.constants)):
        size = row_bytes(pair, v, program) if v in joint.arguments else 0
        if not size:
            new(v, 0, is_argument=True)
            continue
        output = new(v, size)
        ops.append(Op("operand", (), (output,), 0.0, is_recomputable=False))
        equations.append(None)
    wanted = _wanted(pair, program, graph)
    boundary = 0
    for k, equation in enumerate(joint.equations):
        if k == pair.joint.boundary:
            boundary = len(ops)
        if equation.is_barrier:
            continue
        inputs = tuple(number[v] for v in graph.reads(k))
        outputs = tuple(
            new(
                v,
                0 if v in wanted else row_bytes(pair, v, program),
                is_output=v in wanted,
            )
            for v in equation.outputs
        )
        operations = flops(equation, joint.avals)
        written = sum(map(graph.bytes, equation.outputs))
        if equation.primitive.name in FUSIBLE:
            moved = _FUSED * written
        else:
            moved = written + sum(map(graph.bytes, graph.reads(k)))
        ops.append(
            Op(
                equation.primitive.name,
                inputs,
                outputs,
                max(operations / rates.flops, moved / rates.bytes),
                is_recomputable=is_recomputable(equation)
                and (not is_cheap_only or equation.primitive.name in FUSIBLE),
            )
        )
        equations.append(k)
    body = with_seam(ops, values, boundary or len(ops))
    equations.insert(body.seam, None)
    return BodyProblem(body, tuple(equations), graph.alias_of)


def _wanted(pair: ScanPair, program: Program, graph: Graph) -> set[Variable]:
    """Results of both bodies that are not residuals."""
    outputs = pair.joint.program.outputs
    residuals = set(pair.residuals)
    assert ScanParts.of(program.equations[pair.forward]).stacked is not None
    return {
        graph.resolve(atom)
        for place, atom in enumerate(outputs)
        if place not in residuals and not isinstance(atom, Literal)
    }
