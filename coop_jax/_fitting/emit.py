"""Turns a plan back into a function that JAX can trace.

XLA follows an order only where data forces it. The plan is cut into parts (`parts`).
What a part reads from outside passes one `lax.optimization_barrier` together with the
*triggers*, arrays that the part before it ended with. So each part starts after the one
before it is done, the schedulers of both CPU and GPU keep the planned order, and a
rematerialization is neither merged with the original nor hoisted. Inside a part XLA is
free to fuse.

A trigger is read on from behind the barrier by whatever reads it later: XLA drops
operands of a barrier whose results nothing reads. Transposes pass it as row-major
arrays: else XLA copies them once for the transpose and once more behind the barrier.
Parts that touch only small values are left untied, but for updates of donated
arguments: XLA would make them as soon as it can, and copy the argument at the start for
whatever reads it later. So are numbers that arrays are divided by (`_divisors`). Some
literals pass the barrier too (`literals`). On GPU arrays are row-major behind a
barrier: where it only sums them up, XLA would write them once more, turned around. What
only products read lies there as their library takes it (`operands`). A dropout mask
that a softmax reads passes a barrier of its own (`tiling`), as do random keys (`keys`),
and in front of one part XLA's clock is put forward (`watershed`). The barriers vanish
before buffer assignment and cost nothing at run time.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import jax
from jax import lax

from .._native.inplace import call
from .._native.program_words import InplaceProgram
from .._planning.types import OpId
from .._program.cost import nbytes
from .._program.profile import Profile
from .._program.shelving import small_size
from .._program.trace import Atom, Literal, Variable, read
from .._program.units import Unit
from .cutting import cut_into_parts, ops_alone, ops_spreading
from .keys import keys_taken
from .layouts import row_major, turned
from .literals import Place, bind, passing
from .operands import Order, with_operands_laid
from .overwritten import overwritten_operands
from .parts import Positions, overwriting
from .shelf import Shelf
from .slices import with_slices_by_index
from .tiling import written_masks
from .watershed import Watershed


def emit(
    profile: Profile, positions: Positions, in_stages: bool = False
) -> Callable[..., list[Any]]:
    """A function of the program's flat arguments that runs the planned schedule.

    Args:
      profile: program and units.
      positions: where each op runs.
      in_stages: whether parts are cut into stages (`staging`).

    Returns:
      A traceable function `(*flat arguments) -> flat outputs`.
    """

    def planned(*arguments: Any) -> list[Any]:
        alone = ops_alone(profile)
        spreading = ops_spreading(profile, alone)
        cut = cut_into_parts(profile, positions, alone, spreading, in_stages)
        laid, orders = with_operands_laid(profile)
        laid = with_slices_by_index(laid)
        return _Emission(laid, orders, alone, spreading, arguments).run(cut)

    return planned


class _Emission:
    """Environment of one trace."""

    def __init__(
        self,
        profile: Profile,
        orders: Mapping[Variable, Order],
        alone: Set[OpId],
        spreading: Set[OpId],
        arguments: Sequence[Any],
    ) -> None:
        self.profile = profile
        self.orders = orders
        self.alone = alone
        self.spreading = spreading
        self.program = profile.program
        self.env: dict[Variable, Any] = dict(
            zip(self.program.arguments, arguments, strict=True)
        )
        self.env |= dict(self.program.constants)
        self.triggers: list[Variable] = []
        # Behind a barrier of its own, each reader would gather them anew.
        is_free = self.program.rules.recompute_collectives
        self.gathered = frozenset() if is_free else profile.gathered
        self.shared = self._compute_shared()
        self.last_read: dict[Variable, int] = {}
        self.overwritten: dict[tuple[int, OpId], int] = {}
        self.divisors = _divisors(profile)
        self.done: set[OpId] = set()
        self.small = small_size(profile.problem)
        self.shelf = Shelf(profile)
        self.updates = overwriting(profile.problem)
        self.turned = turned(self.program)
        self.passed_on = written_masks(profile) | keys_taken(profile)

    def _compute_shared(self) -> dict[Variable, Any]:
        """What is made of gathered arguments, computed once, to be gathered once."""
        shared: dict[Variable, Any] = {}
        for equation in self.program.equations if self.gathered else ():
            if equation.is_barrier or not self.gathered.issuperset(equation.outputs):
                continue
            known = self.env | shared
            operands = [_value(self.profile, known, a) for a in equation.inputs]
            shared.update(zip(equation.outputs, equation.bind(*operands), strict=True))
        return shared

    def run(self, parts: Sequence[Sequence[OpId]]) -> list[Any]:
        self.overwritten = overwritten_operands(self.profile, parts)
        tied = [i for i, part in enumerate(parts) if self._are_large(part)][1:]
        self.watershed = Watershed(self.profile.problem, parts, tied)
        reads = [self._outside_reads(part) for part in parts]
        self.last_read = {v: i for i, read in enumerate(reads) for v in read}
        outputs = (a for a in self.program.outputs if not isinstance(a, Literal))
        for v in outputs:
            self.last_read[self.profile.alias_of.get(v, v)] = len(parts)
        for i, part in enumerate(parts):
            self._run_part(i, part, reads[i])
        return [_value(self.profile, self.env, a) for a in self.program.outputs]

    def _run_part(
        self, index: int, part: Sequence[OpId], reads: Sequence[Variable]
    ) -> None:
        is_large = self._are_large(part)
        taken = [v for v in reads if self.shelf.holds(v)]
        local = {v: self.env[v] for v in reads if v not in taken}
        literals: dict[Place, Any] = {}
        if is_large and self.triggers:
            if self.watershed.is_at(index):
                ended = self.watershed.pass_over([self.env[v] for v in self.triggers])
                self.env.update(zip(self.triggers, ended, strict=True))
            literals = self._tie(part, local)
        local |= self.shared | {v: self.shelf.take(v) for v in taken}
        for op in part:
            overwritten = self.overwritten.get((index, op))
            if op in self.done:
                with jax.named_scope("coop_recompute"):
                    self._compute(op, local, literals, overwritten)
            else:
                self._compute(op, local, literals, overwritten)
                self.done.add(op)
        self.shelf.put(local)
        if literals or not self.triggers or set(reads) - self._untied():
            self.triggers = self._triggers_after(index, part, reads) or self.triggers

    def _outside_reads(self, group: Sequence[OpId]) -> list[Variable]:
        made: set[Variable] = set()
        reads: dict[Variable, None] = {}
        for op in group:
            unit = self.profile.units[op]
            reads |= dict.fromkeys(v for v in unit.inputs if v not in made)
            made |= set(self.program.equations[unit.root].outputs)
        return list(reads)

    def _are_large(self, part: Sequence[OpId]) -> bool:
        return any(self._is_large(op) for op in part)

    def _is_large(self, op: OpId) -> bool:
        problem = self.profile.problem
        spec = problem.ops[op]
        if any(
            problem.values[v].size >= self.small for v in (*spec.inputs, *spec.outputs)
        ):
            return True
        root = self.program.equations[self.profile.units[op].root]
        made = max((nbytes(self.program.avals[v]) for v in root.outputs), default=0)
        return op in self.updates and made >= self.small

    def _tie(
        self, part: Sequence[OpId], local: dict[Variable, Any]
    ) -> dict[Place, Any]:
        """Makes what the part starts from, `local`, available only after the triggers.

        They pass too, and are read on from behind the barrier: XLA takes operands that
        nothing reads out of a barrier, and the order with them.

        Returns:
          The literals that now come from behind the barrier.
        """
        literals = passing(self.profile, part, self.alone, self.spreading)
        through = local | {v: self.env[v] for v in self.triggers}
        untied = self._untied()
        tied = {v: x for v, x in through.items() if v not in untied}
        beside = [self.watershed.touched(), self.shelf.touched()]
        orders = self.orders
        lying = [orders[v].turn(x) if v in orders else x for v, x in tied.items()]
        *behind, clock, shelf = lax.optimization_barrier(
            [*lying, *literals.values(), *beside]
        )
        self.watershed.passed(clock)
        tied = {v: self._in_order(v, x) for v, x in zip(tied, behind, strict=False)}
        self.shelf.passed(shelf, tied)
        self.env.update({v: tied[v] for v in self.triggers if v in tied})
        local.update({v: x for v, x in tied.items() if v in local})
        return dict(zip(literals, behind[len(tied) :], strict=True))

    def _untied(self) -> Set[Variable]:
        """What passes no barrier; what is made of that alone waits for nothing."""
        return self.gathered | self.divisors.difference(self.triggers)

    def _in_order(self, variable: Variable, array: jax.Array) -> jax.Array:
        """What comes from behind a barrier, in the layout it is to have."""
        if (order := self.orders.get(variable)) is not None:
            return order.turn_back(row_major(array))
        is_free = self.profile.platform == "cpu" or array.shape in self.turned
        return array if is_free else row_major(array)

    def _compute(
        self,
        op: OpId,
        local: dict[Variable, Any],
        literals: dict[Place, Any],
        overwritten: int | None,
    ) -> None:
        unit = self.profile.units[op]
        program = self.profile.calls.get(op)
        if program is None:
            outputs = compute_unit(self.profile, unit, local, literals)
        else:
            outputs = [compute_in_place(self.profile, program, local, overwritten)]
            local.update(
                zip(self.program.equations[unit.root].outputs, outputs, strict=True)
            )
        root = self.program.equations[unit.root]
        if op in self.updates or root.primitive.name == "transpose":
            outputs = [row_major(x) for x in outputs]
        if op in self.passed_on:
            outputs = lax.optimization_barrier(outputs)
            local.update(zip(root.outputs, outputs, strict=True))
        self.env.update(zip(root.outputs, outputs, strict=True))

    def _triggers_after(
        self, index: int, part: Sequence[OpId], reads: Sequence[Variable]
    ) -> list[Variable]:
        """What the next part waits for.

        Nothing waits for a small part, but where nothing later reads a trigger that it
        read: what it made of that takes the place.
        """
        ends = self._ends(index, part)
        if self._are_large(part):
            return ends
        gone = {v for v in self.triggers if self.last_read[v] <= index}
        if gone.isdisjoint(reads):
            return self.triggers
        return [*(v for v in self.triggers if v not in gone), *ends]

    def _ends(self, index: int, part: Sequence[OpId]) -> list[Variable]:
        """What is there once a part is done: of each op that ends it, one array.

        It is the largest that something reads later.
        """
        units, found = self.profile.units, list[Variable]()
        inside = {v for op in part for v in units[op].inputs}
        for op in reversed(part):
            outputs = self.program.equations[units[op].root].outputs
            sized = [
                v
                for v in outputs
                if getattr(self.env[v], "size", 0)
                and self.last_read.get(v, -1) > index
                and (v not in self.shelf or self._waits_for(op, v))
            ]
            if sized and (not found or inside.isdisjoint(outputs)):
                found.append(max(sized, key=lambda v: self.env[v].size))
        return found

    def _waits_for(self, op: OpId, v: Variable) -> bool:
        """Whether what follows waits for a value that is about to be on the shelf.

        What XLA makes in one kernel with others may wait until it is written there.
        """
        return op in self.alone and self.shelf.is_about_to_take(v)


def _divisors(profile: Profile) -> set[Variable]:
    """Numbers that arrays are divided by, and numbers that these are computed from.

    As gradients by their norm. XLA makes a product of a quotient if nothing else is
    divided by an array of the same number: behind barriers each would be, in a kernel
    more.
    """
    program, found = profile.program, set[Variable]()
    for equation in reversed(program.equations):
        if not found.isdisjoint(equation.outputs):
            read = equation.variables
        elif equation.primitive.name == "div":
            read = tuple(a for a in equation.inputs[1:] if not isinstance(a, Literal))
        else:
            continue
        found |= {v for v in read if program.avals[v].shape == ()}
    return found


def compute_unit(
    profile: Profile,
    unit: Unit,
    local: dict[Variable, Any],
    literals: dict[Place, Any] | None = None,
) -> list[Any]:
    """Runs a unit's equations; inlined ones are shared with others in `local`.

    Args:
      profile: of the program.
      unit: one of its units.
      local: values of the unit's inputs; receives what is computed.
      literals: values that take the place of literals.

    Returns:
      The values of the root's outputs.
    """
    equations = profile.program.equations
    todo = [k for k in unit.inlined if equations[k].outputs[0] not in local]
    _run_equations(profile, [*todo, unit.root], local, literals or {})
    return [local[v] for v in equations[unit.root].outputs]


def compute_in_place(
    profile: Profile,
    program: InplaceProgram,
    local: dict[Variable, Any],
    overwritten: int | None,
) -> Any:
    """Runs a chain as one in-place call.

    Args:
      profile: of the program.
      program: the chain.
      local: values of its unit's inputs; receives what the call cannot do.
      overwritten: the operand that dies here and gives its bytes, if any.
    """
    equations = profile.program.equations
    todo = [k for k in program.outside if equations[k].outputs[0] not in local]
    _run_equations(profile, todo, local, {})
    operands = [_value(profile, local, each.variable) for each in program.operands]
    return call(program, operands, overwritten)


def _run_equations(
    profile: Profile,
    chosen: Sequence[int],
    local: dict[Variable, Any],
    literals: dict[Place, Any],
) -> None:
    for k in chosen:
        equation = profile.program.equations[k]
        operands = [_value(profile, local, atom) for atom in equation.inputs]
        outputs = bind(equation, k, operands, literals)
        local.update(zip(equation.outputs, outputs, strict=True))


def _value(profile: Profile, env: dict[Variable, Any], atom: Atom) -> Any:
    """The value of an atom, seen through barriers."""
    is_literal = isinstance(atom, Literal)
    return read(env, atom if is_literal else profile.alias_of.get(atom, atom))
