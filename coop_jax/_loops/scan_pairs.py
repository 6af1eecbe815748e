"""Finds a forward scan whose stacked results only a backward scan reads.

Reverse-mode differentiation turns one `lax.scan` into such a pair: the first stacks
residuals, row by row, and the second takes them apart again, the last row first. A
residual need not be stacked if the second scan computes it again from what it has, so
the two bodies, one after the other, are one straight-line program for the planner: the
*joint body*. Whatever is alive between its halves is what must be stacked.
"""

import math
from dataclasses import dataclass

from .._program.cost import nbytes
from .._program.fusing import FUSIBLE
from .._program.trace import Equation, Literal, Program, Variable
from .._program.units import Graph
from .joint import Joint, flatten_joint


@dataclass(frozen=True, slots=True)
class ScanParts:
    """The operands and results of a scan equation by what they are.

    `consts`, `carry` and `xs` hold positions in `Equation.inputs`; `carried` and
    `stacked` positions in `Equation.outputs`.
    """

    consts: range
    carry: range
    xs: range
    carried: range
    stacked: range

    @classmethod
    def of(cls, equation: Equation) -> "ScanParts":
        """Reads the parts off the equation's parameters."""
        consts, carry, xs = (len(p) for p in equation.params["ft_in"].unpack())
        return cls(
            range(consts),
            range(consts, consts + carry),
            range(consts + carry, consts + carry + xs),
            range(carry),
            range(carry, len(equation.outputs)),
        )


@dataclass(frozen=True, slots=True, eq=False)
class ScanPair:
    """Two scans of one program that share residuals, and their joint body.

    Attributes:
      forward, backward: numbers of the two equations.
      joint: both bodies as one program. Its arguments are the forward scan's operands,
        in order, then those of the backward scan that are not residuals; its outputs
        what the forward body returns, then what the backward body returns.
      residuals: results of the forward scan (positions in its outputs) that nothing but
        the backward scan reads.
      length: iterations.
      free: arguments and outputs of the joint body that cost no bytes between the two
        scans, because something else holds them in any case.
    """

    forward: int
    backward: int
    joint: Joint
    residuals: tuple[int, ...]
    length: int
    free: frozenset[Variable]


def find_pairs(program: Program) -> list[ScanPair]:
    """All pairs of a program, each scan in at most one of them."""
    graph = Graph(program)
    taken: set[int] = set()
    pairs = []
    for k, equation in enumerate(program.equations):
        if not _is_scan(equation) or k in taken:
            continue
        reader = _reader_of_residuals(graph, k)
        if reader is not None and reader not in taken:
            taken |= {k, reader}
            pairs.append(_pair(graph, k, reader))
    return pairs


def _is_scan(equation: Equation) -> bool:
    return (
        equation.primitive.name == "scan"
        and not equation.effects
        and equation.params["length"] > 1
    )


def _reader_of_residuals(graph: Graph, forward: int) -> int | None:
    """The scan that alone reads the most bytes of what `forward` stacks."""
    equation = graph.equations[forward]
    size: dict[int, int] = {}
    for place in ScanParts.of(equation).stacked:
        reader = _only_reader(graph, equation.outputs[place])
        if reader is not None and _takes_apart(graph, reader, forward, place):
            size[reader] = size.get(reader, 0) + graph.bytes(equation.outputs[place])
    return max(size, key=lambda k: size[k], default=None)


def _only_reader(graph: Graph, variable: Variable) -> int | None:
    readers = graph.consumers[variable]
    is_private = len(readers) == 1 and variable not in graph.outputs
    return readers[0] if is_private else None


def _takes_apart(graph: Graph, reader: int, forward: int, place: int) -> bool:
    """Whether `reader` scans over this stack of `forward`, row for row."""
    first, second = graph.equations[forward], graph.equations[reader]
    if not _is_scan(second) or second.params["length"] != first.params["length"]:
        return False
    parts = ScanParts.of(second)
    stack = first.outputs[place]
    uses = [i for i, a in enumerate(second.inputs) if _resolved(graph, a) == stack]
    return all(i in parts.xs for i in uses)


def _resolved(graph: Graph, atom: object) -> Variable | None:
    return graph.resolve(atom) if isinstance(atom, int) else None


def _pair(graph: Graph, forward: int, backward: int) -> ScanPair:
    first, second = graph.equations[forward], graph.equations[backward]
    residuals = tuple(
        place
        for place in ScanParts.of(first).stacked
        if _only_reader(graph, first.outputs[place]) == backward
        and _takes_apart(graph, backward, forward, place)
    )
    rows: dict[Variable | None, int] = {
        first.outputs[place]: place
        for place in ScanParts.of(first).stacked
        if _takes_apart(graph, backward, forward, place)
    }
    same = {}
    for i, atom in enumerate(second.inputs):
        row = rows.get(_resolved(graph, atom), None)
        shared = _shared_operand(graph, first, second, i)
        if row is not None:
            same[i] = ("output", row)
        elif shared is not None:
            same[i] = ("input", shared)
    merge = graph.program.partitions == 1
    joint = flatten_joint(first, second, same, graph.program.rules, merge)
    return ScanPair(
        forward,
        backward,
        joint,
        residuals,
        first.params["length"],
        _free(graph, forward, backward, joint, residuals),
    )


def _shared_operand(
    graph: Graph, first: Equation, second: Equation, i: int
) -> int | None:
    """Operand of the first scan that operand `i` of the second is, used alike."""
    atom = second.inputs[i]
    ours, theirs = ScanParts.of(first), ScanParts.of(second)
    for mine, other in ((ours.consts, theirs.consts), (ours.xs, theirs.xs)):
        if i not in other:
            continue
        for k in mine:
            operand = first.inputs[k]
            if isinstance(atom, Literal) or isinstance(operand, Literal):
                continue
            if graph.resolve(atom) == graph.resolve(operand):
                return k
    return None


def _free(
    graph: Graph,
    forward: int,
    backward: int,
    joint: Joint,
    residuals: tuple[int, ...],
) -> frozenset[Variable]:
    """Arguments held in any case, and results that are stacked in any case."""
    first = graph.equations[forward]
    parts = ScanParts.of(first)
    free = {v for v in joint.program.arguments[len(first.inputs) :]}
    for k in (*parts.consts, *parts.xs):
        atom = first.inputs[k]
        if isinstance(atom, Literal) or _is_held(graph, graph.resolve(atom), backward):
            free.add(joint.program.arguments[k])
    for place in parts.stacked:
        atom = joint.program.outputs[place]
        if place not in residuals and not isinstance(atom, Literal):
            free.add(atom)
    return frozenset(free)


def _is_held(graph: Graph, variable: Variable, until: int) -> bool:
    """Whether the variable is alive when equation `until` runs, as written."""
    if variable not in graph.producer or variable in graph.outputs:
        return True
    if _is_spread(graph, variable):
        return True
    return max(graph.consumers[variable], default=-1) >= until


def _is_spread(graph: Graph, variable: Variable) -> bool:
    """Whether it is made from scalars alone, so that making it again is free."""
    todo, seen = [variable], {variable}
    while todo:
        v = todo.pop()
        k = graph.producer.get(v)
        if graph.program.avals[v].shape == ():
            continue
        if k is None or graph.equations[k].primitive.name not in FUSIBLE:
            return False
        todo += [u for u in graph.reads(k) if u not in seen]
        seen.update(graph.reads(k))
    return True


def stacked_bytes(pair: ScanPair, program: Program) -> int:
    """Bytes of all residuals of the pair, as written."""
    equation = program.equations[pair.forward]
    return sum(nbytes(program.avals[equation.outputs[p]]) for p in pair.residuals)


def row_bytes(pair: ScanPair, variable: Variable, program: Program) -> int:
    """Bytes per iteration of keeping a value of the joint body between the scans."""
    if variable in pair.free:
        return 0
    joint = pair.joint.program
    size = nbytes(joint.avals[variable])
    first = program.equations[pair.forward]
    at = joint.arguments.index(variable) if variable in joint.arguments else -1
    if at in ScanParts.of(first).consts:
        return math.ceil(size / pair.length)
    return size
