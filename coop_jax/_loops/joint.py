"""The bodies of two scans as one straight-line program."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jax.extend import source_info_util

from .._program.flatten import Builder
from .._program.pins import mark_kept
from .._program.rules import Rules
from .._program.trace import Atom, Equation, Program, Variable, drop_dead
from .branches import Apart, take_apart


@dataclass(frozen=True, slots=True, eq=False)
class Joint:
    """Two bodies as one program, equal equations of both merged.

    Attributes:
      program: the first body's equations, then the second's.
      boundary: number of equations of the first.
      results: number of outputs that are the first's.
      operands: per operand of the second equation, its variable in `program`, or the
        literal that it is.
      apart: equations out of a branch of a `cond`.
    """

    program: Program
    boundary: int
    results: int
    operands: tuple[Atom, ...]
    apart: Mapping[int, Apart] = field(default_factory=dict)


def flatten_joint(
    first: Equation,
    second: Equation,
    same: dict[int, tuple[str, int]],
    rules: Rules,
    merge: bool = True,
) -> Joint:
    """Flattens the bodies of two scans, one after the other.

    Args:
      first, second: scan equations.
      same: operands of the second body that are ("input", i) operand `i` of the first
        body or ("output", i) its result `i`.
      rules: the user's.
      merge: False leaves equal equations apart and branches whole; the equations of the
        first body then have the numbers they have in it.
    """
    builder = Builder(merge, rules, is_joint=True)
    top = source_info_util.new_name_stack()

    def body(equation: Equation, operands: Sequence[Atom]) -> list[Atom]:
        closed = equation.params["jaxpr"]
        consts = [builder.constant(c) for c in closed.consts]
        return builder.inline(closed.jaxpr, consts, operands, top, equation.source)

    ours = [builder.new(v.aval) for v in first.params["jaxpr"].jaxpr.invars]
    results = body(first, ours)
    boundary = len(builder.equations)
    theirs: list[Atom] = []
    own: list[Variable] = []
    for i, v in enumerate(second.params["jaxpr"].jaxpr.invars):
        kind, place = same.get(i, ("own", 0))
        if kind == "own":
            own.append(builder.new(v.aval))
        theirs.append({"input": ours, "output": results}[kind][place]
                      if kind != "own" else own[-1])  # fmt: skip
    outputs = [*results, *body(second, theirs)]
    equations = drop_dead(builder.equations, outputs)
    kept = set(map(id, equations))
    boundary = sum(id(e) in kept for e in builder.equations[:boundary])
    arguments = (*ours, *own)
    program = Program(
        arguments,
        tuple(builder.constants),
        tuple(equations),
        tuple(outputs),
        tuple(builder.avals),
        (False,) * len(arguments),
        rules=rules,
    )
    apart: dict[int, Apart] = {}
    if merge:
        program, boundary, apart = take_apart(program, boundary)
    return Joint(mark_kept(program), boundary, len(results), tuple(theirs), apart)
