"""The native decoder and interpreter, by hand-written and by broken programs."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.native import F32, F64, OPCODES, S32, U32, check, elementwise, of_rows, run

# x * x + y, and a softmax of rows: every kind of word is in one of them.
MULTIPLY_ADD = [
    ("load", F32, 0, 0, 0),
    ("mul", F32, 0, 0, 0),
    ("load", F32, 1, 0, 0),
    ("add", F32, 1, 2, 0),
]
SOFTMAX = [
    ("load", F32, 0, 0, 0),
    ("reduce_max", F32, 0, 0, 0),
    ("sub", F32, 0, 1, 0),
    ("exp", F32, 2, 0, 0),
    ("reduce_sum", F32, 3, 0, 0),
    ("div", F32, 3, 4, 0),
]
WITH_KEY = [1, 1, 1, 2, 2, 4, 6, 1, 0, 5, 1, 1, 2, 0, 0, 1, 6, 0, 0, 1, 6,
            3, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 1, 0, 0, 29, 0, 1, 2, 0]  # fmt: skip


def floats(values: list) -> np.ndarray:
    return np.array(values, np.float32)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_a_program_computes_what_it_says() -> None:
    x, y = floats([1, 2, 3]), floats([10, 20, 30])
    result = np.zeros(3, np.float32)
    words = elementwise(MULTIPLY_ADD, ["float32"] * 3, (3,))
    assert run(words, [x, y, result]) == ""
    assert result.tolist() == [11, 24, 39]


def test_a_result_may_overwrite_an_operand() -> None:
    x, y = floats([1, 2, 3]), floats([10, 20, 30])
    words = elementwise(MULTIPLY_ADD, ["float32"] * 3, (3,))
    assert run(words, [x, y, x]) == ""
    assert x.tolist() == [11, 24, 39]


@pytest.mark.parametrize("columns", [1, 2, 31, 511, 512, 513, 1300, 9000])
def test_a_row_of_any_length_is_reduced_in_place(columns: int) -> None:
    x = np.random.default_rng(columns).normal(size=(3, columns)).astype(np.float32)
    want = softmax(x.astype(np.float64))
    words = of_rows(SOFTMAX, ["float32"] * 2, *x.shape)
    assert run(words, [x, x]) == ""
    np.testing.assert_allclose(x, want, rtol=3e-6, atol=1e-12)


def test_a_result_may_be_transposed() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    result = np.zeros((3, 2), np.float32)
    words = [1, 2, 2, 2, 1, 2, 2, 3, 3, 1, 1, 2, 0, 0, 2, 2, 3, 0, 1, 2, 3, 2,
             0, 0, 0, 0, 0, 8, 0, 0, 0, 0]  # fmt: skip
    assert run(words, [x, result]) == ""
    assert (result == -x.T).all()


# Strides over rows and columns: as a matrix, one row, one column, transposed.
PLACES = ("matrix", "row", "column", "transposed")
EXACT = {
    "neg": np.negative, "add": np.add, "sub": np.subtract, "max": np.maximum,
    "min": np.minimum, "reduce_max": np.max, "reduce_min": np.min,
}  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_random_programs_compute_what_numpy_does(data) -> None:
    rows = data.draw(st.integers(1, 4))
    columns = data.draw(st.sampled_from([1, 3, 16, 511, 512, 513, 1024, 1300]))
    places = ["matrix", *data.draw(st.lists(st.sampled_from(PLACES), max_size=3))]
    names = [*EXACT] if data.draw(st.booleans()) else [*EXACT][:5]
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    shapes = {
        "matrix": (rows, columns), "row": (1, columns), "column": (rows, 1),
        "transposed": (columns, rows),
    }  # fmt: skip
    arrays = [rng.integers(-9, 9, shapes[p]).astype(np.float32) for p in places]
    program = [("load", F32, k, PLACES.index(p), 0) for k, p in enumerate(places)]
    values = [
        a.T if p == "transposed" else a for a, p in zip(arrays, places, strict=True)
    ]
    for _ in range(data.draw(st.integers(0, 8))):
        name = data.draw(st.sampled_from(names))
        a, b = (data.draw(st.integers(0, len(program) - 1)) for _ in range(2))
        if name.startswith("reduce"):
            whole = np.broadcast_to(values[a], (rows, columns))
            values.append(EXACT[name](whole, 1, keepdims=True))
        else:
            values.append(EXACT[name](*[values[a], values[b]][: 1 + (name != "neg")]))
        program.append((name, F32, a, b * (name in ("add", "sub", "max", "min")), 0))
    has_rows = any(name.startswith("reduce") for name, *_ in program)
    words = [1, 2, 1 if has_rows else 2, 4, len(places), len(program), rows, columns]
    words += [columns, 1, 0, 1, 1, 0, 1, rows]
    for place, array in zip([*places, "matrix"], [*arrays, arrays[0]], strict=True):
        words += [0, PLACES.index(place), 2, *array.shape]
    for name, *rest in program:
        words += [OPCODES[name], *rest]
    want = np.broadcast_to(values[-1], (rows, columns)).copy()
    result = arrays[0] if data.draw(st.booleans()) else np.zeros_like(arrays[0])
    assert run(words, [*arrays, result]) == ""
    np.testing.assert_array_equal(result, want)


def normalisation(shape: tuple[int, ...], channel: int) -> list[int]:
    """(x - mean) / (abs(scale) + 0.5) * scale + mean, per channel: an axis."""
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    of_channel = [int(d == channel) for d in range(len(shape))]
    words = [1, len(shape), len(shape), 2, 3, 9, *shape, *strides, *of_channel]
    words += [0, 0, len(shape), *shape]
    words += [0, 1, 1, shape[channel]] * 2
    words += [0, 0, len(shape), *shape]
    half = int(np.float32(0.5).view(np.int32))
    for name, a, b in (
        ("load", 0, 0), ("load", 1, 0), ("load", 2, 0), ("abs", 2, 0),
        ("literal", half, 0), ("add", 3, 4), ("sub", 0, 1), ("div", 6, 5),
        ("add", 7, 1),
    ):  # fmt: skip
        words += [OPCODES[name], F32, a, b, 0]
    return words


@pytest.mark.parametrize(
    ("shape", "channel"),
    [((5, 7), 1), ((300, 64), 1), ((31, 1024), 1), ((3, 5000), 1), ((2, 9001), 1),
     ((4, 6, 3136), 1), ((97, 3, 20), 1), ((4001, 3), 1), ((2, 8, 2048), 0)],
)  # fmt: skip
def test_what_rows_share_is_the_same_in_all_of_them(shape, channel: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape).astype(np.float32)
    mean, scale = rng.normal(size=(2, shape[channel])).astype(np.float32)
    along = [-1 if d == channel else 1 for d in range(len(shape))]
    center, spread = mean.reshape(along), scale.reshape(along)
    want = (x - center) / (np.abs(spread) + np.float32(0.5)) + center
    assert run(normalisation(shape, channel), [x, mean, scale, x]) == ""
    np.testing.assert_allclose(x, want, rtol=1e-6, atol=1e-6)


def test_a_row_that_is_read_again_and_again_is_reduced() -> None:
    row, result = floats([[3, 1, 2]]), np.zeros((2, 3), np.float32)
    program = [("load", F32, 0, 0, 0), ("reduce_max", F32, 0, 0, 0),
               ("reduce_min", F32, 0, 0, 0), ("sub", F32, 1, 2, 0)]  # fmt: skip
    words = [1, 2, 1, 2, 1, 4, 2, 3, 0, 1, 3, 1, 0, 0, 2, 1, 3, 0, 1, 2, 2, 3]
    words += [word for name, *rest in program for word in (OPCODES[name], *rest)]
    assert run(words, [row, result]) == ""
    assert (result == 2).all()


@pytest.mark.parametrize("size", [1, 15, 127, 128, 129, 5000])
def test_a_chain_of_links_computes_each_of_them(size: int) -> None:
    """max(min((2 - x) / (1 - tanh(x)) - x, 9), x), which NaN goes through."""
    x = np.random.default_rng(size).normal(size=size).astype(np.float32)
    x[size // 2] = np.nan
    two, one, nine = (int(np.float32(v).view(np.int32)) for v in (2, 1, 9))
    program = [
        ("load", F32, 0, 0, 0), ("literal", F32, two, 0, 0), ("sub", F32, 1, 0, 0),
        ("tanh", F32, 0, 0, 0), ("literal", F32, one, 0, 0), ("sub", F32, 4, 3, 0),
        ("div", F32, 2, 5, 0), ("sub", F32, 6, 0, 0), ("literal", F32, nine, 0, 0),
        ("min", F32, 7, 8, 0), ("max", F32, 0, 9, 0),
    ]  # fmt: skip
    wide = x.astype(np.float64)
    want = np.maximum(np.minimum((2 - wide) / (1 - np.tanh(wide)) - wide, 9), wide)
    assert run(elementwise(program, ["float32"] * 2, x.shape), [x, x]) == ""
    np.testing.assert_allclose(x, want, rtol=1e-4, atol=1e-4)


# Accuracy

FUNCTIONS = {
    "exp": (math.exp, -100, 88),
    "exp2": (lambda x: 2.0**x, -120, 127),
    "expm1": (math.expm1, -90, 88),
    "log": (lambda x: math.log(abs(x)), 1e-37, 3e38),
    "log1p": (math.log1p, -0.999, 1e30),
    "tanh": (math.tanh, -20, 20),
    "logistic": (lambda x: 1 / (1 + math.exp(-x)), -80, 80),
    "erf": (math.erf, -6, 6),
    "erfc": (math.erfc, -6, 9.19),
    "sqrt": (math.sqrt, 0, 3e38),
    "rsqrt": (lambda x: 1 / math.sqrt(x), 1e-37, 3e38),
    "floor": (math.floor, -1e4, 1e4),
    "ceil": (math.ceil, -1e4, 1e4),
}


def spread(low: float, high: float) -> np.ndarray:
    """Points from everywhere in a range, small and large ones alike."""
    rng = np.random.default_rng(0)
    linear = rng.uniform(low, high, 200_000)
    small = np.geomspace(1e-20, max(abs(low), abs(high)), 100_000)
    points = np.concatenate([linear, small, -small, [low, high]])
    points = points[(points >= low) & (points <= high)]
    return points.astype(np.float32)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_float32_are_within_two_ulp(name: str) -> None:
    function, low, high = FUNCTIONS[name]
    x = spread(low, high)
    result = np.empty_like(x)
    program = [("load", F32, 0, 0, 0), (name, F32, 0, 0, 0)]
    assert run(elementwise(program, ["float32"] * 2, x.shape), [x, result]) == ""
    want = np.array([function(v) for v in x.tolist()])
    ulp = np.spacing(np.abs(want).astype(np.float32)).astype(np.float64)
    assert np.max(np.abs(result - want) / ulp) <= 2


@pytest.mark.parametrize(
    ("name", "function"),
    [("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("div", np.divide),
     ("max", np.maximum), ("min", np.minimum), ("pow", np.power)],
)  # fmt: skip
def test_operations_on_pairs_are_within_one_ulp(name: str, function) -> None:
    rng = np.random.default_rng(1)
    x, y = (rng.lognormal(0, 2, 3000).astype(np.float32) for _ in range(2))
    result = np.empty_like(x)
    program = [("load", F32, 0, 0, 0), ("load", F32, 1, 0, 0), (name, F32, 0, 1, 0)]
    with np.errstate(over="ignore"):
        want = function(x.astype(np.float64), y.astype(np.float64))
        want32 = want.astype(np.float32)
    assert run(elementwise(program, ["float32"] * 3, x.shape), [x, y, result]) == ""
    finite = np.isfinite(want32) & (want32 > 1e-37)
    ulp = np.spacing(want32[finite]).astype(np.float64)
    assert np.max(np.abs(result[finite] - want[finite]) / ulp) <= 1


@pytest.mark.parametrize("power", [-3, -1, 0, 1, 2, 3, 4, 5, 17])
def test_integer_powers_are_within_two_ulp(power: int) -> None:
    x = np.random.default_rng(2).lognormal(0, 1, 2000).astype(np.float32)
    result = np.empty_like(x)
    program = [("load", F32, 0, 0, 0), ("integer_pow", F32, 0, power, 0)]
    assert run(elementwise(program, ["float32"] * 2, x.shape), [x, result]) == ""
    want = x.astype(np.float64) ** power
    assert np.max(np.abs(result - want) / np.spacing(want.astype(np.float32))) <= 2


def test_special_values_go_through_as_in_the_c_library() -> None:
    x = floats([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45])
    erf, erfc = (np.vectorize(f, [np.float32]) for f in (math.erf, math.erfc))
    functions = {"exp": np.exp, "log": np.log, "tanh": np.tanh}
    for name, function in (functions | {"erf": erf, "erfc": erfc}).items():
        result = np.empty_like(x)
        program = [("load", F32, 0, 0, 0), (name, F32, 0, 0, 0)]
        assert run(elementwise(program, ["float32"] * 2, x.shape), [x, result]) == ""
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(result, function(x), rtol=2e-7, err_msg=name)


def test_integers_wrap_around_and_floats_saturate() -> None:
    x = np.array([2**31 - 1, -(2**31), 5], np.int32)
    result = np.empty_like(x)
    program = [("load", S32, 0, 0, 0), ("add", S32, 0, 0, 0)]
    assert run(elementwise(program, ["int32"] * 2, x.shape), [x, result]) == ""
    assert result.tolist() == [-2, 0, 10]
    y = floats([np.nan, 3e9, -3e9, -1.5])
    result = np.empty(4, np.int32)
    program = [("load", F32, 0, 0, 0), ("convert", S32, 0, 0, 0)]
    assert run(elementwise(program, ["float32", "int32"], (4,)), [y, result]) == ""
    assert result.tolist() == [0, 2**31 - 1, -(2**31), -1]


def test_float16_is_rounded_to_nearest_even() -> None:
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    every = every[np.isfinite(every)].astype(np.float32)
    between = np.nextafter(every, np.float32(0)) * np.float32(1.0003)
    x = np.concatenate([every, between, floats([65519, 65520, 1e30, -1e-9])])
    result = np.empty(x.shape, np.float16)
    program = [("load", F32, 0, 0, 0), ("round_f16", F32, 0, 0, 0)]
    words = elementwise(program, ["float32", "float16"], x.shape)
    assert run(words, [x, result]) == ""
    with np.errstate(over="ignore"):
        want = x.astype(np.float16)
    assert (result.view(np.uint16) == want.view(np.uint16)).all()


def test_float64_is_computed_in_float64() -> None:
    x = np.linspace(0.1, 3, 700)
    result = np.empty_like(x)
    program = [("load", F64, 0, 0, 0), ("log", F64, 0, 0, 0)]
    assert run(elementwise(program, ["float64"] * 2, x.shape), [x, result]) == ""
    np.testing.assert_allclose(result, np.log(x), rtol=1e-14)


# Bad input


@pytest.mark.parametrize(
    "words",
    [elementwise(MULTIPLY_ADD, ["float32"] * 3, (3,)),
     of_rows(SOFTMAX, ["float32"] * 2, 2, 3), WITH_KEY],
    ids=["elementwise", "rows", "key"],
)  # fmt: skip
def test_a_program_cut_short_or_continued_is_refused(words: list[int]) -> None:
    assert check(words) == ""
    for size in range(len(words)):
        assert check(words[:size]) != ""
    assert "follow" in check([*words, 0])


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, 2, "version 2"),
        (1, 9, "rank"),
        (3, -1, "maps"),
        (4, 99, "operands"),
        (5, 0, "no instructions"),
        (6, -3, "dimensions"),
        (6, 4, "beyond its 3 elements"),
        (6, 2**62, "dimensions"),
        (7, 2, "beyond"),
        (7, -1, "stride"),
        (7, 0, "not dense"),
        (8, 7, "element type"),
        (9, 1, "map"),
        (10, -1, "rank"),
        (20, 50, "opcode"),
        (20, -1, "opcode"),
        (21, 5, "type"),
        (22, 2, "operand"),
        (26, F64, "mixed types"),
        (27, 1, "not before"),
        (35, 3, "no such type"),
        (36, U32, "mixed types"),
    ],
)
def test_what_is_wrong_with_a_program_is_said(at, value, message) -> None:
    words = elementwise(MULTIPLY_ADD, ["float32"] * 3, (3,))
    words[at] = value
    assert message in check(words)


def test_buffers_that_overlap_are_refused() -> None:
    memory = np.zeros(16, np.float32)
    words = elementwise(MULTIPLY_ADD, ["float32"] * 3, (8,))
    far = np.zeros(8, np.float32)
    assert run(words, [memory[:8], far, memory[8:]]) == ""
    assert "overlaps" in run(words, [memory[:8], far, memory[4:12]])


def test_a_buffer_out_of_alignment_is_refused() -> None:
    memory = np.zeros(65, np.uint8)[1:].view(np.float32)[:3]
    words = elementwise([("load", F32, 0, 0, 0)], ["float32"] * 2, (3,))
    assert "aligned" in run(words, [memory, np.zeros(3, np.float32)])


def test_a_key_may_not_be_overwritten() -> None:
    words = [1, 1, 1, 2, 1, 1, 2, 0, 1, 5, 1, 1, 2, 5, 1, 1, 2, 3, U32, 0, 1, 0]
    key = np.array([1, 2], np.uint32)
    assert run(words, [key, np.zeros(2, np.uint32)]) == ""
    assert "overlaps" in run(words, [key, key])


def test_more_values_at_once_than_registers_are_refused() -> None:
    loads = [("load", F32, 0, 0, 0)] * 70
    sums = [("add", F32, 69 if k == 0 else 69 + k, k, 0) for k in range(69)]
    words = elementwise([*loads, *sums], ["float32"] * 2, (3,))
    assert "registers" in check(words)


GUARD = 64


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_no_program_touches_bytes_outside_of_its_buffers(data) -> None:
    seeds = [
        elementwise(MULTIPLY_ADD, ["float32"] * 3, (6,)),
        of_rows(SOFTMAX, ["float32"] * 2, 2, 3),
        WITH_KEY,
    ]
    words = list(data.draw(st.sampled_from(seeds)))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(words) - 1))
        words[at] = data.draw(
            st.one_of(st.integers(-2, 60), st.integers(-(2**63), 2**63 - 1))
        )
    if check(words):
        return
    # The layout of the words says which buffers the program takes.
    rank, maps, operands = words[1], words[3], words[4]
    at, buffers = 6 + rank + rank * maps, []
    for _ in range(operands + 1):
        storage, dims = words[at], words[at + 2]
        shape = words[at + 3 : at + 3 + dims]
        at += 3 + dims
        size = math.prod(shape)
        if size > 4096:
            return
        width = (4, 8, 2, 2, 4, 4, 1)[storage]
        memory = np.full(2 * GUARD + size * width, 0xA5, np.uint8)
        buffers.append((memory, memory[GUARD : GUARD + size * width]))
    before = [memory.copy() for memory, _ in buffers]
    if run(words, [inner for _, inner in buffers]):
        return
    for (memory, inner), old in zip(buffers[:-1], before[:-1], strict=True):
        assert (memory == old).all(), inner
    memory, _ = buffers[-1]
    assert (memory[:GUARD] == 0xA5).all()
    assert (memory[len(memory) - GUARD :] == 0xA5).all()


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
