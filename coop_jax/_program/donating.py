"""Which results take the bytes of donated arguments."""

from collections import defaultdict

from .trace import Literal, Program, Variable
from .units import Graph


def donation(program: Program, graph: Graph) -> dict[Variable, Variable]:
    """Pairs outputs with the donated arguments whose bytes they take, as jit does.

    Jit gives each donated argument to the first output, in order, of its type that has
    no donor yet.
    """
    free: dict[str, list[Variable]] = defaultdict(list)
    for variable, is_donated in zip(program.arguments, program.donated, strict=True):
        if is_donated:
            free[str(program.avals[variable])].append(variable)
    pairs = {}
    for atom in program.outputs:
        if isinstance(atom, Literal):
            continue
        donors = free[str(program.avals[atom])]
        if donors:
            donor = donors.pop(0)
            produced = graph.resolve(atom)
            if produced in graph.producer:
                pairs[produced] = donor
    return pairs
