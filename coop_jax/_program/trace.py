"""A traced step as a straight line of equations (`flatten` makes one of a jaxpr).

Variables are small integers, so that everything downstream can index.
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
_NO_SCOPE = contextlib.nullcontext()


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
        return location_of(self.source) or str(self.scope)

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
            try:
                out = self.primitive.bind(*values, **params)
            except FloatingPointError as error:
                # JAX names the caller's line, which is this one.
                error.add_note(f"coop_jax: in the step, {self.location}")
                raise
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


def location_of(source: Any) -> str:
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


def drop_dead(equations: list[Equation], outputs: Sequence[Atom]) -> list[Equation]:
    """Keeps effects and what the outputs need. Barriers keep only their live pairs."""
    live = {atom for atom in outputs if not isinstance(atom, Literal)}
    kept = []
    for equation in reversed(equations):
        if equation.effects or any(v in live for v in equation.outputs):
            kept.append(equation)
            live.update(equation.variables)
    return kept[::-1]
