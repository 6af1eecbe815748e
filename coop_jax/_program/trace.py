"""Traces a training step into a flat list of equations.

A `Program` is one straight line: nested `jit`, `custom_jvp_call`, `custom_vjp_call`,
linear solvers and `jax.checkpoint` bodies are inlined, dead equations dropped, equal
equations merged. Loops, branches, `shard_map`, kernels and every primitive not named
here stay whole: one opaque equation. Variables are small integers, so that everything
downstream can index.

`jax.checkpoint` lowers to an `optimization_barrier` in front of its body; inlining
keeps that barrier as an equation (`Equation.is_barrier`), because the unplanned program
must behave as the user wrote it. The planner sees through it: each output is the input.
"""

import contextlib
import os.path
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.extend.core as jexc
from jax import lax
from jax.extend import source_info_util

from .mapped import Mapped
from .rules import NO_RULES, Rules

type Variable = int

_NOT_THE_USERS = (
    *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")},
    os.path.dirname(os.path.dirname(__file__)),
    "<",
)
# Also of environments that this one is built on, and of the user's home.
_INSTALLED = ("/site-packages/", "/dist-packages/")
_STATEFUL = {"rng_uniform"}
_NO_SCOPE = contextlib.nullcontext()

_INLINED_BODY = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
}


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant written into the program."""

    val: Any
    aval: Any


type Atom = Variable | Literal


@dataclass(frozen=True, slots=True, eq=False)
class Equation:
    """One primitive applied to atoms.

    Attributes:
      scope: the user's name stack at this equation.
      is_barrier: an `optimization_barrier`; output i is input i.
      is_pinned: must not run again, because the user says so.
      instead: what runs in its place, on the values of its inputs.
    """

    primitive: jexc.Primitive
    params: dict[str, Any]
    inputs: tuple[Atom, ...]
    outputs: tuple[Variable, ...]
    source: Any
    scope: Any
    context: Any
    effects: Any
    is_barrier: bool = False
    is_pinned: bool = False
    instead: Callable[..., list[Any]] | None = None

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Inputs that are variables."""
        return tuple(a for a in self.inputs if not isinstance(a, Literal))

    @property
    def location(self) -> str:
        """The user's own `file:line (function)`, or the name scopes if unknown."""
        return _location(self.source) or str(self.scope)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Names, source and settings under which the equation was traced."""
        stack = source_info_util.current_name_stack() + self.scope
        with (
            source_info_util.user_context(self.source.traceback, name_stack=stack),
            self.context.manager,
        ):
            yield

    def bind(self, *values: Any) -> list[Any]:
        """Re-traces the equation on new values."""
        with self.entered():
            if self.instead is not None:
                return self.instead(*values)
            params = self.primitive.get_bind_params(self.params)
            out = self.primitive.bind(*values, **params)
        return list(out) if self.primitive.multiple_results else [out]


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A straight-line program over flat arguments.

    Attributes:
      avals: shape and dtype of every variable, by number.
      constants: (variable, array) pairs captured by the traced function.
      donated: per argument, whether the caller gives its bytes away.
      partitions: devices that a partitioned step runs on.
      sizes: bytes per device of values that are split.
      rules: the user's, on what may be computed again.
      mapped: how `jax.shard_map` runs it on every device; None if it does not.
    """

    arguments: tuple[Variable, ...]
    constants: tuple[tuple[Variable, Any], ...]
    equations: tuple[Equation, ...]
    outputs: tuple[Atom, ...]
    avals: tuple[Any, ...]
    donated: tuple[bool, ...]
    partitions: int = 1
    sizes: Mapping[Variable, int] = field(default_factory=dict, repr=False)
    rules: Rules = NO_RULES
    mapped: Mapped | None = None

    def evaluate(
        self, values: Sequence[Any], scope_of: Callable[[int], str] | None = None
    ) -> list:
        """Runs the equations in order, equation `i` under the scope `scope_of(i)`."""
        env = dict(zip(self.arguments, values, strict=True)) | dict(self.constants)
        for index, equation in enumerate(self.equations):
            scope = jax.named_scope(scope_of(index)) if scope_of else _NO_SCOPE
            with scope:
                operands = [read(env, atom) for atom in equation.inputs]
                if equation.is_barrier:
                    outputs = lax.optimization_barrier(operands)
                else:
                    outputs = equation.bind(*operands)
            env.update(zip(equation.outputs, outputs, strict=True))
        return [read(env, atom) for atom in self.outputs]


def _location(source: Any) -> str:
    """Innermost frame outside of installed packages, else outside of JAX."""
    frames = source.traceback.frames if source.traceback is not None else ()
    for frame in frames:
        if is_the_users(frame.file_name):
            name = frame.function_name.replace(".<locals>", "")
            return f"{frame.file_name}:{frame.line_num} ({name})"
    summary = source_info_util.summarize(source)
    return "" if summary.startswith("<unknown>") else summary


def is_the_users(file: str) -> bool:
    return not (
        file.startswith(_NOT_THE_USERS) or any(part in file for part in _INSTALLED)
    )


def read(env: Mapping[Variable, Any], atom: Atom) -> Any:
    """The value of an atom."""
    return atom.val if isinstance(atom, Literal) else env[atom]


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
        self._seen: dict[Any, tuple[Variable, ...]] = {}

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
            if caller is not None and not _location(source):
                source = caller
            if body is None:
                outputs: Sequence[Atom] = self._append(eqn, inputs, scope, source)
            else:
                if eqn.primitive.name == "remat2":
                    inputs = self._checkpoint_barrier(eqn, inputs, scope, source)
                elif eqn.primitive.name == "custom_linear_solve":
                    inputs = _solve_operands(eqn, inputs)
                consts = [self.constant(c) for c in body.consts]
                outputs = self.inline(body.jaxpr, consts, inputs, scope, source)
            env |= zip(eqn.outvars, outputs, strict=True)
        return [resolve(atom) for atom in jaxpr.outvars]

    def _append(self, eqn: Any, inputs: tuple[Atom, ...], scope: Any, source: Any):
        key = _merge_key(eqn, inputs) if self.merge else None
        if key is not None and key in self._seen:
            return self._seen[key]
        if eqn.primitive.name == "optimization_barrier":
            return self._barrier(eqn, inputs, scope, source)
        outputs = tuple(self.new(v.aval) for v in eqn.outvars)
        self._push(eqn, inputs, outputs, scope, source, False)
        if key is not None:
            self._seen[key] = outputs
        return outputs

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
        self._push(eqn, variables, outputs, scope, source, True)
        behind = iter(outputs)
        return tuple(a if isinstance(a, Literal) else next(behind) for a in inputs)

    def _push(self, eqn, inputs, outputs, scope, source, is_barrier) -> None:
        self.equations.append(
            Equation(
                eqn.primitive,
                eqn.params,
                inputs,
                outputs,
                source,
                scope,
                eqn.ctx,
                _effects(eqn),
                is_barrier,
                not is_barrier and self.rules.pins(eqn),
            )
        )


def _effects(eqn: Any) -> frozenset[Any]:
    """Effects but for the use of a mesh axis's name, which is none."""
    return frozenset(e for e in eqn.effects if type(e).__name__ != "NamedAxisEffect")


def _inlined_body(eqn: Any) -> Any:
    """The jaxpr to inline for this equation, or None to keep it whole."""
    name = eqn.primitive.name
    if name == "custom_linear_solve":
        return eqn.params["jaxprs"].solve
    if name not in _INLINED_BODY:
        return None
    if name == "jit" and not _is_plain_jit(eqn.params):
        return None
    return eqn.params.get(_INLINED_BODY[name])


def _solve_operands(eqn: Any, inputs: tuple[Atom, ...]) -> tuple[Atom, ...]:
    """What the solver itself reads: its constants and the right-hand side."""
    matvec, vecmat, solve, transposed = eqn.params["const_lengths"]
    first = matvec + vecmat
    return inputs[first : first + solve] + inputs[first + solve + transposed :]


def _is_plain_jit(params: dict[str, Any]) -> bool:
    """True if the call asks for nothing but a call: no shardings, layouts, donation."""
    asked = ("in_shardings", "out_shardings", "in_layouts", "out_layouts")
    unspecified = all(
        s is None or type(s).__name__ == "UnspecifiedValue"
        for key in asked
        for s in params.get(key, ())
    )
    return (
        unspecified
        and not any(params.get("donated_invars", ()))
        and not params.get("compiler_options_kvs")
    )


def _merge_key(eqn: Any, inputs: tuple[Atom, ...]) -> Any:
    """Equal keys compute equal values; None for anything that must not be merged."""
    name = eqn.primitive.name
    if _effects(eqn) or name == "optimization_barrier" or name in _STATEFUL:
        return None
    operands = tuple(_operand_key(a) for a in inputs)
    params = sorted(eqn.params.items(), key=lambda item: item[0])
    key = (eqn.primitive, operands, tuple(params))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _operand_key(atom: Atom) -> Any:
    if not isinstance(atom, Literal):
        return atom
    if hasattr(atom.val, "shape") and getattr(atom.val, "shape", ()) != ():
        return (id(atom.val), str(atom.aval))
    return (type(atom.val).__name__, repr(atom.val), str(atom.aval))


def drop_dead(equations: list[Equation], outputs: Sequence[Atom]) -> list[Equation]:
    """Keeps effects and what the outputs need. Barriers keep only their live pairs."""
    live = {atom for atom in outputs if not isinstance(atom, Literal)}
    kept = []
    for equation in reversed(equations):
        if equation.effects or any(v in live for v in equation.outputs):
            kept.append(equation)
            live.update(equation.variables)
    return kept[::-1]
