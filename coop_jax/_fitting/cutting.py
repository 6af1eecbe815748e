"""Where a plan is cut into parts, by what XLA of the platform makes one kernel of."""

from collections import Counter
from collections.abc import Hashable, Set

from .._planning.types import OpId, Problem
from .._program.cost import RANDOM
from .._program.fusing import SEVERAL, fusible
from .._program.profile import Profile
from .._program.shelving import small_size
from .._program.units import Unit, has_call
from .joining import joined
from .late import with_large_of_small_late
from .long_kernels import cut_long_kernels
from .moments import with_moments_waiting
from .parts import Positions, parts
from .staging import stages


def cut_into_parts(
    profile: Profile,
    positions: Positions,
    alone: Set[OpId],
    spreading: Set[OpId],
    in_stages: bool = False,
) -> list[list[OpId]]:
    """The parts of a plan, in the order they run, no barrier inside of any.

    Args:
      profile: program and units.
      positions: where each op runs.
      alone: `ops_alone`.
      spreading: `ops_spreading`.
      in_stages: whether the order inside of parts is that of the plan too, on GPU.
    """
    problem = profile.problem
    if profile.platform == "cpu":
        # XLA:CPU rather computes what it fuses once per reader, and is slower then.
        return parts(problem, positions, alone | _read_often(problem))
    kinds = [_kind(profile, unit) for unit in profile.units]
    found = with_large_of_small_late(problem, parts(problem, positions, alone))
    apart = profile.calls.keys() | _by_rows(profile, spreading)
    sharing = _sharing(profile)
    found = joined(problem, found, apart, spreading, alone, sharing, kinds)
    found = with_moments_waiting(problem, found, spreading)
    sizes = [len(unit.inlined) + 1 for unit in profile.units]
    found = [
        piece
        for part in found
        for piece in cut_long_kernels(problem, part, alone, sizes, kinds)
    ]
    if not in_stages:
        return found
    beginning = _ops_beginning(profile, alone)
    return [stage for part in found for stage in stages(problem, part, beginning)]


def ops_alone(profile: Profile) -> set[OpId]:
    """Ops that XLA fuses with no other."""
    equations, inside = profile.program.equations, fusible(profile.platform)
    own = {
        op
        for op, unit in enumerate(profile.units)
        if equations[unit.root].primitive.name not in inside
        or has_call(equations, unit)
    }
    return own | profile.calls.keys()


def _kind(profile: Profile, unit: Unit) -> Hashable:
    """What a unit computes, but for what it reads."""
    equations = [profile.program.equations[k] for k in (*unit.inlined, unit.root)]
    made = [profile.program.avals[v] for v in equations[-1].outputs]
    names = tuple(equation.primitive.name for equation in equations)
    return names, tuple((aval.shape, aval.dtype) for aval in made)


def _ops_beginning(profile: Profile, alone: Set[OpId]) -> set[OpId]:
    """Ops with which a stage begins: large arrays that XLA computes on their own.

    Not random bits: those XLA:GPU computes in what reads them.
    """
    problem, small = profile.problem, small_size(profile.problem)
    large = {
        op
        for op in alone
        if any(problem.values[v].size >= small for v in problem.ops[op].outputs)
    }
    return {op for op in large if not _only_draws(profile, profile.units[op])}


def _only_draws(profile: Profile, unit: Unit) -> bool:
    """Whether XLA would fuse all of a unit but for random words."""
    equations, inside = profile.program.equations, fusible(profile.platform)
    names = {equations[k].primitive.name for k in (*unit.inlined, unit.root)}
    return names - inside <= RANDOM.keys()


def _read_often(problem: Problem) -> set[OpId]:
    """Ops whose results are large and several others read."""
    readers = Counter(v for op in problem.ops for v in {*op.inputs})
    small = small_size(problem)
    often = {v for v, n in readers.items() if n > 1 and problem.values[v].size >= small}
    return {k for k, op in enumerate(problem.ops) if not often.isdisjoint(op.outputs)}


def ops_spreading(profile: Profile, alone: Set[OpId]) -> set[OpId]:
    """Ops for which XLA:GPU writes an array that holds but a literal, or rows by group.

    Nothing but a barrier keeps it from writing that before all else of a part.
    """
    equations = profile.program.equations
    return {
        op
        for op, unit in enumerate(profile.units)
        if equations[unit.root].primitive.name in SEVERAL
        or (unit.literals and (op in alone or not unit.inputs))
    }


def _by_rows(profile: Profile, ops: Set[OpId]) -> set[OpId]:
    """Those that write rows: zeros under them are as large as an embedding."""
    roots = {op: profile.program.equations[profile.units[op].root] for op in ops}
    return {op for op in ops if roots[op].primitive.name.startswith("scatter")}


def _sharing(profile: Profile) -> dict[OpId, set[Hashable]]:
    """Per product, the operands that it may share with another, and how it takes each.

    XLA:GPU makes one product of two that do (`DotMerger`), and then a slice of the
    result for each, or an array of both of their other operands: copies, where these
    pass barriers.
    """
    found: dict[OpId, set[Hashable]] = {}
    for op, unit in enumerate(profile.units):
        product = profile.program.equations[unit.root]
        if product.primitive.name == "dot_general":
            dimensions = product.params["dimension_numbers"]
            found[op] = {
                (profile.alias_of.get(v, v), side, *(each[side] for each in dimensions))
                for side, v in enumerate(product.variables)
            }
    return found
