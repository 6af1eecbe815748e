"""Which equations become ops, by buffers as XLA:GPU lays them out."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from coop_jax._fitting.compile import flat_step
from coop_jax._program.cost import RANDOM, RATES
from coop_jax._program.hlo import OwnedBuffer
from coop_jax._program.profile import Profile, profile
from coop_jax._program.scopes import scope
from coop_jax._program.trace import Program
from coop_jax._program.units import has_call

WIDTH = 64
BYTES = WIDTH * WIDTH * 4


def residual(x, weights, biases, is_turned):
    for weight, bias in zip(weights, biases, strict=True):
        hidden = jnp.tanh(x)
        # As `vmap` of `weight @ x` has it.
        x = x + (((weight.T @ hidden.T).T if is_turned else hidden @ weight) + bias)
    return jnp.sum(jnp.sin(x))


def layers(count: int, is_turned: bool = False) -> Program:
    square = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    row = jax.ShapeDtypeStruct((WIDTH,), jnp.float32)
    args = (square, [square] * count, [row] * count)

    def step(x, weights, biases):
        return residual(jnp.cos(x), weights, biases, is_turned)

    traced = jax.jit(step).trace(*args)
    return flat_step(traced, jax.tree.leaves(args)).program


def equations(program: Program, name: str) -> list[int]:
    return [k for k, e in enumerate(program.equations) if e.primitive.name == name]


def buffer(k: int, opcode: str, place: int, size: int = BYTES) -> OwnedBuffer:
    return OwnedBuffer(scope(k), opcode, size, 0, place * BYTES, True)


def products(program: Program) -> list[int]:
    """What names the library calls: a product, or its transpose if it has one."""
    dots = equations(program, "dot_general")
    after = [program.equations[k + 1].primitive.name for k in dots]
    return [k + (n == "transpose") for k, n in zip(dots, after, strict=True)]


def onto_copies(program: Program) -> list[OwnedBuffer]:
    """Each product is written onto a copy of the stream, which is still to be read."""
    found, place = [], 0
    stream = equations(program, "cos")[0]
    found.append(buffer(stream, "fusion", place))
    for k, tanh in zip(products(program), equations(program, "tanh"), strict=True):
        place += 1
        found += [
            buffer(tanh, "fusion", 100),
            buffer(stream, "copy", place),
            buffer(k, "custom-call", place),
            buffer(k, "custom-call", 200, 256),
        ]
        stream = k
    return found


def apart(program: Program) -> list[OwnedBuffer]:
    """Each product has a place of its own."""
    return [
        buffer(k, "custom-call" if name == "dot_general" else "fusion", place)
        for name in ("cos", "tanh", "dot_general")
        for place, k in enumerate(equations(program, name), len(name) * 50)
    ]


def profiled(program: Program, buffers: list[OwnedBuffer]) -> Profile:
    return profile(program, buffers, 0, "gpu")


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_a_product_onto_the_stream_is_the_stream(count: int, is_turned: bool) -> None:
    program = layers(count, is_turned)
    found = profiled(program, onto_copies(program))
    names = [op.name for op in found.problem.ops]
    assert names == ["cos", *["tanh", "add"] * count, "reduce_sum"]
    for at, op in enumerate(found.problem.ops):
        if op.name != "add":
            continue
        inside = [program.equations[k].primitive.name for k in found.units[at].inlined]
        assert inside.count("dot_general") == 1
        assert inside[-2:] == ["broadcast_in_dim", "add"]
        stream = found.problem.ops[at - 2 if at > 2 else 0].outputs[0]
        assert stream in op.inputs
        # Where nothing reads it any more, no copy is needed.
        assert op.in_place == ((stream, op.outputs[0]),)
        assert op.workspace == 256


def test_a_copy_under_another_name_leaves_only_the_first_product_apart() -> None:
    program = layers(3)
    buffers = onto_copies(program)
    (first,) = (b for b in buffers if b.opcode == "copy" and b.offset == BYTES)
    named = scope(equations(program, "tanh")[0])
    buffers[buffers.index(first)] = dataclasses.replace(first, op_name=named)
    found = profiled(program, buffers)
    assert sum(has_call(program.equations, unit) for unit in found.units) == 2
    products = [op for op in found.problem.ops if op.name == "dot_general"]
    assert len(products) == 1


def test_a_product_in_a_place_of_its_own_is_an_op_of_its_own() -> None:
    program = layers(3)
    found = profiled(program, apart(program))
    assert [op.name for op in found.problem.ops].count("dot_general") == 3
    assert not any(has_call(program.equations, unit) for unit in found.units)


def test_the_product_in_a_sum_costs_what_products_do() -> None:
    program = layers(1)
    merged = profiled(program, onto_copies(program)).problem
    own = profiled(program, apart(program)).problem
    (add,) = (op for op in merged.ops if op.name == "add")
    (dot,) = (op for op in own.ops if op.name == "dot_general")
    rates = RATES["gpu"]
    assert rates.traffic * rates.launch < dot.cost <= add.cost


def test_a_gradient_turned_twice_on_its_way_into_a_sum_is_not_turned() -> None:
    square = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)

    def tied(x, dlogits, embedded):
        # The weight of `hidden @ embedding.T`, whose other gradient is a scatter.
        gradient = (x.T @ dlogits).T.T + jnp.cumsum(embedded, 0)
        norm = jnp.sum(gradient * gradient)
        return jnp.sin(gradient), jnp.cos(gradient) * norm

    args = (square,) * 3
    traced = jax.jit(tied).trace(*args)
    program = flat_step(traced, jax.tree.leaves(args)).program
    held = ("dot_general", "cumsum", "sin", "cos")
    buffers = [
        buffer(k, "fusion", place)
        for place, name in enumerate(held)
        for k in equations(program, name)
    ]
    found = profiled(program, buffers)
    # The sum lets go of both its terms; then nothing else reads the transposes.
    names = [op.name for op in found.problem.ops]
    assert "add" in names
    assert "transpose" not in names


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_conversion_owns_what_xla_wrote_of_it_before_it_was_padded(
    platform: str,
) -> None:
    """As the gradient of sliced logits, for the two products that read it."""

    def step(x, y, w):
        padded = jax.lax.pad(jnp.tanh(x) + jnp.sin(y), 0.0, [(0, 64, 0), (0, 0, 0)])
        converted = padded.astype(jnp.bfloat16)
        return converted @ w, converted.T @ converted

    shape, dtype = (WIDTH, WIDTH), jnp.bfloat16
    x, w = jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct(shape, dtype)
    program = flat_step(jax.jit(step).trace(x, x, w), [x, x, w]).program
    (tanh,), (sin,), (pad,) = (equations(program, n) for n in ("tanh", "sin", "pad"))
    buffers = [buffer(tanh, "fusion", 0), buffer(sin, "fusion", 1)]
    # Twice the rows in half the bytes each.
    buffers.append(buffer(pad, "fusion", 2))
    found = profile(program, buffers, 0, platform).problem
    names = [op.name.split(" ")[0] for op in found.ops]
    assert "pad" not in names
    # The sum can overwrite what it lets go of; with room it is no kernel of its own.
    assert ("add" in names) == (platform == "gpu")
    (conversion,) = (found.ops[k] for k, n in enumerate(names) if n.startswith("conv"))
    assert [found.values[v].size for v in conversion.outputs] == [BYTES]


@pytest.mark.parametrize("is_read_elsewhere", [False, True])
def test_what_multiplies_by_a_number_owns_what_bears_the_name_of_spreading_it(
    is_read_elsewhere: bool,
) -> None:
    """As the gradient of a mean of squares."""

    def step(x, y):
        spread = jnp.broadcast_to(jnp.sum(x), x.shape)
        return (jnp.tanh(y) * spread) @ x, spread if is_read_elsewhere else None

    x = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    program = flat_step(jax.jit(step).trace(x, x), [x, x]).program
    names = ("tanh", "broadcast_in_dim")
    ks = [equations(program, name)[0] for name in names]
    buffers = [buffer(k, "fusion", place) for place, k in enumerate(ks)]
    ops = [
        op.name.split(" ")[0] for op in profile(program, buffers, 0, "gpu").problem.ops
    ]
    assert ("broadcast_in_dim" in ops) == is_read_elsewhere
    assert ("mul" in ops) == (not is_read_elsewhere)


def test_what_a_kernel_sums_up_beside_does_not_keep_it_from_overwriting() -> None:
    def step(x, y):
        return jnp.cos(jnp.tanh(x) - jnp.sum(jnp.sin(y), axis=1, keepdims=True)) @ x

    x = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    program = flat_step(jax.jit(step).trace(x, x), [x, x]).program
    names = ("tanh", "sin", "cos")
    ks = [equations(program, name)[0] for name in names]
    buffers = [buffer(k, "fusion", place) for place, k in enumerate(ks)]
    problem = profile(program, buffers, 0, "gpu").problem
    tanh, sin, cos = (
        next(op for op in problem.ops if op.name.startswith(name)) for name in names
    )
    assert {*tanh.outputs, *sin.outputs} <= {*cos.inputs}
    assert cos.in_place == ((tanh.outputs[0], cos.outputs[0]),)


@pytest.mark.parametrize("is_written", [False, True])
def test_random_words_are_part_of_a_mask_unless_xla_wrote_them(
    monkeypatch, is_written
) -> None:
    # On GPU JAX itself draws in a straight line.
    monkeypatch.setattr("coop_jax._fitting.compile.in_line", lambda program: program)

    def step(key, x):
        mask = jax.random.bernoulli(key, 0.5, x.shape)
        return jnp.where(mask, jnp.where(mask, x, 0) @ x, 0) @ x

    key = jax.eval_shape(lambda: jax.random.key(0))
    square = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    traced = jax.jit(step).trace(key, square)
    program = flat_step(traced, [key, square]).program
    (drawn,) = equations(program, "random_bits")
    buffers = [buffer(drawn, "fusion", 0)] if is_written else []
    # Arithmetic alone.
    rates = dataclasses.replace(RATES["gpu"], traffic=0.0)
    found = profile(program, buffers, 0, "gpu", rates)
    names = [op.name for op in found.problem.ops]
    assert names.count("random_bits") == is_written
    mask = found.problem.ops[names.index("lt")]
    words = RANDOM["random_bits"] * WIDTH * WIDTH / rates.flops
    assert (mask.cost > words) == (not is_written)
    sizes = [found.problem.values[v].size for v in mask.outputs]
    assert sizes == [WIDTH * WIDTH]
    # On CPU JAX draws in a loop, which XLA fuses with nothing.
    names = [op.name for op in profile(program, [], 0, "cpu").problem.ops]
    assert names.count("random_bits") == 1


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
