"""Carries out the rules on the equations of a program.

Where a value must be kept, the equation that computes it is marked as one that runs
once. These are the values of `save_names`, and those that the step's own
`jax.checkpoint` keeps by name: what its barrier takes in under a `checkpoint_name`.

Where a value must not be kept (`recompute_names`), the backward pass is given a copy,
computed again from the same operands behind a barrier, which is what `jax.checkpoint`
would have made of it. What the forward pass computes from it for the backward pass
alone (the cosine that is the derivative of a sine) moves there too. All this becomes
part of the program, before any plan.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace

from jax import lax

from .cost import nbytes
from .fusing import VIEWS
from .repeating import is_recomputable
from .rules import name_of
from .trace import Atom, Equation, Literal, Program, Variable

_RENAMES = VIEWS | {"reduce_precision"}


def pinned(program: Program) -> Program:
    """The program with the user's rules in it."""
    if program.rules.recompute_names:
        program = _Repeater(program).run()
    return mark_kept(program)


def mark_kept(program: Program) -> Program:
    """The program with a mark on what is kept because of its name."""
    kept = _kept(program)
    if not kept:
        return program
    equations = [
        replace(equation, is_pinned=True) if k in kept else equation
        for k, equation in enumerate(program.equations)
    ]
    return replace(program, equations=tuple(equations))


def _kept(program: Program) -> set[int]:
    rules = program.rules
    producer = _producers(program)
    wanted = [
        v
        for equation in program.equations
        if name_of(equation) in rules.save_names
        for v in equation.variables
    ]
    if not rules.override_checkpoint:
        wanted += [
            v
            for equation in program.equations
            if equation.is_barrier
            for v in equation.variables
            if _is_named(program, producer, v)
        ]
    sources = (_source(program, producer, v) for v in wanted)
    return {producer[v] for v in sources if v in producer}


def dropped(
    program: Program, backward: Collection[int], late: set[int]
) -> dict[Variable, Equation]:
    """Values that must not be kept for the backward pass, with what computes them.

    A value that is named, what it was before it had the name, what only renames it, and
    what is computed from it and read by the backward pass alone.

    Args:
      backward: equations of the backward pass.
      late: with those that only it reads (`late_equations`).
    """
    if not program.rules.recompute_names:
        return {}
    producer = _producers(program)
    found: dict[Variable, Equation] = {}
    for k, equation in enumerate(program.equations):
        if k in late or name_of(equation) not in program.rules.recompute_names:
            continue
        for v in equation.variables:
            source = _source(program, producer, v)
            if source in producer:
                found[source] = program.equations[producer[source]]
    for k, equation in enumerate(program.equations):
        is_derived = k in late or equation.primitive.name in _RENAMES
        reads = any(v in found for v in equation.variables)
        if is_derived and reads and k not in backward:
            found.update(dict.fromkeys(equation.outputs, equation))
    for equation in found.values():
        if not is_recomputable(equation, program.rules.recompute_collectives):
            raise ValueError(
                f"`recompute_names`: `{equation.primitive.name}` at "
                f"{equation.location} cannot be computed again: it has effects, "
                "communicates, or is in `never_recompute`."
            )
    return found


def is_backward(equation: Equation) -> bool:
    """Whether reverse-mode differentiation made the equation."""
    return "transpose(" in str(equation.scope)


def late_equations(
    program: Program, backward: Collection[int], outputs: Iterable[Atom]
) -> set[int]:
    """The equations of the backward pass, and those that nothing else reads.

    Args:
      outputs: what the program is for.
    """
    consumers: dict[Variable, set[int]] = defaultdict(set)
    for k, equation in enumerate(program.equations):
        for v in equation.variables:
            consumers[v].add(k)
    wanted = set(_variables(outputs))
    late = set(backward)
    for k in range(len(program.equations) - 1, -1, -1):
        equation = program.equations[k]
        readers = {reader for v in equation.outputs for reader in consumers[v]}
        is_read = equation.effects or wanted.intersection(equation.outputs)
        if readers and readers <= late and not is_read:
            late.add(k)
    return late


def _producers(program: Program) -> dict[Variable, int]:
    return {v: k for k, e in enumerate(program.equations) for v in e.outputs}


def _variables(atoms: Iterable[Atom]) -> list[Variable]:
    return [a for a in atoms if not isinstance(a, Literal)]


def _source(
    program: Program, producer: dict[Variable, int], variable: Variable
) -> Variable:
    """The variable that this one renames, by way of barriers too."""
    for equation in _renaming(program, producer, variable):
        variable = _renamed(equation, variable)
    return variable


def _is_named(
    program: Program, producer: dict[Variable, int], variable: Variable
) -> bool:
    return any(
        name_of(equation) is not None
        for equation in _renaming(program, producer, variable)
    )


def _renaming(
    program: Program, producer: dict[Variable, int], variable: Variable
) -> Iterable[Equation]:
    """Equations that rename, from the one that makes the variable backwards."""
    while variable in producer:
        equation = program.equations[producer[variable]]
        is_alias = equation.is_barrier or equation.primitive.name in _RENAMES
        if not is_alias or not equation.variables:
            return
        yield equation
        variable = _renamed(equation, variable)


def _renamed(equation: Equation, variable: Variable) -> Variable:
    place = equation.outputs.index(variable) if equation.is_barrier else 0
    return equation.variables[place]


class _Repeater:
    """Gives the backward pass copies of what must not be kept for it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        backward = {k for k, e in enumerate(program.equations) if is_backward(e)}
        self.late = late_equations(program, backward, program.outputs)
        self.dropped = dropped(program, backward, self.late)
        self.avals = list(program.avals)
        self.found: list[Equation] = []
        self.copies: dict[Variable, Variable] = {}
        self.made_late: set[Variable] = set()

    def run(self) -> Program:
        for k, equation in enumerate(self.program.equations):
            if is_backward(equation):
                equation = self._late_reader(equation)
                self.made_late.update(equation.outputs)
            elif k in self.late and self.dropped.keys() & set(equation.outputs):
                continue
            self.found.append(equation)
        return replace(
            self.program, equations=tuple(self.found), avals=tuple(self.avals)
        )

    def _late_reader(self, reader: Equation) -> Equation:
        trigger = self._trigger(reader)
        behind: dict[Variable, Variable] = {}
        inputs = [self._late(a, reader, trigger, behind) for a in reader.inputs]
        tied = [a if isinstance(a, Literal) else behind.get(a, a) for a in inputs]
        return replace(reader, inputs=tuple(tied))

    def _late(
        self,
        atom: Atom,
        reader: Equation,
        trigger: Variable | None,
        behind: dict[Variable, Variable],
    ) -> Atom:
        """The atom as the backward pass reads it; notes the trigger in `behind`."""
        if isinstance(atom, Literal) or atom not in self.dropped:
            return atom
        if atom not in self.copies:
            equation = self.dropped[atom]
            inputs = [self._late(a, reader, trigger, behind) for a in equation.inputs]
            is_early = any(v not in self.made_late for v in _variables(inputs))
            if is_early and trigger is not None:
                inputs = self._tied(inputs, reader, trigger, behind)
            outputs = tuple(self._new(v) for v in equation.outputs)
            copy = replace(
                equation, inputs=tuple(inputs), outputs=outputs, scope=reader.scope
            )
            self.found.append(copy)
            self.copies.update(zip(equation.outputs, outputs, strict=True))
            self.made_late.update(outputs)
        return self.copies[atom]

    def _tied(
        self,
        inputs: list[Atom],
        reader: Equation,
        trigger: Variable,
        behind: dict[Variable, Variable],
    ) -> list[Atom]:
        """The inputs behind a barrier that waits for the trigger."""
        last = behind.get(trigger, trigger)
        passing = list(dict.fromkeys([*_variables(inputs), last]))
        after = dict(zip(passing, map(self._new, passing), strict=True))
        barrier = replace(
            reader,
            primitive=lax.optimization_barrier_p,
            params={},
            inputs=tuple(passing),
            outputs=tuple(after.values()),
            is_barrier=True,
            effects=frozenset(),
        )
        self.found.append(barrier)
        behind[trigger] = after[last]
        return [a if isinstance(a, Literal) else after[a] for a in inputs]

    def _new(self, like: Variable) -> Variable:
        self.avals.append(self.avals[like])
        return len(self.avals) - 1

    def _trigger(self, reader: Equation) -> Variable | None:
        """The largest operand that the backward pass has computed."""
        late = [v for v in reader.variables if v in self.made_late]
        return max(late, key=lambda v: nbytes(self.avals[v]), default=None)
