"""Turns a plan back into a function that JAX can trace.

XLA follows an order only where data forces it. All steps at one position of the plan
(the rematerializations for an op, then the op) form a *group*; what a group reads from
outside passes one `lax.optimization_barrier` together with the *trigger*, a whole array
that the group before it produced. So each group starts after the one before it is done,
the schedulers of both CPU and GPU keep the planned order, and a rematerialization is
neither merged with the original nor hoisted. Inside a group XLA is free to fuse.

Groups that touch only small values are left untied, and the trigger's own value is used
on as it was, so that its chain of buffers stays fusible. Literals that a group spreads
over an array pass the barrier too: XLA would otherwise make that array once, at the
very start, and keep it to the end. The barriers vanish before buffer assignment and
cost nothing at run time.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ._loops import scan_from, stacks
from ._profile import Profile, Unit
from ._trace import Variable, read
from ._types import OpId

type Positions = Sequence[Sequence[int]]
"""Per op, the positions it runs at (`_planner.Planned.positions`)."""

_SMALL = 1 / 65536
_SMALLEST = 4096
_FILL = -1  # key of a tied literal: variables are >= 0, equation k's is -1 - k


def emit(profile: Profile, positions: Positions) -> Callable[..., list[Any]]:
    """A function of the program's flat arguments that runs the planned schedule.

    Args:
      profile: program and units.
      positions: where each op runs.

    Returns:
      A traceable function `(*flat arguments) -> flat outputs`.
    """

    def planned(*arguments: Any) -> list[Any]:
        return _Emission(profile, arguments).run(groups(positions))

    return planned


def groups(positions: Positions) -> list[list[OpId]]:
    """Ops that run at each position, in op order: the op itself comes last."""
    at: list[list[OpId]] = [[] for _ in positions]
    for op, places in enumerate(positions):
        for position in places:
            at[position].append(op)
    return at


class _Emission:
    """Environment of one trace."""

    def __init__(self, profile: Profile, arguments: Sequence[Any]) -> None:
        self.profile = profile
        self.program = profile.program
        self.env: dict[Variable, Any] = dict(
            zip(self.program.arguments, arguments, strict=True)
        )
        self.env |= dict(self.program.constants)
        self.trigger: Any = None
        self.done: set[OpId] = set()
        sizes = [v.size for v in profile.problem.values]
        self.small = max(_SMALLEST, int(sum(sizes) * _SMALL))

    def run(self, plan: Sequence[Sequence[OpId]]) -> list[Any]:
        for group in plan:
            self._run_group(group)
        alias_of = self.profile.alias_of
        return [
            read(self.env, alias_of.get(a, a) if isinstance(a, int) else a)
            for a in self.program.outputs
        ]

    def _run_group(self, group: Sequence[OpId]) -> None:
        reads = self._outside_reads(group)
        is_large = any(self._is_large(op) for op in group)
        local: dict[Variable, Any] = {v: self.env[v] for v in reads}
        if is_large and self.trigger is not None:
            self._tie(local, group)
        for op in group:
            if op in self.done:
                with jax.named_scope("coop_recompute"):
                    self._compute(op, local)
            else:
                self._compute(op, local)
                self.done.add(op)
        if is_large:
            self._set_trigger(group)

    def _outside_reads(self, group: Sequence[OpId]) -> list[Variable]:
        made: set[Variable] = set()
        reads: dict[Variable, None] = {}
        for op in group:
            unit = self.profile.units[op]
            reads |= dict.fromkeys(v for v in unit.inputs if v not in made)
            made |= set(self.program.equations[unit.root].outputs)
        return list(reads)

    def _is_large(self, op: OpId) -> bool:
        problem = self.profile.problem
        spec = problem.ops[op]
        return any(
            problem.values[v].size >= self.small for v in (*spec.inputs, *spec.outputs)
        )

    def _tie(self, local: dict[Variable, Any], group: Sequence[OpId]) -> None:
        """Makes what the group starts from available only after the trigger."""
        tied = {v: x for v, x in local.items() if x is not self.trigger}
        fills = {k for op in group for k in self.profile.units[op].fills}
        for k in sorted(fills):
            literal = self.program.equations[k].inputs[0]
            tied[_FILL - k] = jnp.asarray(literal.val, literal.aval.dtype)
        roots = {self.profile.units[op].root for op in group}
        for k in sorted(filter(self._stacks, roots)):
            tied[_FILL - k] = jnp.zeros((), jnp.int32)
        if tied:
            *behind, _ = lax.optimization_barrier([*tied.values(), self.trigger])
            local.update(zip(tied, behind, strict=True))

    def _stacks(self, k: int) -> bool:
        return stacks(self.program.equations[k])

    def _compute(self, op: OpId, local: dict[Variable, Any]) -> None:
        unit = self.profile.units[op]
        outputs = compute_unit(self.profile, unit, local)
        self.env.update(
            zip(self.program.equations[unit.root].outputs, outputs, strict=True)
        )

    def _set_trigger(self, group: Sequence[OpId]) -> None:
        """The largest result of the group's last op that produces an array."""
        for op in reversed(group):
            outputs = self.program.equations[self.profile.units[op].root].outputs
            sized = [v for v in outputs if getattr(self.env[v], "size", 0)]
            if sized:
                self.trigger = max((self.env[v] for v in sized), key=lambda x: x.size)
                return


def compute_unit(profile: Profile, unit: Unit, local: dict[Variable, Any]) -> list[Any]:
    """Runs a unit's equations; inlined ones are shared with others in `local`.

    Args:
      profile: of the program.
      unit: one of its units.
      local: values of the unit's inputs; receives what is computed.

    Returns:
      The values of the root's outputs.
    """
    alias_of = profile.alias_of
    for k in itertools.chain(unit.inlined, [unit.root]):
        equation = profile.program.equations[k]
        if k != unit.root and equation.outputs[0] in local:
            continue
        operands = [
            read(local, alias_of.get(a, a) if isinstance(a, int) else a)
            for a in equation.inputs
        ]
        seed = local.get(_FILL - k)
        if seed is None:
            outputs = equation.bind(*operands)
        elif stacks(equation):
            outputs = scan_from(equation, operands, seed)
        else:
            outputs = equation.bind(seed)
        local.update(zip(equation.outputs, outputs, strict=True))
    return [local[v] for v in profile.program.equations[unit.root].outputs]
