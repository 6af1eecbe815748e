"""What XLA assigned, read back from the compiled program."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from google.protobuf import json_format
from jax import lax

from coop_jax._program.hlo import (
    OwnedBuffer,
    dump_directory,
    dump_options,
    owned_buffers,
)
from coop_jax._program.hlo_messages import message_class
from coop_jax._program.scopes import place_of


def float32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def compiled(function: Callable, *args: Any, **options: Any) -> Any:
    return jax.jit(function, **options).lower(*args).compile()


def named(buffers: list[OwnedBuffer], name: str) -> list[OwnedBuffer]:
    return [
        buffer
        for buffer in buffers
        if f"{name}/" in buffer.op_name and buffer.origin == "equation"
    ]


def three_products(x, w):
    with jax.named_scope("first"):
        x = x @ w
    with jax.named_scope("chain"):
        x = jnp.exp(jnp.tanh(x) * 2) + 1
    with jax.named_scope("second"):
        x = x @ w
    with jax.named_scope("last"):
        return jnp.sum(x)


def test_every_result_has_its_name_and_its_size() -> None:
    buffers = owned_buffers(compiled(three_products, float32(64, 32), float32(32, 32)))
    for name in ("first", "chain", "second"):
        (buffer,) = named(buffers, name)
        assert buffer.size == 64 * 32 * 4, name
        assert buffer.is_temporary, name
    (last,) = named(buffers, "last")
    assert last.size == 4
    assert not last.is_temporary


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="layouts of XLA:CPU")
def test_a_copy_turned_around_for_a_product_is_told_apart() -> None:
    def step(x, y, w):
        with jax.named_scope("made"):
            y = jnp.tanh(y)
        with jax.named_scope("product"):
            gradient = lax.dot_general(y, x, (((0, 1), (0, 1)), ((), ()))).T
        return gradient * 2, jnp.sum(jnp.sin(y @ w))

    shapes = float32(8, 64, 32), float32(8, 64, 128), float32(128, 32)
    value, copy = named(owned_buffers(compiled(step, *shapes)), "made")
    assert value.size == copy.size == 8 * 64 * 128 * 4
    assert not value.turned_for
    assert "product/" in copy.turned_for


def test_what_xla_makes_of_constants_alone_is_told_apart() -> None:
    def pooled(x):
        pool = lambda x: lax.reduce_window(  # noqa: E731
            x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"
        )
        with jax.named_scope("pooled"):
            return jax.grad(lambda x: jnp.sum(jnp.sin(pool(x))))(x)

    buffers = owned_buffers(compiled(pooled, float32(8, 33, 33, 64)))
    made_up = [b for b in buffers if b.origin == "constants" and b.size > 1 << 20]
    # XLA:CPU writes out the gradient of a maximum pool with arrays of indices.
    assert made_up
    assert all(b.is_temporary for b in made_up)
    assert all("pooled" in b.op_name for b in made_up), "named after what reads it"
    assert not any(b.op_name == "" and b.origin != "constants" for b in buffers)


# A fusion that writes the maximum of its operand and zeros, and the zeros as well.
FUSED_ZEROS = {
    "module": {
        "entry_computation_id": 1,
        "computations": [
            {
                "id": 1,
                "root_id": 13,
                "instructions": [
                    {"id": 10, "opcode": "parameter"},
                    {
                        "id": 11,
                        "opcode": "fusion",
                        "operand_ids": [10],
                        "called_computation_ids": [2],
                        "metadata": {"op_name": "relu"},
                    },
                    {
                        "id": 12,
                        "opcode": "get-tuple-element",
                        "operand_ids": [11],
                        "tuple_index": 1,
                    },
                    {
                        "id": 13,
                        "opcode": "scatter",
                        "operand_ids": [12],
                        "metadata": {"op_name": "gradient"},
                    },
                ],
            },
            {
                "id": 2,
                "root_id": 24,
                "instructions": [
                    {"id": 20, "opcode": "parameter"},
                    {"id": 21, "opcode": "constant"},
                    {"id": 22, "opcode": "broadcast", "operand_ids": [21]},
                    {
                        "id": 23,
                        "opcode": "maximum",
                        "operand_ids": [20, 22],
                        "metadata": {"op_name": "relu"},
                    },
                    {"id": 24, "opcode": "tuple", "operand_ids": [23, 22]},
                ],
            },
        ],
    },
    "buffer_assignment": {
        "logical_buffers": [
            {"id": i, "defined_at": {"shape_index": [i], "instruction_id": 11}}
            for i in range(2)
        ],
        "allocations": [
            {"assigned": [{"logical_buffer_id": i, "size": 64} for i in range(2)]}
        ],
    },
}


# A fusion that multiplies what it adds up by an array of a constant.
SPREAD = {
    "module": {
        "entry_computation_id": 1,
        "computations": [
            {
                "id": 1,
                "root_id": 13,
                "instructions": [
                    {"id": 10, "opcode": "parameter"},
                    {"id": 11, "opcode": "constant"},
                    {"id": 12, "opcode": "broadcast", "operand_ids": [11]},
                    {
                        "id": 13,
                        "opcode": "fusion",
                        "operand_ids": [10, 12],
                        "called_computation_ids": [2],
                        "metadata": {"op_name": "sum"},
                    },
                ],
            },
            {
                "id": 2,
                "root_id": 24,
                "instructions": [
                    {"id": 20, "opcode": "parameter"},
                    {"id": 21, "opcode": "parameter", "parameter_number": 1},
                    {
                        "id": 22,
                        "opcode": "sine",
                        "operand_ids": [20],
                        "metadata": {"op_name": "sin"},
                    },
                    {
                        "id": 23,
                        "opcode": "multiply",
                        "operand_ids": [22, 21],
                        "metadata": {"op_name": "mul"},
                    },
                    {
                        "id": 24,
                        "opcode": "reduce",
                        "operand_ids": [23],
                        "metadata": {"op_name": "sum"},
                    },
                ],
            },
        ],
    },
    "buffer_assignment": {
        "logical_buffers": [{"id": 0, "defined_at": {"instruction_id": 12}}],
        "allocations": [{"assigned": [{"logical_buffer_id": 0, "size": 64}]}],
    },
}


def dumped(directory: Path, message: dict[str, Any]) -> str:
    """Writes it where XLA would have written a module and its assignment."""
    written = json_format.ParseDict(message, message_class("Hlo")())
    path = directory / "module.after_optimizations.hlo.pb"
    path.write_bytes(written.SerializeToString())
    return str(directory)


def test_constants_that_a_fusion_writes_beside_its_result_are_told_apart(
    tmp_path: Path,
) -> None:
    buffers = owned_buffers(None, dumped(tmp_path, FUSED_ZEROS))
    found = [(b.op_name, b.origin) for b in buffers]
    assert found == [("relu", "equation"), ("gradient", "constants")]


def test_what_reads_constants_inside_of_a_fusion_is_found(tmp_path: Path) -> None:
    (made_up,) = owned_buffers(None, dumped(tmp_path, SPREAD))
    assert (made_up.op_name, made_up.origin) == ("sum", "constants")
    assert made_up.read_inside == ("mul",)


def test_what_others_read_too_is_not_said_to_be_read_inside(tmp_path: Path) -> None:
    spread = copy.deepcopy(SPREAD)
    other = {"id": 14, "opcode": "scatter", "operand_ids": [12]}
    spread["module"]["computations"][0]["instructions"].append(other)
    (made_up,) = owned_buffers(None, dumped(tmp_path, spread))
    assert made_up.read_inside == ()


def loop(number: int, name: str, body: int) -> dict[str, Any]:
    loop = {"id": number, "opcode": "while", "metadata": {"op_name": name}}
    return {**loop, "called_computation_ids": [body]}


def bodies_named_after_the_first() -> dict[str, Any]:
    """Two loops with loops inside, as XLA:GPU leaves them where bodies are equal."""
    outer = [f"step/coop_eqn_{k}/while" for k in (1, 2)]
    inner = f"{outer[0]}/body/coop_row_3/while"
    constant = {"opcode": "broadcast", "metadata": {"op_name": "step/coop_eqn_0/zeros"}}
    sine = {"opcode": "sine", "metadata": {"op_name": f"{inner}/body/coop_row_1/sin"}}
    loops = [loop(10 + k, name, 20 + k) for k, name in enumerate(outer)]
    computations: list[dict[str, Any]] = [{"id": 1, "instructions": loops}]
    for k in range(2):
        inside = [loop(30 + k, inner, 40 + k), {"id": 50 + k, **constant}]
        computations.append({"id": 20 + k, "instructions": inside})
        computations.append({"id": 40 + k, "instructions": [{"id": 60 + k, **sine}]})
    numbers = (50, 51, 60, 61)
    return {
        "module": {"entry_computation_id": 1, "computations": computations},
        "buffer_assignment": {
            "logical_buffers": [
                {"id": n, "defined_at": {"instruction_id": n}} for n in numbers
            ],
            "allocations": [{"assigned": [{"logical_buffer_id": n} for n in numbers]}],
        },
    }


def test_equal_bodies_are_named_after_the_loops_that_run_them(tmp_path: Path) -> None:
    buffers = owned_buffers(None, dumped(tmp_path, bodies_named_after_the_first()))
    places = [place_of(buffer.op_name) for buffer in buffers]
    assert places == [(0,), (0,), (1, 3, 1), (2, 3, 1)]


def padded(name: str) -> dict[str, Any]:
    """A relu fused into a pad of this name, which two convolutions of cuDNN read."""
    convolutions = [
        {
            "id": 12 + i,
            "opcode": "custom-call",
            "operand_ids": [11],
            "custom_call_target": f"__cudnn$conv{kind}",
            "metadata": {"op_name": f"{kind}/conv_general_dilated"},
        }
        for i, kind in enumerate(("Forward", "BackwardFilter"))
    ]
    fusion = {
        "id": 11,
        "opcode": "fusion",
        "operand_ids": [10],
        "called_computation_ids": [2],
    }
    pad = {
        "id": 22,
        "opcode": "pad",
        "operand_ids": [21],
        "metadata": {"op_name": name},
    }
    relu = {"id": 21, "opcode": "maximum", "operand_ids": [20]}
    parameters = [{"id": i, "opcode": "parameter"} for i in (10, 20)]
    entry = [parameters[0], fusion, *convolutions]
    logical = {"id": 0, "defined_at": {"instruction_id": 11}}
    return {
        "module": {
            "entry_computation_id": 1,
            "computations": [
                {"id": 1, "root_id": 13, "instructions": entry},
                {"id": 2, "root_id": 22, "instructions": [parameters[1], relu, pad]},
            ],
        },
        "buffer_assignment": {
            "logical_buffers": [logical],
            "allocations": [{"assigned": [{"logical_buffer_id": 0, "size": 64}]}],
        },
    }


def test_what_cudnn_wants_padded_belongs_to_each_convolution_that_reads_it(
    tmp_path: Path,
) -> None:
    made_up = owned_buffers(None, dumped(tmp_path, padded("relu/max")))
    assert [(b.op_name, b.origin) for b in made_up] == [
        ("Forward/conv_general_dilated", "reader"),
        ("BackwardFilter/conv_general_dilated", "reader"),
    ]
    written = owned_buffers(None, dumped(tmp_path, padded("relu/pad")))
    assert [(b.op_name, b.origin) for b in written] == [("relu/pad", "equation")]


def test_a_fused_chain_has_one_buffer_named_after_its_last_equation() -> None:
    buffers = owned_buffers(compiled(three_products, float32(64, 32), float32(32, 32)))
    (chain,) = named(buffers, "chain")
    assert chain.op_name.endswith("chain/add")


def test_temporaries_lie_within_the_block_that_xla_measures() -> None:
    program = compiled(three_products, float32(64, 32), float32(32, 32))
    temporary = [b for b in owned_buffers(program) if b.is_temporary]
    assert len({buffer.allocation for buffer in temporary}) == 1
    reach = max(buffer.offset + buffer.size for buffer in temporary)
    assert reach == program.memory_analysis().temp_size_in_bytes


def test_arguments_are_nobodys_result() -> None:
    buffers = owned_buffers(compiled(lambda x: jnp.sin(x), float32(64, 32)))
    assert [buffer.size for buffer in buffers] == [64 * 32 * 4]
    assert all(buffer.opcode != "parameter" for buffer in buffers)


def test_a_donated_argument_holds_the_result_that_takes_its_bytes() -> None:
    update = compiled(lambda w, g: w - g, *[float32(64, 32)] * 2, donate_argnums=0)
    (buffer,) = owned_buffers(update)
    assert update.memory_analysis().alias_size_in_bytes == buffer.size
    assert not buffer.is_temporary


def test_each_result_of_a_fusion_has_its_own_name() -> None:
    def both(x):
        with jax.named_scope("plus"):
            plus = x + 1
        with jax.named_scope("halved"):
            halved = (plus * 0.5).astype(jnp.bfloat16)
        return plus, halved

    buffers = owned_buffers(compiled(both, float32(64, 32)))
    assert [b.size for b in named(buffers, "plus")] == [64 * 32 * 4]
    assert [b.size for b in named(buffers, "halved")] == [64 * 32 * 2]


def test_nothing_takes_over_what_a_library_call_wrote_beside_other_results() -> None:
    def step(x):
        with jax.named_scope("found"):
            values, places = lax.top_k(x, 1024)
        with jax.named_scope("read"):
            passed = lax.optimization_barrier(jnp.tanh(values))
        return passed @ passed.T, places.sum()

    buffers = owned_buffers(compiled(step, float32(64, 4096)))
    results = [b for b in named(buffers, "found") if b.size == 64 * 1024 * 4]
    assert [b.is_viewed for b in results] == [True, True]
    [reader] = named(buffers, "read")
    assert reader.size == results[0].size and not reader.is_viewed
    assert reader.place not in [b.place for b in results]


def looped(x, w):
    with jax.named_scope("before"):
        x = x @ w
    with jax.named_scope("loop"):
        x = lax.fori_loop(0, 3, lambda i, x: jnp.tanh(x @ w), x)
    with jax.named_scope("after"):
        return jnp.sum(x @ w)


def random(x, key):
    with jax.named_scope("draw"):
        bits = jax.random.bits(key, x.shape)
    return jnp.where(bits > 7, x, 0) @ x.T


# The tuple of the loop lies in the same block as everything else.
@pytest.mark.parametrize(
    ("function", "args", "names"),
    [
        (looped, (float32(64, 32), float32(32, 32)), ("before", "after")),
        (random, (float32(64, 32), jax.eval_shape(jax.random.key, 0)), ("draw",)),
    ],
    ids=["loop", "random bits"],
)
def test_a_loop_hides_no_temporaries(
    function: Callable, args: tuple, names: tuple[str, ...]
) -> None:
    program = compiled(function, *args)
    buffers = owned_buffers(program)
    temporary = [buffer for buffer in buffers if buffer.is_temporary]
    reach = max((b.offset + b.size for b in temporary), default=0)
    assert reach >= 0.95 * program.memory_analysis().temp_size_in_bytes
    for name in names:
        assert max(b.size for b in named(buffers, name)) == 64 * 32 * 4, name


def test_a_dump_says_what_the_compiled_program_says() -> None:
    lowered = jax.jit(three_products).lower(float32(64, 32), float32(32, 32))
    with dump_directory() as directory:
        program = lowered.compile(compiler_options=dump_options(directory))
        assert owned_buffers(program, directory) == owned_buffers(program)


def test_a_dump_that_is_not_there_is_an_error() -> None:
    with dump_directory() as directory:
        with pytest.raises(RuntimeError, match="xla_dump_to"):
            owned_buffers(None, directory)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
