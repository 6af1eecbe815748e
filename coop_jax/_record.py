"""Records a JAX training step as the stream of operators an eager framework would see.

The step is traced, never compiled or run, so arguments may be `ShapeDtypeStruct`s of
any size. Equations become operators about as XLA makes kernels of them: views cost
nothing and have no bytes; an elementwise equation is computed inside the elementwise
operator or reduction that reads it, or inside several if it is cheap and made of one
array of its own size; products, convolutions, loops, sums of gradients and all else are
operators of their own. Donated arguments are changed in place, and so is an operand
that an elementwise operator is the last to read; all other arguments stay constant, and
a tensor is released after its last use. From gradients of parameters on, no product is
computed any more; such tensors are never evicted, as in eager frameworks, where the
gradients belong to the parameters.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from ._planning.stream import Call, Constant, Event, Release, write
from ._program.cost import RATES, DeviceRates, nbytes, work
from ._program.donating import donation
from ._program.flatten import flatten
from ._program.fusing import FUSIBLE
from ._program.repeating import is_recomputable
from ._program.trace import Program, Variable
from ._program.units import Graph, Unit

_NO_BYTES = {
    "broadcast_in_dim", "copy", "expand_dims", "full", "iota", "name", "random_unwrap",
    "random_wrap", "reshape", "rev", "slice", "split", "squeeze", "stop_gradient",
    "transpose",
}  # fmt: skip
"""Views by strides, or made up in whatever kernel reads them."""

_COSTLY = {
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cos", "cosh",
    "div", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "log", "log1p", "log2",
    "logistic", "polynomial", "pow", "rem", "rsqrt", "sin", "sinh", "sqrt", "tan",
    "tanh",
}  # fmt: skip
"""Elementwise, but not computed twice only because two kernels read them."""

_PRODUCTS = {"conv_general_dilated", "dot_general", "scan", "while"}

_MOVED = {"concatenate", "dynamic_slice", "pad", "rev", "slice", "split", "transpose"}
"""Where these are inside, an element of the result is not made from its own place."""


def record(
    train_step: Callable,
    *args: Any,
    path: str | Path,
    steps: int = 1,
    rates: tuple[float, float, float] | None = None,
    **jit_options: Any,
) -> None:
    """Writes the trace of a training step, to be read by `python -m coop_jax.simulate`.

    Args:
      train_step: a plain function, or one under `jax.jit`, whose donation is kept.
      *args: arrays or `jax.ShapeDtypeStruct`s.
      path: of the file; `docs/trace-format.md` says what is in it.
      steps: how often the step runs in the trace, one after the other, on the state
        that the step before left in its donated arguments.
      rates: what makes the costs: operations per second, bytes per second and seconds
        per kernel launch of a device; None for what is typical of the default backend.
      **jit_options: for a plain function, what `jax.jit` takes, such as
        `donate_argnums`.

    Raises:
      TypeError: options for a function that is under `jax.jit` already.
      ValueError: steps is less than 1.

    Example:
      >>> import jax, jax.numpy as jnp, coop_jax
      >>> def step(w, x):
      ...     return w - 0.1 * jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w)
      >>> w, x = jnp.ones((8, 8)), jnp.ones((4, 8))
      >>> coop_jax.record(step, w, x, path="step.jsonl", donate_argnums=0)
    """
    if steps < 1:
        raise ValueError(f"steps is how often the step runs, at least 1, not {steps}.")
    if not isinstance(train_step, jax.stages.Wrapped):
        train_step = jax.jit(train_step, **jit_options)
    elif jit_options:
        raise TypeError(
            f"{', '.join(jit_options)}: the step is already under `jax.jit`, whose "
            "options are kept; give them there."
        )
    traced: Any = train_step.trace(*args)
    named = jax.tree_util.tree_leaves_with_path(traced.args_info)
    names = [jax.tree_util.keystr(path) for path, _ in named]
    program = flatten(traced.jaxpr, [info.donated for _, info in named])
    typical = RATES.get(jax.default_backend(), RATES["gpu"])
    recorder = _Recorder(program, names, DeviceRates(*rates) if rates else typical)
    write(path, recorder.events(steps), getattr(train_step, "__name__", ""))


class _Recorder:
    """The operators of a program, and the tensors between them."""

    def __init__(
        self, program: Program, names: Sequence[str], rates: DeviceRates
    ) -> None:
        self.program, self.rates = program, rates
        self.graph = graph = Graph(program)
        roots = _operators(graph)
        self.units = [graph.unit(k, roots) for k in sorted(roots)]
        self.constant = dict(zip(program.arguments, names, strict=True))
        for i, (v, _) in enumerate(program.constants):
            self.constant[v] = f"constant{i}"
        self.last_read = {
            v: i for i, unit in enumerate(self.units) for v in unit.inputs
        }
        self.donor = donation(program, graph)
        made_by = {
            v: i
            for i, unit in enumerate(self.units)
            for v in graph.equations[unit.root].outputs
        }
        # A donated argument that is read after its successor was computed cannot be
        # overwritten then; the successor is copied into it when the step is over.
        self.in_place = {
            v: donor
            for v, donor in self.donor.items()
            if self.last_read.get(donor, -1) <= made_by[v]
        }

        self.kept = _after_all_products(graph, self.units)
        self.origin: dict[Variable, Variable] = {}
        self.overwritten_by = {}
        for i, unit in enumerate(self.units):
            self._take_over(i, unit)

    def events(self, steps: int) -> Iterator[Event]:
        for v, name in self.constant.items():
            yield Constant(name, self.graph.bytes(v))
        before: list[str] = []
        for step in range(steps):
            yield from self._step(step)
            yield from map(Release, before)
            # What the step returned is let go when the next one has returned.
            before = [self._name(v, step) for v in self._returned()]

    def _step(self, step: int) -> Iterator[Event]:
        for i, unit in enumerate(self.units):
            yield self._call(unit, step)
            outputs = self.graph.equations[unit.root].outputs
            for v in dict.fromkeys((*unit.inputs, *outputs)):
                if self._is_done(v, i) and self.overwritten_by.get(v) != i:
                    yield Release(self._name(v, step))
        for v, donor in self.donor.items():
            if v not in self.in_place:
                name, size = self._name(v, step), self.graph.bytes(v)
                cost = self.rates.seconds(0, 2 * size) + self.rates.launch
                target = (self.constant[donor],)
                yield Call("copy", (name,), mutates=target, cost=cost)
                yield Release(name)

    def _call(self, unit: Unit, step: int) -> Call:
        graph, equation = self.graph, self.graph.equations[unit.root]
        avals = self.program.avals
        operations = sum(
            work(graph.equations[k], avals, self.rates)
            for k in (*unit.inlined, unit.root)
        )
        cost = self.rates.seconds(operations, graph.touched(unit)) + self.rates.launch
        names = {v: self._name(v, step) for v in equation.outputs}
        mutated = [v for v in names if v in self.in_place or v in self.origin]
        return Call(
            equation.primitive.name,
            tuple(self._name(v, step) for v in unit.inputs),
            {names[v]: graph.bytes(v) for v in names if v not in mutated},
            tuple(names[v] for v in mutated),
            cost,
            is_recomputable=is_recomputable(equation),
            kept=tuple(names[v] for v in names if v in self.kept),
        )

    def _take_over(self, i: int, unit: Unit) -> None:
        """Notes whose bytes an elementwise operator overwrites, if it may."""
        graph, avals = self.graph, self.program.avals
        inside = {graph.equations[k].primitive.name for k in (*unit.inlined, unit.root)}
        outputs = graph.equations[unit.root].outputs
        if len(outputs) != 1 or outputs[0] in self.in_place:
            return
        if not inside <= FUSIBLE - _MOVED:
            return
        for v in unit.inputs:
            is_like = nbytes(avals[v]) == nbytes(avals[outputs[0]])
            if is_like and avals[v].dtype == avals[outputs[0]].dtype:
                if self._is_done(v, i) and v not in self.in_place:
                    self.origin[outputs[0]] = self.origin.get(v, v)
                    self.overwritten_by[v] = i
                    return

    def _name(self, variable: Variable, step: int) -> str:
        if variable in self.in_place:
            return self.constant[self.in_place[variable]]
        if variable in self.constant:
            return self.constant[variable]
        variable = self.origin.get(variable, variable)
        return f"t{variable}" if step == 0 else f"t{variable}@{step}"

    def _is_done(self, variable: Variable, unit: int) -> bool:
        """Whether this unit is the last to need what the variable names."""
        stays = variable in self.graph.outputs or variable in self.constant
        return not stays and self.last_read.get(variable, unit) == unit

    def _returned(self) -> list[Variable]:
        """What the step returns besides its new state."""
        passed = set(self.constant) | set(self.donor)
        return sorted(self.graph.outputs - passed)


def _operators(graph: Graph) -> set[int]:
    """The equations that are operators of their own; the others run inside these."""
    narrow = _narrow(graph)
    roots: set[int] = set()
    readers: dict[int, set[int]] = defaultdict(set)
    for k in range(len(graph.equations) - 1, -1, -1):
        equation = graph.equations[k]
        if equation.is_barrier:
            continue
        for v in equation.outputs:
            for consumer in graph.consumers[v]:
                readers[k] |= {consumer} if consumer in roots else readers[consumer]
        is_inside = equation.primitive.name in _NO_BYTES or (
            equation.primitive.name in FUSIBLE - {"add_any"}
            and (len(readers[k]) == 1 or k in narrow)
            and all(_is_one_pass(graph, reader) for reader in readers[k])
        )
        if graph.is_read_by_caller(k) or not is_inside:
            roots.add(k)
    return roots


def _after_all_products(graph: Graph, units: Sequence[Unit]) -> set[Variable]:
    """Variables from which no matrix product or convolution is computed."""
    before: set[Variable] = set()
    for unit in reversed(units):
        equation = graph.equations[unit.root]
        is_product = equation.primitive.name in _PRODUCTS
        if is_product or any(v in before for v in equation.outputs):
            before.update(unit.inputs)
    return {v for unit in units for v in graph.equations[unit.root].outputs} - before


def _is_one_pass(graph: Graph, k: int) -> bool:
    """Whether a kernel of this equation can compute its operands as it reads them."""
    name = graph.equations[k].primitive.name
    return name in FUSIBLE or name.startswith(("reduce_", "arg"))


def _narrow(graph: Graph) -> set[int]:
    """Cheap elementwise equations that are made of one array of their own size.

    Whoever needs such a value can as well read that array.
    """
    narrow: set[int] = set()
    # Per variable, the array it is made of, smaller ones left out.
    source: dict[Variable, Variable] = {}
    for k, equation in enumerate(graph.equations):
        name = equation.primitive.name
        if equation.is_barrier or name not in FUSIBLE - _COSTLY - {"add_any"}:
            continue
        arrays = {source.get(v, v) for v in graph.reads(k)}
        size = max(map(graph.bytes, equation.outputs), default=0)
        large = {v for v in arrays if 2 * graph.bytes(v) > size}
        if len(large) <= 1:
            narrow.add(k)
            if large:
                source |= dict.fromkeys(equation.outputs, next(iter(large)))
    return narrow
