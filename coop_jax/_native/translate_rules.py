"""How each primitive becomes instructions: `rule(translation, equation, place)`.

A rule asks for its operands where `place` says and returns the number of the
instruction that computes the equation's result there, or raises `Unsupported`.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from .._program.threefry import draws_words
from .._program.trace import Equation
from .program_words import (
    F32,
    F64,
    FLOATING_ONLY,
    PRED,
    U32,
    Map,
    Unsupported,
    kind_of,
    row_major,
)

if TYPE_CHECKING:
    from .translate import Translation

_SAME_NAME = FLOATING_ONLY | {
    "neg", "abs", "sign", "not", "add", "sub", "mul", "max", "min", "and", "or", "xor",
    "shift_left", "shift_right_logical", "shift_right_arithmetic",
    "eq", "ne", "lt", "le", "gt", "ge",
}  # fmt: skip
_RENAMES = {
    "reshape",
    "squeeze",
    "expand_dims",
    "copy",
    "copy_p",
    "name",
    "stop_gradient",
}


def _elementwise(t: "Translation", equation: Equation, place: Map) -> int:
    name = {"add_any": "add"}.get(equation.primitive.name, equation.primitive.name)
    operands = t.elements(equation, place)
    kinds = {kind_of(t.aval(atom).dtype) for atom in equation.inputs}
    if len(kinds) != 1:
        raise Unsupported
    return t.emit(name, kinds.pop(), *operands)


def _square(t: "Translation", equation: Equation, place: Map) -> int:
    x = t.value(equation.inputs[0], place)
    return t.emit("mul", kind_of(t.aval(equation.inputs[0]).dtype), x, x)


def _integer_pow(t: "Translation", equation: Equation, place: Map) -> int:
    x = t.value(equation.inputs[0], place)
    kind, power = kind_of(t.aval(equation.inputs[0]).dtype), equation.params["y"]
    if kind not in (F32, F64) or abs(power) > 1024:
        raise Unsupported
    if power in (2, 3):
        square = t.emit("mul", kind, x, x)
        return square if power == 2 else t.emit("mul", kind, square, x)
    return t.emit("integer_pow", kind, x, power)


def _pow(t: "Translation", equation: Equation, place: Map) -> int:
    x, y = t.elements(equation, place)
    kind, of_power = (kind_of(t.aval(atom).dtype) for atom in equation.inputs)
    if kind not in (F32, F64):
        raise Unsupported
    if of_power != kind:
        y = t.emit("convert", kind, y)
    return t.emit("pow", kind, x, y)


def _select(t: "Translation", equation: Equation, place: Map) -> int:
    if len(equation.inputs) != 3 or kind_of(t.aval(equation.inputs[0]).dtype) != PRED:
        raise Unsupported
    operands = t.elements(equation, place)
    return t.emit("select", kind_of(t.aval(equation.inputs[1]).dtype), *operands)


def _clamp(t: "Translation", equation: Equation, place: Map) -> int:
    low, x, high = t.elements(equation, place)
    kind = kind_of(t.aval(equation.inputs[1]).dtype)
    return t.emit("min", kind, t.emit("max", kind, x, low), high)


def _convert(t: "Translation", equation: Equation, place: Map) -> int:
    source = t.aval(equation.inputs[0]).dtype
    target = equation.params["new_dtype"]
    x = t.value(equation.inputs[0], place)
    if kind_of(source) != kind_of(target):
        x = t.emit("convert", kind_of(target), x)
    return _rounded(t, x, str(target), str(source))


def _rounded(t: "Translation", x: int, target: str, source: str) -> int:
    rounding = {"bfloat16": "round_bf16", "float16": "round_f16"}.get(target)
    return x if rounding is None or target == source else t.emit(rounding, F32, x)


def _reduce_precision(t: "Translation", equation: Equation, place: Map) -> int:
    bits = (equation.params["exponent_bits"], equation.params["mantissa_bits"])
    target = {(8, 7): "bfloat16", (5, 10): "float16", (8, 23): "float32"}.get(bits)
    if target is None or kind_of(t.aval(equation.inputs[0]).dtype) != F32:
        raise Unsupported
    return _rounded(t, t.value(equation.inputs[0], place), target, "")


def _bitcast(t: "Translation", equation: Equation, place: Map) -> int:
    wide = ("float32", "int32", "uint32")
    source = str(t.aval(equation.inputs[0]).dtype)
    target = str(equation.params["new_dtype"])
    if source not in wide or target not in wide:
        raise Unsupported
    return t.emit("bitcast", kind_of(target), t.value(equation.inputs[0], place))


def _rename(t: "Translation", equation: Equation, place: Map) -> int:
    if equation.params.get("dimensions") and equation.primitive.name == "reshape":
        raise Unsupported
    return t.value(equation.inputs[0], place)


def _broadcast(t: "Translation", equation: Equation, place: Map) -> int:
    if len(equation.inputs) != 1:
        raise Unsupported
    shape = t.aval(equation.inputs[0]).shape
    wide = t.aval(equation.outputs[0]).shape
    if shape == ():
        return t.value(equation.inputs[0], place)
    steps = t.coordinates(place, wide)
    axes = equation.params["broadcast_dimensions"]
    return t.value(equation.inputs[0], t.along(shape, wide, axes, steps))


def _transpose(t: "Translation", equation: Equation, place: Map) -> int:
    shape = t.aval(equation.inputs[0]).shape
    steps = t.coordinates(place, t.aval(equation.outputs[0]).shape)
    along = [steps[0]] * len(shape)
    for axis, source in enumerate(equation.params["permutation"]):
        along[source] = steps[axis]
    return t.value(equation.inputs[0], t.gather(shape, along))


def _iota(t: "Translation", equation: Equation, place: Map) -> int:
    if equation.inputs:
        raise Unsupported
    steps = t.coordinates(place, t.aval(equation.outputs[0]).shape)
    along = tuple(steps[equation.params["dimension"]])
    kind = kind_of(equation.params["dtype"])
    return t.emit("iota", kind, along)


def _random_bits(t: "Translation", equation: Equation, place: Map) -> int:
    if not draws_words(equation, t.graph.program.avals):
        raise Unsupported
    (key,) = equation.variables
    v = t.graph.resolve(key)
    k = t.graph.producer.get(v)
    if k is not None and k in t.members:
        t.compute_outside(k)
    still = (0,) * len(t.dimensions)
    return t.emit("random_bits", U32, t.operand(v, still, is_key=True), place)


def _reduce(t: "Translation", equation: Equation, place: Map) -> int:
    (x,) = equation.inputs
    shape, axes = t.aval(x).shape, equation.params["axes"]
    kind = kind_of(t.aval(x).dtype)
    reduced = [shape[a] for a in axes]
    if math.prod(reduced) == 1:
        return t.value(x, place)
    if kind not in (F32, F64):
        raise Unsupported
    row = t.row_of(place, math.prod(reduced))
    walk = [0] * len(t.dimensions)
    for d, stride in zip(row, row_major([t.dimensions[d] for d in row]), strict=True):
        walk[d] = stride
    kept = iter(t.coordinates(place, t.aval(equation.outputs[0]).shape))
    over = dict(zip(axes, t.coordinates(tuple(walk), reduced), strict=True))
    along = [over[a] if a in over else next(kept) for a in range(len(shape))]
    return t.emit(equation.primitive.name, kind, t.value(x, t.gather(shape, along)))


RULES: dict[str, Callable[["Translation", Equation, Map], int]] = {
    **dict.fromkeys(_SAME_NAME | {"add_any"}, _elementwise),
    **dict.fromkeys(_RENAMES, _rename),
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min"), _reduce),
    "square": _square,
    "integer_pow": _integer_pow,
    "pow": _pow,
    "select_n": _select,
    "clamp": _clamp,
    "convert_element_type": _convert,
    "reduce_precision": _reduce_precision,
    "bitcast_convert_type": _bitcast,
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "iota": _iota,
    "random_bits": _random_bits,
    "random_words": _random_bits,
}
