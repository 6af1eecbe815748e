"""Grounds the planning problem in what XLA made of the unplanned step.

A jaxpr value is not a buffer: XLA fuses elementwise chains, broadcasts and conversions
into whatever reads them. The unplanned program is compiled once with one name scope per
equation, and the buffer assignment then says which equations own bytes. Those become
the ops of the `Problem`; equations that own none are computed inside every op that
reads them (`Unit.inlined`), as XLA does.

Three corrections to what the assignment says:
  * a reshape that owns bytes only renames those of its operand: ownership moves there;
  * an equation that XLA cannot fuse into several readers owns its bytes in any case;
  * a value narrower than what it is computed from (a mask from random bits, a bfloat16
    copy) with readers in several ops is worth owning: keeping it can be cheaper than
    keeping its source.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ._cost import RATES, DeviceRates, flops, nbytes
from ._hlo import OwnedBuffer
from ._trace import Equation, Literal, Program, Variable
from ._types import Op, Problem, Value, ValueId

_SCOPE = re.compile(r"coop_eqn_(\d+)")

_VIEWS = {"reshape", "squeeze", "expand_dims", "stop_gradient", "copy", "copy_p",
          "random_wrap", "random_unwrap"}  # fmt: skip
_FUSIBLE = _VIEWS | {
    "abs", "add", "add_any", "and", "atan2", "bitcast_convert_type", "broadcast_in_dim",
    "cbrt", "ceil", "clamp", "concatenate", "convert_element_type", "cos", "div",
    "dynamic_slice", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor",
    "full", "ge", "gt", "integer_pow", "iota", "is_finite", "le", "log", "log1p",
    "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter", "not", "or", "pad",
    "pow", "reduce_precision", "rem", "rev", "round", "rsqrt", "select_n", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "slice", "split",
    "sqrt", "square", "sub", "tan", "tanh", "transpose", "xor",
}  # fmt: skip
_COLLECTIVES = {
    "all_gather", "all_reduce", "all_to_all", "pmax", "pmin", "ppermute", "psum",
    "psum_invariant", "psum2", "psum_scatter", "reduce_scatter", "ragged_all_to_all",
}  # fmt: skip
_STATEFUL = {"rng_uniform", "rng_bit_generator_stateful", "infeed", "outfeed"}
_DENSE_FLOPS_PER_BYTE = 16


@dataclass(frozen=True, slots=True)
class Unit:
    """The equations behind one op.

    Attributes:
      root: the equation that owns bytes.
      inlined: equations computed inside, in program order.
      inputs: variables it reads that other units own, and arguments.
      literals: (equation, input) places where XLA would spread a literal over an array
        of its own.
    """

    root: int
    inlined: tuple[int, ...]
    inputs: tuple[Variable, ...]
    literals: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """A program as the planner sees it.

    Attributes:
      problem: ops and values.
      units: per op, its equations.
      variable_of: per value of the problem, the program's variable.
      alias_of: barrier outputs and the variable they stand for.
    """

    program: Program
    problem: Problem
    units: tuple[Unit, ...]
    variable_of: tuple[Variable, ...]
    alias_of: dict[Variable, Variable] = field(repr=False)


def scope(index: int) -> str:
    """Name scope of equation `index` in the unplanned program."""
    return f"coop_eqn_{index}"


def profile(
    program: Program,
    buffers: Sequence[OwnedBuffer],
    fixed: int,
    platform: str,
    rates: DeviceRates | None = None,
) -> Profile:
    """Builds the planning problem of a program.

    Args:
      program: the flat step.
      buffers: what XLA assigned to the unplanned step, emitted under `scope`.
      fixed: bytes of arguments and outputs less aliases.
      platform: "cpu" or "gpu"; decides alignment and, by default, `rates`.
      rates: of the device.
    """
    rates = rates or RATES.get(platform, RATES["gpu"])
    graph = _Graph(program)
    owned = _by_equation(buffers)
    roots = _choose_roots(graph, owned)
    units = tuple(graph.unit(k, roots) for k in sorted(roots))
    builder = _ProblemBuilder(graph, owned, rates)
    for unit in units:
        builder.add(unit)
    problem = Problem(
        tuple(builder.ops),
        tuple(builder.values),
        fixed=fixed,
        alignment=64 if platform == "cpu" else 256,
    )
    return Profile(program, problem, units, tuple(builder.variables), graph.alias_of)


def _by_equation(buffers: Sequence[OwnedBuffer]) -> dict[int, list[OwnedBuffer]]:
    owned: dict[int, list[OwnedBuffer]] = defaultdict(list)
    for buffer in buffers:
        scopes = _SCOPE.findall(buffer.op_name)
        if scopes:
            owned[int(scopes[-1])].append(buffer)
    return owned


class _Graph:
    """Producers and consumers, with barriers seen through."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.equations = program.equations
        self.alias_of: dict[Variable, Variable] = {}
        self.producer: dict[Variable, int] = {}
        self.consumers: dict[Variable, list[int]] = defaultdict(list)
        for k, equation in enumerate(self.equations):
            if equation.is_barrier:
                for source, target in zip(
                    equation.inputs, equation.outputs, strict=True
                ):
                    if not isinstance(source, Literal):
                        self.alias_of[target] = self.resolve(source)
                continue
            for v in equation.outputs:
                self.producer[v] = k
            for v in self.reads(k):
                self.consumers[v].append(k)
        self.outputs = {
            self.resolve(a) for a in program.outputs if not isinstance(a, Literal)
        }

    def resolve(self, variable: Variable) -> Variable:
        return self.alias_of.get(variable, variable)

    def reads(self, k: int) -> list[Variable]:
        return list(dict.fromkeys(map(self.resolve, self.equations[k].variables)))

    def bytes(self, variable: Variable) -> int:
        return nbytes(self.program.avals[variable])

    def is_read_by_caller(self, k: int) -> bool:
        return any(v in self.outputs for v in self.equations[k].outputs)

    def unit(self, root: int, roots: set[int]) -> Unit:
        """The unit of a root: walk inputs back to other roots and arguments."""
        inlined: set[int] = set()
        inputs: list[Variable] = []
        todo = self.reads(root)[::-1]
        seen = set(todo)
        while todo:
            v = todo.pop()
            k = self.producer.get(v)
            if k is None or k in roots:
                inputs.append(v)
                continue
            inlined.add(k)
            for source in self.reads(k):
                if source not in seen:
                    seen.add(source)
                    todo.append(source)
        order = tuple(sorted(inlined))
        literals = tuple(
            place
            for k in order
            for place in _spread_literals(k, self.equations[k], self.equations[root])
        )
        return Unit(root, order, tuple(sorted(inputs)), literals)


def _choose_roots(graph: _Graph, owned: dict[int, list[OwnedBuffer]]) -> set[int]:
    roots = set()
    for k, equation in enumerate(graph.equations):
        if equation.is_barrier:
            continue
        sizes = {graph.bytes(v) for v in equation.outputs}
        is_owner = any(buffer.size in sizes for buffer in owned.get(k, ()))
        if (
            is_owner
            or equation.primitive.name not in _FUSIBLE
            or equation.effects
            or graph.is_read_by_caller(k)
        ):
            roots.add(k)
    _move_from_views(graph, roots)
    _add_narrow(graph, roots)
    return roots


def _move_from_views(graph: _Graph, roots: set[int]) -> None:
    for k in sorted(roots, reverse=True):
        equation = graph.equations[k]
        if equation.primitive.name not in _VIEWS or graph.is_read_by_caller(k):
            continue
        sources = graph.reads(k)
        if sources and sources[0] in graph.producer:
            roots.discard(k)
            roots.add(graph.producer[sources[0]])


def _add_narrow(graph: _Graph, roots: set[int]) -> None:
    """Makes roots of fused values that are smaller than all they are computed from."""
    readers = _reading_units(graph, roots)
    for k, equation in enumerate(graph.equations):
        if k in roots or equation.is_barrier or len(equation.outputs) != 1:
            continue
        if equation.primitive.name in _VIEWS or len(readers.get(k, ())) < 2:
            continue
        unit = graph.unit(k, roots)
        sources = [graph.bytes(v) for v in unit.inputs if v in graph.producer]
        size = graph.bytes(equation.outputs[0])
        if sources and size < max(sources) and size <= sum(sources) / 2:
            roots.add(k)


def _reading_units(graph: _Graph, roots: set[int]) -> dict[int, set[int]]:
    """Per fused equation, the roots it is computed inside of."""
    readers: dict[int, set[int]] = defaultdict(set)
    for k in range(len(graph.equations) - 1, -1, -1):
        if k in roots or graph.equations[k].is_barrier:
            continue
        for v in graph.equations[k].outputs:
            for consumer in graph.consumers[v]:
                readers[k] |= {consumer} if consumer in roots else readers[consumer]
    return readers


class _ProblemBuilder:
    """Turns units into ops and values."""

    def __init__(
        self, graph: _Graph, owned: dict[int, list[OwnedBuffer]], rates: DeviceRates
    ) -> None:
        self.graph = graph
        self.owned = owned
        self.rates = rates
        self.ops: list[Op] = []
        self.values: list[Value] = []
        self.variables: list[Variable] = []
        self._value_of: dict[Variable, ValueId] = {}
        program = graph.program
        self._overwrites = _donation(program, graph)
        for v in (*program.arguments, *(v for v, _ in program.constants)):
            self._new(v, Value(f"argument {v}", 0, is_argument=True))

    def add(self, unit: Unit) -> None:
        graph, equation = self.graph, self.graph.equations[unit.root]
        inputs = tuple(self._value_of[v] for v in unit.inputs)
        outputs = tuple(self._output(v, equation) for v in equation.outputs)
        operations = sum(self._flops(k) for k in (*unit.inlined, unit.root))
        touched = sum(map(graph.bytes, (*unit.inputs, *equation.outputs)))
        rates = self.rates
        cost = max(operations / rates.flops, touched / rates.bytes) + rates.launch
        self.ops.append(
            Op(
                equation.primitive.name,
                inputs,
                outputs,
                cost,
                workspace=self._workspace(unit, equation),
                is_recomputable=_is_recomputable(equation),
                is_expensive=operations > _DENSE_FLOPS_PER_BYTE * touched,
                in_place=self._in_place(unit, equation),
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
                0 if is_output else self.graph.bytes(variable),
                is_output=is_output,
                overwrites=None if overwritten is None else self._value_of[overwritten],
            ),
        )

    def _flops(self, k: int) -> float:
        return flops(self.graph.equations[k], self.graph.program.avals)

    def _workspace(self, unit: Unit, equation: Equation) -> int:
        """Bytes of the op's buffers other than its outputs, overlaps counted once."""
        spans = []
        results = [self.graph.bytes(v) for v in equation.outputs]
        for buffer in self.owned.get(unit.root, ()):
            if buffer.size in results:
                results.remove(buffer.size)
            elif buffer.is_temporary:
                spans.append((buffer.offset, buffer.offset + buffer.size))
        covered, reach = 0, -1
        for start, end in sorted(spans):
            covered += max(0, end - max(start, reach))
            reach = max(reach, end)
        return covered

    def _in_place(self, unit: Unit, equation: Equation):
        """Elementwise results may take the bytes of an input of the same type."""
        graph = self.graph
        if any(
            graph.equations[k].primitive.name not in _FUSIBLE
            or graph.equations[k].primitive.name in ("transpose", "concatenate", "rev")
            for k in (*unit.inlined, unit.root)
        ):
            return ()
        avals = graph.program.avals
        return tuple(
            (self._value_of[source], self._value_of[target])
            for source in unit.inputs
            for target in equation.outputs
            if source in graph.producer
            and target not in graph.outputs
            and nbytes(avals[source]) == nbytes(avals[target])
            and avals[source].dtype == avals[target].dtype
        )


def _spread_literals(
    k: int, equation: Equation, root: Equation
) -> list[tuple[int, int]]:
    """Literals of an inlined equation that become arrays in XLA's program.

    A broadcast literal may; a scalar operand does where the chain ends in a library
    call (XLA:CPU hands its YNN fusions whole arrays).
    """
    is_broadcast = equation.primitive.name == "broadcast_in_dim"
    if not is_broadcast and root.primitive.name in _FUSIBLE:
        return []
    return [
        (k, place)
        for place, atom in enumerate(equation.inputs)
        if isinstance(atom, Literal) and atom.aval.shape == ()
    ]


def _is_recomputable(equation: Equation) -> bool:
    name = equation.primitive.name
    return not equation.effects and name not in _STATEFUL and name not in _COLLECTIVES


def _donation(program: Program, graph: _Graph) -> dict[Variable, Variable]:
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
