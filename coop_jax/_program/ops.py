"""Turns units into the ops and values of a `Problem`."""

from collections.abc import Mapping

from .._native.program_words import InplaceProgram
from .._planning.types import Op, Value, ValueId
from .cost import DeviceRates, work
from .donating import donation
from .hlo import OwnedBuffer
from .overwriting import Overwriting
from .repeating import is_recomputable
from .shards import communicates
from .trace import Equation, Variable
from .units import Graph, Unit
from .workspace import Owned, workspace

_DENSE_FLOPS_PER_BYTE = 16


class OpsOfUnits:
    """The ops of the units that were added, in their order.

    Attributes:
      ops: one for each unit.
      values: what the program is given, then what the ops compute.
      variables: per value, the program's.
    """

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
        rates = self.rates
        cost = rates.seconds(operations, rates.traffic * touched)
        cost += rates.traffic * rates.launch
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
