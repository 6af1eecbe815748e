"""Grounds the planning problem in what XLA made of the unplanned step.

The unplanned program is compiled once with one name scope per equation; the buffer
assignment then says which equations own bytes, and how many beside their results. The
equations are grouped into units accordingly (`units`), and each unit becomes one op of
the `Problem`.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp

from .._native.chains import choose_chains
from .._native.program_words import InplaceProgram
from .._planning.order import early_order, in_order
from .._planning.types import OpId, Problem, ValueId
from .cost import RATES, DeviceRates
from .gathering import gathered, held, moved_argument
from .hlo import OwnedBuffer
from .misnamed import with_misnamed
from .nameless import named
from .ops import OpsOfUnits
from .overwriting import Overwriting
from .pooling import buffers_by_windows, by_windows, pool_gradients
from .roots import choose_roots
from .scopes import equation_of, of_place, scope
from .shards import localized
from .shelving import shelved, without
from .sparing import joining, with_spared
from .standing import bytes_of, standing_and_spread
from .trace import Program, Variable
from .units import Graph, Unit
from .workspace import (
    Owned,
    Place,
    with_shared_by_reader,
    with_turned_operands,
    without_starts,
)


@dataclass(frozen=True, slots=True)
class Profile:
    """A program as the planner sees it.

    Attributes:
      problem: ops and values.
      units: per op, its equations.
      variable_of: per value of the problem, the program's variable.
      alias_of: barrier outputs and the variable they stand for.
      standing: bytes of arrays that XLA makes from constants alone and may hold all the
        time, whatever the plan.
      relieved: bytes of those that it makes no more: gradients of pools are computed
        window by window.
      platform: "cpu", "gpu" or "tpu", whose XLA is meant.
      calls: the ops that are in-place calls, and what they compute.
      gathered: split arguments that devices send each other parts of, and what is
        computed of them alone.
      shelved: small values that lie in one array, which is among what stands.
    """

    program: Program
    problem: Problem
    units: tuple[Unit, ...]
    variable_of: tuple[Variable, ...]
    alias_of: dict[Variable, Variable] = field(repr=False)
    standing: int = 0
    relieved: int = 0
    platform: str = "cpu"
    calls: dict[OpId, InplaceProgram] = field(default_factory=dict, repr=False)
    gathered: frozenset[Variable] = frozenset()
    shelved: tuple[Variable, ...] = ()


def profile(
    program: Program,
    buffers: Sequence[OwnedBuffer],
    fixed: int,
    platform: str,
    rates: DeviceRates | None = None,
    inplace: bool = False,
) -> Profile:
    """Builds the planning problem of a program.

    Args:
      program: the flat step.
      buffers: what XLA assigned to the unplanned step, emitted under `scope`.
      fixed: bytes of arguments and outputs less aliases.
      platform: "cpu" or "gpu"; decides alignment and, by default, `rates`.
      rates: of the device.
      inplace: whether chains that XLA does not compute in place become calls that do.
    """
    rates = rates or RATES.get(platform, RATES["gpu"])
    program, owned, pools = _by_windows(program, buffers)
    graph = Graph(program)
    owned = with_misnamed(graph, named(graph, owned))
    roots = choose_roots(graph, owned, platform)
    programs: dict[int, InplaceProgram] = {}
    if inplace:
        roots, programs = choose_chains(graph, roots, owned, platform)
    units = tuple(graph.unit(k, roots) for k in sorted(roots))
    made_up = [b for b in buffers if b.origin == "constants" and b.is_temporary]
    left = [b for b in made_up if equation_of(b.op_name) not in pools]
    standing, spread = standing_and_spread(graph, units, left, _written(owned))
    owned = with_shared_by_reader(graph, without_starts(graph, units, owned))
    owned = with_turned_operands(graph, owned)
    sent = gathered(program, buffers, owned)
    if not program.rules.recompute_collectives:
        standing += bytes_of(held(program, buffers, owned, sent))
    overwriting = Overwriting(graph, units, owned, programs, platform)
    found = OpsOfUnits(graph, owned, spread, rates, programs, overwriting)
    for unit in units:
        found.add(unit)
    problem = Problem(
        tuple(found.ops),
        tuple(found.values),
        fixed=fixed,
        alignment=64 if platform == "cpu" else 256,
        # XLA's partitioner takes no call of unknown sharding that must stay.
        has_watershed=platform == "gpu" and program.partitions == 1,
        # What is inside of a part XLA:GPU orders otherwise than the plan.
        has_durations=platform != "gpu",
    )
    order = early_order(problem, scalars_too=platform != "cpu")
    problem, units = in_order(problem, order), tuple(units[op] for op in order)
    if rates.joins:
        problem = with_spared(problem, joining(graph, units, programs), rates)
    on_shelf = _on_shelf(program, problem, found.variables, platform)
    standing += sum(problem.values[v].size for v in on_shelf)
    problem = without(problem, on_shelf)
    calls = {
        op: programs[unit.root]
        for op, unit in enumerate(units)
        if unit.root in programs
    }
    return Profile(
        program,
        problem,
        units,
        tuple(found.variables),
        graph.alias_of,
        standing,
        bytes_of(made_up) - bytes_of(left),
        platform,
        calls,
        sent,
        tuple(found.variables[v] for v in on_shelf),
    )


def without_watershed(profile: Profile) -> Profile:
    """The profile for plans whose program has no watershed."""
    return replace(profile, problem=replace(profile.problem, has_watershed=False))


def _written(owned: Owned) -> dict[Place, set[int]]:
    """The places that results of equations lie in, and whose."""
    found: dict[Place, set[int]] = defaultdict(set)
    for k, buffers in owned.items():
        for buffer in buffers:
            if buffer.origin == "equation":
                found[buffer.place].add(k)
    return found


def _on_shelf(
    program: Program, problem: Problem, variables: Sequence[Variable], platform: str
) -> tuple[ValueId, ...]:
    """Shelved values: not where small ones do no harm, nor where XLA splits arrays.

    Most programs XLA:CPU packs by size, small ones last, and each write and read of the
    shelf is a kernel more to compile. Parts of a split array would be gathered.
    """
    if program.partitions > 1 or platform == "cpu":
        return ()
    found = [(v, program.avals[variables[v]].dtype) for v in shelved(problem)]
    return tuple(v for v, t in found if not jnp.issubdtype(t, jax.dtypes.extended))


def named_buffers(buffers: Sequence[OwnedBuffer]) -> tuple[OwnedBuffer, ...]:
    """The buffers that `profile` looks at, named by equation or argument alone.

    Those made of constants are named by their place.
    """
    found = []
    for buffer in buffers:
        equation, is_made_up = equation_of(buffer.op_name), buffer.origin == "constants"
        if equation is not None or is_made_up:
            # Whether constants are made inside of a loop matters.
            nested = of_place(buffer.op_name)
            name = nested if equation is None or is_made_up else scope(equation)
            found.append(
                replace(
                    buffer,
                    op_name=name,
                    read_inside=_scopes(buffer.read_inside),
                    read_elsewhere=_scopes(buffer.read_elsewhere),
                )
            )
        elif moved_argument(buffer) >= 0:
            found.append(buffer)
    return tuple(found)


def _scopes(names: Iterable[str]) -> tuple[str, ...]:
    equations = map(equation_of, names)
    return tuple(scope(k) for k in equations if k is not None)


def _by_equation(buffers: Sequence[OwnedBuffer]) -> dict[int, list[OwnedBuffer]]:
    owned: dict[int, list[OwnedBuffer]] = defaultdict(list)
    for buffer in buffers:
        equation = equation_of(buffer.op_name)
        if equation is not None and buffer.origin != "constants":
            owned[equation].append(buffer)
    return owned


def _by_windows(
    program: Program, buffers: Sequence[OwnedBuffer]
) -> tuple[Program, dict[int, list[OwnedBuffer]], frozenset[int]]:
    """The program, gradients of pools window by window, what each owns, and those."""
    owned = _by_equation(buffers)
    program = localized(program, owned)
    pools = pool_gradients(program)
    owned |= {k: buffers_by_windows(program, k, owned.get(k, ())) for k in pools}
    return by_windows(program, pools), owned, pools
