"""Grounds the planning problem in what XLA made of the unplanned step.

The unplanned program is compiled once with one name scope per equation; the buffer
assignment then says which equations own bytes, and how many beside their results. The
equations are grouped into units accordingly (`units`), and each unit becomes one op of
the `Problem`.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import jax
import jax.extend.core as jexc
import jax.numpy as jnp

from .._native.chains import choose_chains
from .._native.program_words import InplaceProgram
from .._planning.order import early_order, in_order
from .._planning.types import Op, OpId, Problem, Value, ValueId
from .cost import RATES, DeviceRates, work
from .fusing import FUSIBLE
from .gathering import gathered, moved_argument
from .hlo import OwnedBuffer
from .nameless import named
from .overwriting import Overwriting
from .pooling import buffers_by_windows, by_windows, pool_gradients
from .roots import choose_roots
from .shards import communicates, localized
from .shelving import shelved, without
from .trace import Equation, Literal, Program, Variable
from .units import Graph, Unit, has_call
from .workspace import Owned, with_turned_operands, without_starts, workspace

_SCOPE = re.compile(r"coop_eqn_(\d+)")

_COLLECTIVES = {
    "all_gather", "all_gather_done", "all_gather_invariant", "all_gather_reduced",
    "all_gather_start", "all_reduce", "all_to_all", "pbroadcast", "pbroadcast_dynamic",
    "pmax", "pmin", "ppermute", "precv", "psend", "psum", "psum_done", "psum_invariant",
    "psum_start", "psum2", "psum_scatter", "ragged_all_to_all", "reduce_scatter",
    "unreduced_pmax", "unreduced_pmin", "unreduced_psum", "unreduced_reduce_scatter",
}  # fmt: skip
_STATEFUL = {"rng_uniform", "rng_bit_generator_stateful", "infeed", "outfeed"}


_DENSE_FLOPS_PER_BYTE = 16


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


def scope(index: int) -> str:
    """Name scope of equation `index` in the unplanned program."""
    return f"coop_eqn_{index}"


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
    owned = _by_equation(buffers)
    program = localized(program, owned)
    pools = pool_gradients(program)
    owned |= {k: buffers_by_windows(program, k, owned.get(k, ())) for k in pools}
    program = by_windows(program, pools)
    graph = Graph(program)
    owned = named(graph, owned)
    roots = choose_roots(graph, owned, platform)
    programs: dict[int, InplaceProgram] = {}
    if inplace:
        roots, programs = choose_chains(graph, roots, owned, platform)
    units = tuple(graph.unit(k, roots) for k in sorted(roots))
    made_up = [b for b in buffers if b.origin == "constants" and b.is_temporary]
    left = [b for b in made_up if _equation(b) not in pools]
    standing, spread = _constants(graph, units, left)
    owned = without_starts(graph, units, owned)
    owned = with_turned_operands(graph, owned, _equation_of)
    overwriting = Overwriting(graph, units, owned, programs, platform)
    builder = _ProblemBuilder(graph, owned, spread, rates, programs, overwriting)
    for unit in units:
        builder.add(unit)
    problem = Problem(
        tuple(builder.ops),
        tuple(builder.values),
        fixed=fixed,
        alignment=64 if platform == "cpu" else 256,
        # XLA's partitioner takes no call of unknown sharding that must stay.
        has_watershed=platform == "gpu" and program.partitions == 1,
    )
    order = early_order(problem, scalars_too=platform != "cpu")
    problem, units = in_order(problem, order), tuple(units[op] for op in order)
    on_shelf = _on_shelf(program, problem, builder.variables, platform)
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
        tuple(builder.variables),
        graph.alias_of,
        standing,
        _bytes(made_up) - _bytes(left),
        platform,
        calls,
        gathered(program, buffers, owned),
        tuple(builder.variables[v] for v in on_shelf),
    )


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
    """The buffers that `profile` looks at, named by equation or argument alone."""
    found = []
    for buffer in buffers:
        equation = _equation(buffer)
        if equation is not None or buffer.origin == "constants":
            name = "" if equation is None else scope(equation)
            inside = (_equation_of(reader) for reader in buffer.read_inside)
            read_inside = tuple(scope(k) for k in inside if k is not None)
            found.append(replace(buffer, op_name=name, read_inside=read_inside))
        elif moved_argument(buffer) >= 0:
            found.append(buffer)
    return tuple(found)


def _equation(buffer: OwnedBuffer) -> int | None:
    return _equation_of(buffer.op_name)


def _equation_of(op_name: str) -> int | None:
    scopes = _SCOPE.findall(op_name)
    return int(scopes[-1]) if scopes else None


def _by_equation(buffers: Sequence[OwnedBuffer]) -> dict[int, list[OwnedBuffer]]:
    owned: dict[int, list[OwnedBuffer]] = defaultdict(list)
    for buffer in buffers:
        equation = _equation(buffer)
        if equation is not None and buffer.origin != "constants":
            owned[equation].append(buffer)
    return owned


def _constants(
    graph: Graph, units: Sequence[Unit], buffers: Sequence[OwnedBuffer]
) -> tuple[int, dict[int, list[OwnedBuffer]]]:
    """What becomes of `buffers`, arrays that XLA made of constants alone.

    Returns:
      Bytes that stand all the time, and per root the arrays that it reads and that a
      literal of it is spread into: tied, those come and go with it. Those that literals
      of others are spread into, inside of a kernel of many, go with the kernel.
    """
    unit_of: dict[int | None, Unit] = {
        k: unit for unit in units for k in (*unit.inlined, unit.root)
    }
    readers: dict[tuple[int, int, int], list[OwnedBuffer]] = defaultdict(list)
    for buffer in buffers:
        readers[buffer.allocation, buffer.offset, buffer.size].append(buffer)
    standing = 0
    spread: dict[int, list[OwnedBuffer]] = defaultdict(list)
    for (_, _, size), group in readers.items():
        reading = {unit_of[k] for b in group if (k := _equation(b)) in unit_of}
        tied = [unit.root for unit in reading if _spreads(graph, unit, size)]
        for root in tied:
            spread[root].append(replace(group[0], origin="reader"))
        inside = {_equation_of(name) for b in group for name in b.read_inside}
        is_cut = inside and all(
            k in unit_of and _spreads(graph, unit_of[k], size) for k in inside
        )
        standing += 0 if tied or is_cut else size
    return standing, spread


def _bytes(buffers: Sequence[OwnedBuffer]) -> int:
    return sum(
        size for _, _, size in {(b.allocation, b.offset, b.size) for b in buffers}
    )


def _spreads(graph: Graph, unit: Unit, size: int) -> bool:
    """Whether a literal of the unit becomes an array of this many bytes."""
    results = (graph.equations[k].outputs[0] for k, _ in unit.literals)
    return any(graph.bytes(v) == size for v in results)


class _ProblemBuilder:
    """Turns units into ops and values."""

    def __init__(
        self,
        graph: Graph,
        owned: Owned,
        spread: Mapping[int, list[OwnedBuffer]],
        rates: DeviceRates,
        programs: Mapping[int, InplaceProgram],
        overwriting: Overwriting,
    ) -> None:
        self.graph = graph
        self.owned = owned
        self.spread = spread
        self.rates = rates
        self.programs = programs
        self.overwriting = overwriting
        self.ops: list[Op] = []
        self.values: list[Value] = []
        self.variables: list[Variable] = []
        self._value_of: dict[Variable, ValueId] = {}
        program = graph.program
        # What is computed of the results outside of a map finds them in the pool.
        self._is_read_after = program.mapped is not None and bool(program.mapped.after)
        self._overwrites = {} if self._is_read_after else donation(program, graph)
        for v in (*program.arguments, *(v for v, _ in program.constants)):
            self._new(v, Value(f"argument {v}", 0, is_argument=True))

    def add(self, unit: Unit) -> None:
        graph, equation = self.graph, self.graph.equations[unit.root]
        inputs = tuple(self._value_of[v] for v in unit.inputs)
        outputs = tuple(self._output(v, equation) for v in equation.outputs)
        operations = sum(self._work(k) for k in (*unit.inlined, unit.root))
        touched = graph.touched(unit)
        cost = self.rates.seconds(operations, touched) + self.rates.launch
        is_fused = equation.primitive.name in FUSIBLE
        if is_fused and not has_call(graph.equations, unit):
            cost *= self.rates.fused
        pieces = self._workspace(unit)
        self.ops.append(
            Op(
                equation.primitive.name,
                inputs,
                outputs,
                cost,
                workspace=sum(pieces),
                is_recomputable=self._is_recomputable(unit),
                is_expensive=operations > _DENSE_FLOPS_PER_BYTE * touched,
                in_place=self._in_place(unit),
                pieces=pieces if len(pieces) > 1 else (),
            )
        )

    def _new(self, variable: Variable, value: Value) -> ValueId:
        self._value_of[variable] = len(self.values)
        self.values.append(value)
        self.variables.append(variable)
        return len(self.values) - 1

    def _output(self, variable: Variable, equation: Equation) -> ValueId:
        is_output = variable in self.graph.outputs
        overwritten = self._overwrites.get(variable)
        return self._new(
            variable,
            Value(
                f"{equation.primitive.name} at {equation.location}",
                0
                if is_output and not self._is_read_after
                else self.graph.bytes(variable),
                is_output=is_output,
                overwrites=None if overwritten is None else self._value_of[overwritten],
            ),
        )

    def _work(self, k: int) -> float:
        program, equation = self.graph.program, self.graph.equations[k]
        return work(equation, program.avals, self.rates) / program.partitions

    def _is_recomputable(self, unit: Unit) -> bool:
        """Not if it has effects, nor, unless allowed, if devices communicate in it."""
        program = self.graph.program
        equations = (*unit.inlined, unit.root)
        if not program.rules.recompute_collectives and any(
            communicates(self.owned.get(k, ())) for k in equations
        ):
            return False
        return all(
            is_recomputable(program.equations[k], program.rules.recompute_collectives)
            for k in equations
        )

    def _workspace(self, unit: Unit) -> tuple[int, ...]:
        if unit.root in self.programs:
            return ()
        return workspace(self.graph, unit, self.owned, self.spread)

    def _in_place(self, unit: Unit) -> tuple[tuple[ValueId, ValueId], ...]:
        pairs = self.overwriting.pairs(unit)
        return tuple((self._value_of[a], self._value_of[b]) for a, b in pairs)


def is_recomputable(equation: Equation, repeats_collectives: bool = False) -> bool:
    """Whether the equation may run more than once."""
    name = equation.primitive.name
    if equation.effects or equation.is_pinned or name in _STATEFUL:
        return False
    return repeats_collectives or not (_COLLECTIVES & {name, *names_inside(equation)})


def names_inside(equation: Equation) -> set[str]:
    """Primitives in the programs that the equation holds."""
    names: set[str] = set()
    todo = list(jexc.jaxprs_in_params(equation.params))
    while todo:
        body = todo.pop()
        for eqn in getattr(body, "jaxpr", body).eqns:
            names.add(eqn.primitive.name)
            todo += jexc.jaxprs_in_params(eqn.params)
    return names


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
