"""Cost of an equation: floating point operations, bytes, and seconds by the roofline.

`flop_rules` maps a primitive's name to a function of its parameters and types. The
default counts one operation per element of the largest operand or result, as XLA's
`HloCostAnalysis` does for elementwise operations; equations with jaxprs inside are
counted by what is inside, times the trip count where it is known (a `while_loop` counts
one trip, a `cond` its dearest branch).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.extend.core as jexc
import jax.numpy as jnp
import numpy as np

from .trace import Equation, Literal, Program

_NO_WEIGHTS: Mapping[str, float] = {}

type FlopRule = Callable[[dict[str, Any], Sequence[Any], Sequence[Any]], float]
"""(params, input types, output types) -> floating point operations."""


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """What the roofline needs to know of a device.

    Attributes:
      flops: operations per second of a matrix multiplication.
      bytes: bytes per second of a streaming kernel.
      launch: seconds that any kernel takes.
      traffic: what a second in memory counts for beside one of arithmetic, where plans
        are to save arithmetic first.
      joins: whether XLA makes one kernel of several elementwise ops (`sparing`).
      weights: what one operation of a slow kind (`_kind`) counts for, where it is more
        than one of a matrix multiplication.
    """

    flops: float
    bytes: float
    launch: float
    weights: Mapping[str, float] = field(default_factory=dict)
    traffic: float = 1.0
    joins: bool = False

    def seconds(self, operations: float, touched: float) -> float:
        """Seconds of a kernel, less the launch.

        Arithmetic and traffic are added: where the larger of the two would be free of
        the other, a small product costs no more than the gelu after it, and is computed
        again in its place for nothing.
        """
        return operations / self.flops + touched / self.bytes


RATES = {
    "cpu": DeviceRates(
        flops=1e11,
        bytes=2e10,
        launch=2e-6,
        # XLA:CPU computes random words in a loop of single rounds, 30 ns a word, and
        # grouped convolutions without the matrix library: 0.6 GFlop/s with one channel
        # per group.
        weights={"random": 30.0, "grouped": 150.0},
    ),
    "gpu": DeviceRates(
        flops=2e14,
        bytes=3e12,
        launch=3e-6,
        # Counted in full, plans take up to 4 % more arithmetic to move up to 4 % less.
        # Random words, drawn outside of the units for products, count as these do: by
        # this share eight times what they would beside traffic in full.
        traffic=1 / 8,
        joins=True,
    ),
    "tpu": DeviceRates(flops=2e14, bytes=1.2e12, launch=3e-6),
}
"""Typical rates by platform; only their ratios steer a plan.

Those of slow kinds were measured on CPU; they are not known where none is given.
"""

TRANSCENDENTAL = {
    "exp", "exp2", "log", "log1p", "log2", "expm1", "tanh", "logistic", "erf", "erfc",
    "erf_inv", "sin", "cos", "tan", "pow", "cbrt", "lgamma", "digamma", "acos", "acosh",
    "asin", "asinh", "atan", "atanh", "cosh", "sinh",
}  # fmt: skip
_FREE = {
    "reshape", "squeeze", "expand_dims", "broadcast_in_dim", "convert_element_type",
    "transpose", "copy", "copy_p", "slice", "concatenate", "pad", "rev", "iota",
    "bitcast_convert_type", "stop_gradient", "name", "optimization_barrier", "pcast",
    "pvary", "reshard", "sharding_constraint",
    "gather", "dynamic_slice", "dynamic_update_slice", "split",
}  # fmt: skip
# A random word is an element's number, enciphered, and its halves joined.
RANDOM = {"random_bits": 100, "random_words": 100, "threefry2x32": 98}
_IN_LOOPS = RANDOM.keys() - {"random_words"}
_TRANSCENDENTAL_FLOPS = 8


def nbytes(aval: Any) -> int:
    """Bytes of a value of this type; keys count as the words they are made of."""
    shape = getattr(aval, "shape", None)
    if shape is None:
        return 0
    elements = math.prod(shape)
    dtype = aval.dtype
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return elements * _key_bytes(dtype)
    return elements * np.dtype(dtype).itemsize


def flops(equation: Equation, avals: Sequence[Any]) -> float:
    """Floating point operations of one equation."""
    return _equation_flops(equation, avals, _NO_WEIGHTS)


def work(equation: Equation, avals: Sequence[Any], rates: DeviceRates) -> float:
    """Operations of a matrix multiplication that take as long as the equation's own."""
    return _equation_flops(equation, avals, rates.weights)


def _equation_flops(
    equation: Equation, avals: Sequence[Any], weights: Mapping[str, float]
) -> float:
    if equation.is_barrier:
        return 0.0
    inputs = [a.aval if isinstance(a, Literal) else avals[a] for a in equation.inputs]
    outputs = [avals[v] for v in equation.outputs]
    return _flops(equation.primitive.name, equation.params, inputs, outputs, weights)


def program_flops(program: Program, equations: Sequence[int] | None = None) -> float:
    """Operations of the given equations (repeats count), or of the whole program."""
    chosen = range(len(program.equations)) if equations is None else equations
    return sum(flops(program.equations[i], program.avals) for i in chosen)


def _flops(
    name: str,
    params: dict[str, Any],
    ins: Sequence,
    outs: Sequence,
    weights: Mapping[str, float],
) -> float:
    bodies = [_jaxpr_flops(body, weights) for body in jexc.jaxprs_in_params(params)]
    if name == "scan":
        return params["length"] * sum(bodies)
    if name == "cond":
        return max(bodies)
    if name in flop_rules:
        kind, many = _kind(name, params, outs)
        each = max(1.0, weights.get(kind, 1.0) / many)
        return each * flop_rules[name](params, ins, outs)
    if bodies:
        return sum(bodies)
    if name in _FREE:
        return 0.0
    each = _TRANSCENDENTAL_FLOPS if name in TRANSCENDENTAL else 1
    return each * max((_elements(a) for a in (*ins, *outs)), default=0)


def _jaxpr_flops(jaxpr: Any, weights: Mapping[str, float]) -> float:
    return sum(
        _flops(
            eqn.primitive.name,
            eqn.params,
            [a.aval for a in eqn.invars],
            [v.aval for v in eqn.outvars],
            weights,
        )
        for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns
    )


def _kind(name: str, params: dict[str, Any], outs: Sequence) -> tuple[str, int]:
    """What slow kind this is of, if any, and how many operations share its slowness."""
    if name in _IN_LOOPS:
        return "random", 1
    if name == "conv_general_dilated":
        groups = max(params["feature_group_count"], params["batch_group_count"])
        if groups > 1:
            channel = params["dimension_numbers"].out_spec[1]
            return "grouped", max(1, outs[0].shape[channel] // groups)
    return "", 1


def _elements(aval: Any) -> int:
    return math.prod(getattr(aval, "shape", ()))


def _key_bytes(dtype: Any) -> int:
    return 4 * math.prod(getattr(getattr(dtype, "_impl", None), "key_shape", (2,)))


def _dot_flops(params: dict[str, Any], ins: Sequence, outs: Sequence) -> float:
    (contracted, _), _ = params["dimension_numbers"]
    return 2.0 * _elements(outs[0]) * math.prod(ins[0].shape[d] for d in contracted)


def _convolution_flops(params: dict[str, Any], ins: Sequence, outs: Sequence) -> float:
    kernel = ins[1]
    per_output = (
        _elements(kernel) / kernel.shape[params["dimension_numbers"].rhs_spec[0]]
    )
    spread = math.prod(params["lhs_dilation"] or ())
    return 2.0 * _elements(outs[0]) * per_output / spread


def _random_flops(flops: int) -> FlopRule:
    return lambda params, ins, outs: float(flops * _elements(outs[0]))


def _sort_flops(params: dict[str, Any], ins: Sequence, outs: Sequence) -> float:
    elements = _elements(ins[0])
    return elements * max(1.0, math.log2(max(elements, 2)))


def _polynomial_flops(params: dict[str, Any], ins: Sequence, outs: Sequence) -> float:
    """A product and a sum for each coefficient but the first, by Horner's rule."""
    _, *coefficients = ins
    return 2.0 * _elements(outs[0]) * (len(coefficients) - 1)


def _window_flops(params: dict[str, Any], ins: Sequence, outs: Sequence) -> float:
    return float(_elements(outs[0]) * math.prod(params["window_dimensions"]))


def _pool_gradient_flops(
    params: dict[str, Any], ins: Sequence, outs: Sequence
) -> float:
    """Of `pooling.pool_gradient`: a search in each window, shares, and their sum."""
    places = math.prod(params["window_dimensions"])
    per_window = 5 * places - 3
    return float(_elements(ins[0]) * per_window + _elements(outs[0]) * (places - 1))


flop_rules: dict[str, FlopRule] = {
    "dot_general": _dot_flops,
    "conv_general_dilated": _convolution_flops,
    **{name: _random_flops(each) for name, each in RANDOM.items()},
    "polynomial": _polynomial_flops,
    "reduce_window_max": _window_flops,
    "reduce_window_min": _window_flops,
    "reduce_window_sum": _window_flops,
    "select_and_scatter_add": _pool_gradient_flops,
    "sort": _sort_flops,
}
