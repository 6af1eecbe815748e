"""Primitives by what XLA makes of their equations."""

from collections.abc import Set

VIEWS = {"reshape", "squeeze", "expand_dims", "stop_gradient", "copy", "copy_p",
         "name", "pcast", "pvary", "random_wrap", "random_unwrap"}  # fmt: skip
"""Equations that only name or reshape what they read."""

FUSIBLE = VIEWS | {
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2",
    "atanh", "bitcast_convert_type", "broadcast_in_dim", "cbrt", "ceil", "clamp",
    "clz", "complex", "concatenate", "conj", "convert_element_type", "cos", "cosh",
    "div", "dynamic_slice", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1",
    "floor", "full", "ge", "gt", "imag", "integer_pow", "iota", "is_finite", "le",
    "log", "log1p", "log2", "logistic", "lt", "max", "min", "mul", "ne", "neg",
    "nextafter", "not", "one_minus_square", "or", "pad", "polynomial",
    "population_count", "pow", "random_words", "real", "reduce_precision", "rem",
    "reshard", "rev", "round", "rsqrt", "select_n", "sharding_constraint", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "slice",
    "split", "sqrt", "square", "sub", "tan", "tanh", "transpose", "xor",
}  # fmt: skip
"""Equations that XLA computes inside of what reads them."""

REDUCTIONS = {"reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod",
              "reduce_sum"}  # fmt: skip
"""Equations that XLA:GPU may compute inside of what reads their operand too.

So it makes one kernel of a softmax."""

LAYOUTS = {"rev", "transpose"}
"""Equations that only move bytes about."""

PLACING = VIEWS | LAYOUTS | {"broadcast_in_dim", "concatenate", "pad", "slice"}
"""Equations that change where values are, and none of them."""

SLICES = {"slice", "unstack"}
"""Equations that take parts of what they read."""

SEVERAL = {"ragged_dot_general"}
"""Equations that XLA is given as several operations, of which they may share some."""

SUMS = {"add", "add_any"}
"""Equations that add one array to another."""

ACCUMULATING = {"scatter-add", "select_and_scatter_add"}
"""Equations that XLA makes onto what their result is added to."""


def fusible(platform: str) -> Set[str]:
    """Names of the equations that XLA computes inside of others."""
    return FUSIBLE if platform == "cpu" else FUSIBLE | REDUCTIONS
