"""Flattens a traced step into a list of equations.

A `Program` is one straight line: nested `jit`, `custom_jvp_call`, `custom_vjp_call`,
linear solvers and `jax.checkpoint` bodies are inlined, and of a choice by platform the
branch that all take, dead equations dropped, equal equations merged, what XLA would
simplify is simplified (`simplify`). Loops, other branches, `shard_map`, kernels and
every primitive not named here stay whole: one opaque equation.

`jax.checkpoint` lowers to an `optimization_barrier` in front of its body; inlining
keeps that barrier as an equation (`Equation.is_barrier`), because the unplanned program
must behave as the user wrote it. The planner sees through it: each output is the input.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core as jexc
import numpy as np
from jax.extend import source_info_util

from . import putting
from .repeating import is_stateful
from .rules import NO_RULES, Rules
from .simplify import inverse, number_made, product, unchanged
from .trace import Atom, Equation, Literal, Program, Variable, drop_dead, location_of

_INLINED_BODY = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
}
_PLATFORMS = ("cpu", "cuda", "rocm")


def flatten(
    closed: Any,
    donated: Sequence[bool],
    merge: bool = True,
    rules: Rules = NO_RULES,
) -> Program:
    """Flattens a closed jaxpr, drops dead equations and merges equal ones.

    Args:
      closed: jaxpr of the whole step (`jax.stages.Traced.jaxpr`).
      donated: per flat argument, whether it is donated.
      merge: False leaves equal equations apart.
      rules: the user's. With `override_checkpoint`, what `jax.checkpoint` computes
        again is merged with its original.
    """
    builder = Builder(merge, rules)
    arguments = tuple(builder.new(v.aval) for v in closed.jaxpr.invars)
    constants = [builder.constant(c) for c in closed.consts]
    top = source_info_util.new_name_stack()
    outputs = builder.inline(closed.jaxpr, constants, arguments, top, None)
    equations = drop_dead(builder.equations, outputs)
    return Program(
        arguments,
        tuple(builder.constants),
        tuple(equations),
        tuple(outputs),
        tuple(builder.avals),
        tuple(donated),
        rules=rules,
    )


class Builder:
    """Collects flat equations while walking nested jaxprs.

    Args:
      merge: whether equal equations become one.
      rules: the user's.
      is_joint: the programs are bodies of two loops. What `jax.checkpoint` computes
        again in the second is not the first's, though it may have no barrier.
    """

    def __init__(
        self, merge: bool = True, rules: Rules = NO_RULES, is_joint: bool = False
    ) -> None:
        self.merge = merge
        self.rules = rules
        self.is_joint = is_joint
        self.avals: list[Any] = []
        self.equations: list[Equation] = []
        self.constants: list[tuple[Variable, Any]] = []
        self._constant_of: dict[int, Variable] = {}
        self._seen: dict[Any, tuple[Atom, ...]] = {}
        self._numbers: dict[Variable, Any] = {}

    def new(self, aval: Any) -> Variable:
        self.avals.append(aval)
        return len(self.avals) - 1

    def constant(self, value: Any) -> Variable:
        if id(value) not in self._constant_of:
            variable = self.new(jax.typeof(value))
            self._constant_of[id(value)] = variable
            self.constants.append((variable, value))
        return self._constant_of[id(value)]

    def inline(
        self,
        jaxpr: Any,
        constants: Sequence[Atom],
        arguments: Sequence[Atom],
        stack: Any,
        caller: Any,
    ) -> list[Atom]:
        """Appends a jaxpr's equations; `caller` is the source of the enclosing call."""
        env: dict[Any, Atom] = dict(zip(jaxpr.constvars, constants, strict=True))
        env |= zip(jaxpr.invars, arguments, strict=True)

        def resolve(atom: Any) -> Atom:
            if isinstance(atom, jexc.Literal):
                return Literal(atom.val, atom.aval)
            return env[atom]

        for eqn in jaxpr.eqns:
            inputs = tuple(resolve(atom) for atom in eqn.invars)
            scope = stack + eqn.source_info.name_stack
            body = _inlined_body(eqn)
            source = eqn.source_info
            if caller is not None and not location_of(source):
                source = caller
            if body is None:
                outputs: Sequence[Atom] = self._append(eqn, inputs, scope, source)
            else:
                if eqn.primitive.name == "remat2":
                    inputs = self._checkpoint_barrier(eqn, inputs, scope, source)
                elif eqn.primitive.name == "custom_linear_solve":
                    inputs = _solve_operands(eqn, inputs)
                elif eqn.primitive.name == "cond":
                    inputs = inputs[1:]
                consts = [self.constant(c) for c in body.consts]
                outputs = self.inline(body.jaxpr, consts, inputs, scope, source)
            env |= zip(eqn.outvars, outputs, strict=True)
        return [resolve(atom) for atom in jaxpr.outvars]

    def _append(self, eqn: Any, inputs: tuple[Atom, ...], scope: Any, source: Any):
        if eqn.primitive.name == putting.NAME:
            return self._put(eqn, inputs, scope, source)
        return self._append_one(eqn, inputs, scope, source)

    def _put(self, eqn: Any, inputs: tuple[Atom, ...], scope: Any, source: Any):
        outputs: list[Atom] = []
        for put, operand in zip(putting.one_by_one(eqn), inputs, strict=True):
            if putting.is_unchanged(put) and not self.rules.pins(eqn):
                outputs.append(operand)
            else:
                outputs += self._append_one(put, (operand,), scope, source)
        return tuple(outputs)

    def _append_one(self, eqn: Any, inputs: tuple[Atom, ...], scope: Any, source: Any):
        key = _merge_key(eqn, inputs) if self.merge else None
        if key is not None and key in self._seen:
            return self._seen[key]
        if eqn.primitive.name == "optimization_barrier":
            return self._barrier(eqn, inputs, scope, source)
        same = self._unchanged(eqn, inputs)
        if same is not None:
            return (same,)
        outputs = tuple(self.new(v.aval) for v in eqn.outvars)
        inverted = inverse(eqn.primitive.name, inputs)
        if inverted is None or self.rules.pins(eqn):
            self._push(eqn, inputs, outputs, scope, source)
        else:
            self._push(eqn, (inputs[0], inverted), outputs, scope, source, product())
        number = number_made(eqn.primitive.name, inputs, self._numbers)
        self._numbers |= {v: number for v in outputs if number is not None}
        if key is not None:
            self._seen[key] = outputs
        return outputs

    def _unchanged(self, eqn: Any, inputs: tuple[Atom, ...]) -> Atom | None:
        """The operand that an equation only repeats; none if the user names it."""
        same = unchanged(eqn.primitive.name, inputs, self._numbers)
        if same is None or self.rules.pins(eqn):
            return None
        aval = same.aval if isinstance(same, Literal) else self.avals[same]
        return same if aval == eqn.outvars[0].aval else None

    def _checkpoint_barrier(
        self, eqn: Any, inputs: tuple[Atom, ...], scope: Any, source: Any
    ):
        """The barrier `jax.checkpoint` puts before a differentiated body."""
        prevent_cse = eqn.params.get("prevent_cse", True)
        has_barrier = self.is_joint or prevent_cse is not False
        is_differentiated = eqn.params.get("differentiated", False)
        if self.rules.override_checkpoint or not (is_differentiated and has_barrier):
            return inputs
        return self._barrier(eqn, inputs, scope, source)

    def _barrier(self, eqn: Any, inputs: tuple[Atom, ...], scope: Any, source: Any):
        """Holds the variables; literals need no holding."""
        variables = tuple(a for a in inputs if not isinstance(a, Literal))
        outputs = tuple(self.new(self.avals[v]) for v in variables)
        self._push(eqn, variables, outputs, scope, source, is_barrier=True)
        behind = iter(outputs)
        return tuple(a if isinstance(a, Literal) else next(behind) for a in inputs)

    def _push(
        self, eqn, inputs, outputs, scope, source, computed=None, is_barrier=False
    ) -> None:
        """Appends an equation, of another primitive if it is `computed` by that."""
        primitive, params = computed or (eqn.primitive, eqn.params)
        is_pinned = not is_barrier and self.rules.pins(eqn)
        origin = source, scope, eqn.ctx, _effects(eqn)
        self.equations.append(
            Equation(primitive, params, inputs, outputs, *origin, is_barrier, is_pinned)
        )


def _effects(eqn: Any) -> frozenset[Any]:
    """Effects but for the use of a mesh axis's name, which is none."""
    return frozenset(e for e in eqn.effects if type(e).__name__ != "NamedAxisEffect")


def _inlined_body(eqn: Any) -> Any:
    """The jaxpr to inline for this equation, or None to keep it whole."""
    name = eqn.primitive.name
    if name == "custom_linear_solve":
        return eqn.params["jaxprs"].solve
    if name == "cond":
        return _branch_of_all(eqn.params)
    if name not in _INLINED_BODY:
        return None
    if name == "jit" and not _is_plain_jit(eqn.params):
        return None
    return eqn.params.get(_INLINED_BODY[name])


def _branch_of_all(params: dict[str, Any]) -> Any:
    """The branch that every platform takes, of a choice by platform; None of others.

    `jnp.diagonal` has one for kernels.
    """
    chosen = params.get("branches_platforms") or ()
    taken = {
        next((k for k, p in enumerate(chosen) if p is None or name in p), None)
        for name in _PLATFORMS
    }
    branch = taken.pop()
    return None if taken or branch is None else params["branches"][branch]


def _solve_operands(eqn: Any, inputs: tuple[Atom, ...]) -> tuple[Atom, ...]:
    """What the solver itself reads: its constants and the right-hand side."""
    matvec, vecmat, solve, transposed = eqn.params["const_lengths"]
    first = matvec + vecmat
    return inputs[first : first + solve] + inputs[first + solve + transposed :]


def _is_plain_jit(params: dict[str, Any]) -> bool:
    """True if the call asks for nothing but a call: no shardings or layouts.

    JAX ignores what a nested call donates.
    """
    asked = ("in_shardings", "out_shardings", "in_layouts", "out_layouts")
    unspecified = all(
        s is None or type(s).__name__ == "UnspecifiedValue"
        for key in asked
        for s in params.get(key, ())
    )
    return unspecified and not params.get("compiler_options_kvs")


def _merge_key(eqn: Any, inputs: tuple[Atom, ...]) -> Any:
    """Equal keys compute equal values; None for anything that must not be merged."""
    is_barrier = eqn.primitive.name == "optimization_barrier"
    if _effects(eqn) or is_barrier or is_stateful(eqn):
        return None
    operands = tuple(_operand_key(a) for a in inputs)
    params = sorted(eqn.params.items(), key=lambda item: item[0])
    # The context has settings that bits depend on, such as those of random words.
    key = (eqn.primitive, operands, tuple(params), eqn.ctx)
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _operand_key(atom: Atom) -> Any:
    if not isinstance(atom, Literal):
        return atom
    if getattr(atom.val, "shape", ()) != ():
        return (id(atom.val), atom.aval)
    # Bytes, not text: NumPy prints as many digits as it was told to.
    return (np.asarray(atom.val).tobytes(), type(atom.val), atom.aval)
