"""From equations to ops: what owns bytes, what is computed inside of what."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import io_callback

import coop_jax
from coop_jax._fitting.compile import FlatStep, flat_step
from coop_jax._measure import MemoryUse, memory_use
from coop_jax._planning.validate import live_bytes, validate
from coop_jax._program.cost import RATES
from coop_jax._program.hlo import OwnedBuffer
from coop_jax._program.nameless import named
from coop_jax._program.profile import Profile, profile
from coop_jax._program.scopes import scope
from coop_jax._program.units import Graph


def float32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


KEY = jax.eval_shape(jax.random.key, 0)
SQUARE = float32(64, 64)


def profiled(
    function: Callable, *args: Any, **options: Any
) -> tuple[Profile, FlatStep, MemoryUse]:
    traced = jax.jit(function, **options).trace(*args)
    step = flat_step(traced, jax.tree.leaves(args))
    program = step.program
    compiled, buffers = step.compile_with_buffers(
        lambda *values: program.evaluate(values, scope)
    )
    memory = memory_use(compiled)
    return profile(program, buffers, memory.fixed, "cpu"), step, memory


ELEMENTWISE = [
    jnp.arccos, jnp.arccosh, jnp.arcsin, jnp.arcsinh, jnp.arctan, jnp.arctanh, jnp.cosh,
    jnp.log2, jnp.sinh, lambda x: lax.real(lax.conj(lax.complex(x, x))),
    jax.grad(lambda x: jax.nn.gelu(x, approximate=False).sum()),
]  # fmt: skip


@pytest.mark.parametrize("function", ELEMENTWISE)
def test_any_elementwise_function_is_computed_in_what_reads_it(function) -> None:
    def chain(x, w):
        return (function(x @ w) + 1) @ w

    found, _, _ = profiled(chain, SQUARE, SQUARE)
    assert ops(found) == ["dot_general", "add", "dot_general"]


def ops(found: Profile) -> list[str]:
    return [op.name for op in found.problem.ops]


def inlined(found: Profile, op: str) -> list[str]:
    """Names of the equations computed inside the first op of that name."""
    unit = found.units[ops(found).index(op)]
    return [found.program.equations[k].primitive.name for k in unit.inlined]


def test_an_elementwise_chain_is_one_op() -> None:
    def chain(x, w):
        return (jnp.exp(jnp.tanh(x @ w) * 2) + 1) @ w

    found, _, _ = profiled(chain, SQUARE, SQUARE)
    assert ops(found) == ["dot_general", "add", "dot_general"]
    assert inlined(found, "add") == ["tanh", "mul", "exp"]
    add = found.problem.ops[1]
    assert [found.problem.values[v].size for v in add.outputs] == [64 * 64 * 4]
    assert add.in_place == ((add.inputs[0], add.outputs[0]),)


def test_traffic_costs_the_share_that_it_counts_for() -> None:
    def chain(x, w):
        return (jnp.exp(jnp.tanh(x @ w) * 2) + 1) @ w

    _, step, _ = profiled(chain, SQUARE, SQUARE)
    program = step.program
    _, buffers = step.compile_with_buffers(lambda *v: program.evaluate(v, scope))
    rates = RATES["cpu"]
    whole, quarter = (
        [op.cost for op in profile(program, buffers, 0, "cpu", each).problem.ops]
        for each in (rates, dataclasses.replace(rates, traffic=0.25))
    )
    spared = [a - b for a, b in zip(whole, quarter, strict=True)]
    # The sum reads one array and writes one, products read two.
    arrays = [3, 2, 3]
    assert spared == pytest.approx(
        [0.75 * (n * 64 * 64 * 4 / rates.bytes + rates.launch) for n in arrays]
    )


def test_on_gpu_a_value_again_costs_less_what_is_not_written_nor_read() -> None:
    def kept(x, w):
        weights = jnp.exp(x @ x)  # its sum and the product at the end take it in
        y = x
        for _ in range(8):
            y = y @ w
        return jnp.sum(weights), weights * y

    _, step, _ = profiled(kept, SQUARE, SQUARE)
    program = step.program
    (exp,) = (k for k, e in enumerate(program.equations) if e.primitive.name == "exp")
    rates = RATES["gpu"]
    joined, apart = (
        profile(program, [owned_by(program, exp)], 0, "gpu", each)
        for each in (rates, dataclasses.replace(rates, joins=False))
    )
    once, alone = joined.problem, apart.problem
    cheaper = [
        (old.name, new.cost / old.cost)
        for old, new in zip(alone.ops, once.ops, strict=True)
        if new.cost != old.cost
    ]
    # What the exponentials spare beyond their own cost their product does.
    assert [name for name, _ in cheaper] == ["dot_general", "exp"]
    assert cheaper[1][1] == pytest.approx(0.01)
    assert once.cost(once.program_order) == pytest.approx(
        alone.cost(alone.program_order)
    )


def owned_by(program, k: int) -> OwnedBuffer:
    size = program.avals[program.equations[k].outputs[0]].size * 4
    return OwnedBuffer(scope(k), "fusion", size, 0, 0, True)


def test_a_reduction_that_xla_gpu_wrote_nowhere_is_computed_in_its_readers() -> None:
    """As in the one kernel that it makes of a softmax; what it wrote is an op."""
    _, step, _ = profiled(lambda x, w: jax.nn.softmax(x @ w) @ w, SQUARE, SQUARE)
    program = step.program
    at = {e.primitive.name: k for k, e in enumerate(program.equations)}
    written = [owned_by(program, k) for k in (at["reduce_sum"], at["div"])]
    found = profile(program, written, 0, "gpu")
    products = ["dot_general", "dot_general"]
    assert sorted(ops(found)) == ["div", *products, "reduce_sum"]
    assert "reduce_max" in inlined(found, "reduce_sum")
    assert "reduce_max" in inlined(found, "div")
    assert "reduce_sum" not in inlined(found, "div")
    on_cpu = profile(program, written, 0, "cpu")
    assert sorted(ops(on_cpu)) == ["div", *products, "reduce_max", "reduce_sum"]


def test_nothing_overwrites_what_xla_wrote_in_another_shape() -> None:
    images, by_one = float32(2, 8, 8, 16), float32(1, 1, 16, 16)

    def convolved(x, kernel):
        layout = ("NHWC", "HWIO", "NHWC")
        for _ in range(2):
            y = jax.lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=layout
            )
            x = jnp.tanh(y + jnp.sum(y))
        return x @ kernel[0, 0]

    # A window of one element is a product of matrices: pixels by channels.
    found, _, memory = profiled(convolved, images, by_one)
    assert not any(op.in_place for op in found.problem.ops)
    assert memory.temp >= 2 * 2 * 8 * 8 * 16 * 4


def test_a_sum_onto_a_convolution_in_its_library_call_is_written_elsewhere() -> None:
    """Unlike one onto a product, which XLA writes where the other operand is."""
    images, by_nine = float32(2, 8, 8, 16), float32(3, 3, 16, 16)
    layout = ("NHWC", "HWIO", "NHWC")

    def convolved(x, kernel):
        start = jnp.tanh(x)
        return jnp.cumsum(
            start
            + jax.lax.conv_general_dilated(
                jnp.sin(x), kernel, (1, 1), "SAME", dimension_numbers=layout
            )
        )

    def multiplied(x, kernel):
        return jnp.cumsum(jnp.tanh(x) + jnp.sin(x) @ kernel[0, 0])

    overwrites = {}
    for function, call in (
        (convolved, "conv_general_dilated"),
        (multiplied, "dot_general"),
    ):
        step = profiled(function, images, by_nine)[1]
        size = 2 * 8 * 8 * 16 * 4
        written = [owned(step, name, size) for name in ("tanh", call)]
        found = profile(step.program, written, 0, "gpu")
        assert call in inlined(found, "add")
        overwrites[call] = found.problem.ops[ops(found).index("add")].in_place
    assert not overwrites["conv_general_dilated"]
    assert overwrites["dot_general"]


def test_what_is_updated_in_place_takes_and_gives_no_bytes_elementwise() -> None:
    def updated(x, w, rows, i):
        start = jnp.tanh(x @ w)
        end = start.at[i].set(rows)
        sine = jnp.sin(end)
        return jnp.sum(jnp.tanh(sine @ w)), jnp.sum(jnp.tanh(sine.T @ w))

    rows, i = float32(2, 1024), jax.ShapeDtypeStruct((2,), jnp.int32)
    args = (float32(1024, 1024), float32(1024, 1024), rows, i)
    found, _, memory = profiled(updated, *args)
    pairs = {op.name: op.in_place for op in found.problem.ops if op.outputs}
    ((source, target),) = pairs["scatter"]
    made_by = [ops(found)[found.problem.producer[v]] for v in (source, target)]
    assert made_by == ["tanh", "scatter"]
    assert pairs["tanh"] == pairs["sin"] == ()
    # The product beside what starts the update; its end beside the sine.
    alive = live_bytes(found.problem, found.problem.program_order)
    assert max(alive) == pytest.approx(2 * 1024 * 1024 * 4, rel=0.01)
    assert memory.temp == pytest.approx(max(alive), rel=0.01)


def test_a_scatter_onto_what_it_is_added_to_is_one_op() -> None:
    def loss(x, w, labels):
        logits = x @ w
        chosen = jnp.take_along_axis(logits, labels[:, None], axis=1)
        return jnp.mean(jax.nn.logsumexp(logits, axis=1) - chosen[:, 0])

    labels = jax.ShapeDtypeStruct((512,), jnp.int32)
    args = (float32(512, 256), float32(256, 2048), labels)
    found, _, _ = profiled(jax.grad(loss, argnums=(0, 1)), *args)
    assert "scatter-add" in inlined(found, "add_any")
    unit = found.units[ops(found).index("add_any")]
    assert not unit.literals, "XLA sees the zeros that it scatters onto the sum"
    add = found.problem.ops[ops(found).index("add_any")]
    ((source, target),) = add.in_place
    assert target in add.outputs
    large = [v for v in add.inputs if found.problem.values[v].size == 512 * 2048 * 4]
    assert [source] == large


def test_a_convolution_that_xla_left_no_name_has_what_was_turned_around_for_it() -> (
    None
):
    layout = ("NHWC", "HWIO", "NHWC")

    def step(kernel, momentum, x):
        def loss(kernel):
            y = lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=layout
            )
            return jnp.sum(jnp.cos(y))

        gradient = jax.grad(loss)(kernel)
        momentum = 0.9 * momentum + 0.1 * gradient
        return kernel - momentum, momentum

    kernel, images = float32(1, 1, 16, 32), float32(4, 46, 60, 16)
    args = (kernel, kernel, images)
    found, _, _ = profiled(step, *args, donate_argnums=(0, 1))
    gradient, _ = (
        op for op in reversed(found.problem.ops) if op.name == "conv_general_dilated"
    )
    pixels = 4 * 46 * 60 * 4
    assert gradient.workspace == pixels * (16 + 32), "the images and their gradient"
    assert not any(op.workspace for op in found.problem.ops if op is not gradient)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="layouts of XLA:CPU")
def test_what_xla_writes_twice_once_turned_around_is_workspace_of_who_reads_that() -> (
    None
):
    """The gradient of a kernel reads its images turned around, relu and all."""
    layout = ("NHWC", "HWIO", "NHWC")

    def loss(kernels, x):
        for kernel in kernels:
            x = lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=layout
            )
            x = jnp.maximum(x, 0)
        return jnp.sum(x**2)

    def step(kernels, x):
        gradients = jax.grad(loss)(kernels, x)
        return [(0.1 * g, g**2) for g in gradients]

    kernels, images = [float32(3, 3, 32, 32)] * 3, float32(8, 64, 64, 32)
    found, _, _ = profiled(step, kernels, images)
    size = 8 * 64 * 64 * 32 * 4
    taken = [op.workspace // size for op in found.problem.ops if op.workspace >= size]
    assert taken == [2, 2, 1], "both operands, and in the first kernel's one of them"


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="fusions of XLA:CPU")
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_matrix_that_is_read_as_rows_of_rows_passes_its_bytes_on_only_on_gpu(
    platform: str,
) -> None:
    """Products are matrices to XLA; kernels read them in the shape they have in JAX."""

    def step(weights, x):
        def loss(weights):
            y = x
            for w in weights:
                y = jnp.maximum(y @ w, 0)
            return jnp.mean(y**2)

        return [
            w - 0.1 * g for w, g in zip(weights, jax.grad(loss)(weights), strict=True)
        ]

    _, flat, memory = profiled(step, [float32(64, 64)] * 4, float32(16, 32, 64))
    _, buffers = flat.compile_with_buffers(
        lambda *values: flat.program.evaluate(values, scope)
    )
    problem = profile(flat.program, buffers, memory.fixed, platform).problem
    products = {v for op in problem.ops if op.name == "dot_general" for v in op.outputs}
    passed_on = {source for op in problem.ops for source, _ in op.in_place} & products
    assert bool(passed_on) == (platform == "gpu")


@pytest.mark.parametrize(("pixels", "is_product"), [(1, True), (3, False)])
def test_a_convolution_of_one_pixel_passes_no_bytes_on(
    pixels: int, is_product: bool
) -> None:
    layout = ("NHWC", "HWIO", "NHWC")

    def step(x, kernel):
        y = lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=layout
        )
        return jnp.cumsum(jnp.sin(y), 0)

    kernel = float32(pixels, pixels, 16, 16)
    found, _, _ = profiled(step, float32(4, 8, 8, 16), kernel)
    sine = found.problem.ops[ops(found).index("sin")]
    assert bool(sine.in_place) != is_product


@pytest.mark.parametrize("is_read", [False, True])
def test_a_loop_starts_from_a_copy_of_what_it_reads_too(is_read: bool) -> None:
    """As the solver of an implicit layer's gradient."""

    def step(x: jax.Array) -> jax.Array:
        start = jnp.tanh(x @ x)
        added = start if is_read else x
        return jax.lax.scan(lambda y, _: (added + y @ x, None), start, length=4)[0] @ x

    found, _, _ = profiled(step, SQUARE)
    (loop,) = (op for op in found.problem.ops if op.name.startswith("scan"))
    assert bool(loop.in_place) == (not is_read)


@pytest.mark.parametrize("is_older_first", [False, True])
def test_of_two_that_die_xla_overwrites_the_one_that_is_read_first(
    is_older_first: bool,
) -> None:
    def step(x, w):
        older, newer = x @ w, jnp.cumsum(x, 0)
        y = older * newer if is_older_first else newer * older
        return jnp.cumsum(y, 1)

    found, _, _ = profiled(step, SQUARE, SQUARE)
    product = found.problem.ops[ops(found).index("mul")]
    sources = [source for source, _ in product.in_place]
    assert len(sources) == 2
    assert (sources == sorted(sources)) == is_older_first


def test_a_product_is_part_of_the_transpose_that_xla_writes() -> None:
    def layer(x, w):
        y = jax.vmap(lambda row: w @ row)(x)
        return jnp.sin(y) @ w, jnp.cos(y) @ w

    found, _, _ = profiled(layer, float32(128, 64), SQUARE)
    assert ops(found)[0] == "transpose"
    assert inlined(found, "transpose") == ["dot_general"]


@pytest.mark.parametrize("rows", [(128,), (8, 16)], ids=["one", "two"])
def test_a_gradient_of_weights_is_one_op_unless_its_product_alone_is_faster(
    rows: tuple[int, ...],
) -> None:
    """Of rows in two dimensions, a library makes the product if it is alone."""

    def gradient(x, y):
        summed = tuple(range(len(rows)))
        turned = lax.transpose(
            lax.dot_general(y, x, ((summed, summed), ((), ()))), (1, 0)
        )
        return jnp.cumsum(turned, 0), jnp.cumsum(turned, 1)

    found, _, _ = profiled(gradient, float32(*rows, 64), float32(*rows, 96))
    is_merged = len(rows) == 1
    assert inlined(found, "transpose") == ["dot_general"] * is_merged
    assert ops(found).count("dot_general") == (not is_merged)


def test_a_product_that_others_read_too_is_an_op() -> None:
    def layer(x, w):
        turned = lax.transpose(y := w @ x, (1, 0))
        return jnp.sum(jnp.tanh(turned) @ y), jnp.sum(turned)

    found, _, _ = profiled(layer, float32(64, 128), SQUARE)
    assert ops(found).count("dot_general") == 2


def test_a_loop_is_an_op_of_its_own_though_a_sum_lies_in_its_place() -> None:
    def looped(x, w):
        y = jnp.tanh(x)
        end, _ = jax.lax.scan(lambda c, w: (c @ w, None), x, w)
        return (end + y) @ w[0]

    step = profiled(looped, SQUARE, float32(3, 64, 64))[1]
    in_one_place = [
        OwnedBuffer(scope(k), "fusion", 64 * 64 * 4, 0, 0, True)
        for k, equation in enumerate(step.program.equations)
        if equation.primitive.name in ("tanh", "scan")
    ]
    found = profile(step.program, in_one_place, 0, "cpu")
    assert "scan" in ops(found)


def test_outputs_and_arguments_take_no_bytes_of_the_pool() -> None:
    found, _, memory = profiled(lambda x, w: (x @ w, x + 1), SQUARE, SQUARE)
    assert all(value.size == 0 for value in found.problem.values)
    assert sum(value.is_output for value in found.problem.values) == 2
    assert sum(value.is_argument for value in found.problem.values) == 2
    assert found.problem.fixed == memory.fixed >= 4 * 64 * 64 * 4


def test_a_mask_that_several_ops_read_is_worth_keeping_but_not_its_words() -> None:
    def dropped(x, w, key):
        mask = jax.random.bernoulli(key, 0.5, x.shape)
        x = jnp.where(mask, x @ w, 0) @ w
        return jnp.where(mask, x, 0) @ w

    found, _, _ = profiled(dropped, SQUARE, SQUARE, KEY)
    size = {value.name.split()[0]: value.size for value in found.problem.values}
    assert "random_words" not in size
    assert size["lt"] == 64 * 64
    assert "random_words" in inlined(found, "lt")


def test_a_mask_that_one_op_reads_is_not() -> None:
    def dropped(x, w, key):
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0) @ w

    found, _, _ = profiled(dropped, SQUARE, SQUARE, KEY)
    assert "lt" not in ops(found)
    assert "random_words" not in ops(found)


def test_random_words_that_several_ops_read_are_drawn_once() -> None:
    def drawn(x, key):
        bits = jax.random.bits(key, x.shape)
        return x @ (bits % 7), (bits % 5).astype(jnp.float32) @ x

    found, _, _ = profiled(drawn, SQUARE, KEY)
    assert ops(found).count("random_words") == 1


def test_bits_that_jax_draws_are_those_of_a_loop() -> None:
    with jax.threefry_partitionable(False):
        found, _, _ = profiled(lambda x, k: jax.random.bits(k, x.shape), SQUARE, KEY)
    assert "random_bits" in ops(found)


def test_a_reshape_owns_nothing() -> None:
    def reshaped(x, w):
        return jnp.sin((x @ w).reshape(32, 128)).reshape(64, 64) @ w

    found, _, _ = profiled(reshaped, SQUARE, SQUARE)
    assert ops(found) == ["dot_general", "sin", "dot_general"]
    assert inlined(found, "sin") == ["reshape"]


@pytest.mark.parametrize(("held", "owns"), [(2, True), (4, True), (1, False)])
def test_xla_may_hold_a_sum_of_16_bit_floats_in_32_bits(held: int, owns: bool) -> None:
    half = jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)
    _, step, _ = profiled(lambda x, w: (x @ w + x) @ w, half, half)
    names = [equation.primitive.name for equation in step.program.equations]
    scoped = f"jit(f)/{scope(names.index('add'))}/add"
    buffer = OwnedBuffer(scoped, "fusion", held * 64 * 64, 0, 0, is_temporary=True)
    found = profile(step.program, [buffer], 0, "cpu")
    assert ("add" in ops(found)) == owns


def test_what_must_not_run_twice_is_not_recomputable() -> None:
    def step(x):
        io_callback(lambda x: None, None, x, ordered=True)
        jax.debug.print("{}", x[0, 0])
        return jnp.sin(x) @ x

    found, _, _ = profiled(step, SQUARE)
    callbacks = [op for op in found.problem.ops if "callback" in op.name]
    callbacks += [op for op in found.problem.ops if op.name == "debug_print"]
    assert len(callbacks) == 2
    assert not any(op.is_recomputable for op in callbacks)
    assert all(op.is_recomputable for op in found.problem.ops if "dot" in op.name)


def test_a_barrier_is_seen_through() -> None:
    def loss(w, x):
        return jnp.sum(jax.checkpoint(lambda w: jnp.tanh(jnp.tanh(x @ w) @ w))(w))

    found, _, _ = profiled(jax.grad(loss), SQUARE, SQUARE)
    assert found.alias_of
    # The rematerialization that the user asked for is an op like any other.
    run = [k for unit in found.units for k in (*unit.inlined, unit.root)]
    names = [found.program.equations[k].primitive.name for k in run]
    assert names.count("dot_general") > 4
    resolved = {found.alias_of.get(v, v) for unit in found.units for v in unit.inputs}
    assert not resolved & set(found.alias_of)


def adam_like(state, x):
    def loss(weights):
        return jnp.mean(jnp.tanh(jnp.tanh(x @ weights[0]) @ weights[1]) ** 2)

    weights, momenta, count = state
    grads = jax.grad(loss)(weights)
    momenta = [0.9 * m + g for m, g in zip(momenta, grads, strict=True)]
    weights = [w - 0.1 * m for w, m in zip(weights, momenta, strict=True)]
    return (weights, momenta, count + 1), x.sum()


STATE = ([SQUARE, SQUARE], [SQUARE, SQUARE], jax.ShapeDtypeStruct((), jnp.int32))


@pytest.mark.parametrize(
    ("function", "args", "donated"),
    [
        (adam_like, (STATE, float32(128, 64)), (0,)),
        (adam_like, (STATE, float32(128, 64)), ()),
        (lambda a, b: (b * 2, a @ b), (SQUARE, SQUARE), (0,)),
        (lambda a, b: (a + 1, b + 1, a + b), (SQUARE, SQUARE), (0, 1)),
        (lambda a, b: (a, b + a), (SQUARE, SQUARE), (0, 1)),
        (lambda a, b: a + b, (float32(64, 64), float32(64)), (0,)),
    ],
)
def test_outputs_take_over_the_donated_arguments_that_jit_gives_them(
    function: Callable, args: tuple, donated: tuple[int, ...]
) -> None:
    found, step, memory = profiled(function, *args, donate_argnums=donated)
    values = found.problem.values
    avals = step.program.avals
    taken = [v.overwrites for v in values if v.overwrites is not None]
    assert len(taken) == len(set(taken))
    sizes = [
        avals[found.variable_of[v]].size * avals[found.variable_of[v]].dtype.itemsize
        for v in taken
    ]
    # A donated argument that is returned as it is overwrites nothing.
    returned = [
        avals[v].size * avals[v].dtype.itemsize
        for v, gone in zip(step.program.arguments, step.program.donated, strict=True)
        if gone and v in step.program.outputs
    ]
    assert sum(sizes) + sum(returned) == memory.alias


def test_program_order_is_a_valid_schedule_near_what_xla_measures() -> None:
    found, _, memory = profiled(adam_like, STATE, float32(512, 64), donate_argnums=0)
    problem = found.problem
    validate(problem, problem.program_order)
    # Observed: 1.28; XLA also puts temporaries where outputs will be.
    alive = max(live_bytes(problem, problem.program_order))
    assert 0.9 * memory.temp <= alive <= 1.4 * memory.temp


def test_every_unit_reads_what_its_equations_read() -> None:
    found, step, _ = profiled(adam_like, STATE, float32(128, 64), donate_argnums=0)
    made = set(step.program.arguments) | {v for v, _ in step.program.constants}
    for unit, op in zip(found.units, found.problem.ops, strict=True):
        assert {found.variable_of[v] for v in op.inputs} == set(unit.inputs)
        inside = set(unit.inputs)
        for k in (*unit.inlined, unit.root):
            equation = step.program.equations[k]
            assert inside.issuperset(equation.variables)
            inside.update(equation.outputs)
        assert made.issuperset(unit.inputs)
        made.update(step.program.equations[unit.root].outputs)


def test_an_op_costs_more_the_more_it_computes_and_touches() -> None:
    large = float32(512, 512)
    found, _, _ = profiled(lambda x, w: jnp.sum(x @ w), large, large)
    product, total = found.problem.ops
    assert product.cost > total.cost > 0
    assert product.is_expensive and not total.is_expensive


def test_alignment_is_that_of_the_platform() -> None:
    found, step, _ = profiled(lambda x: jnp.sin(x) @ x, SQUARE)
    assert found.problem.alignment == 64
    assert profile(step.program, [], 0, "gpu").problem.alignment == 256


def owned(step: FlatStep, name: str, size: int, **fields: Any) -> OwnedBuffer:
    """A temporary buffer of the first equation of that name."""
    names = [equation.primitive.name for equation in step.program.equations]
    return OwnedBuffer(scope(names.index(name)), "fusion", size, 0, 0, True, **fields)


@pytest.mark.parametrize("others", [False, True])
def test_what_is_transposed_for_products_alone_is_part_of_them(others: bool) -> None:
    def turned(x, w):
        transposed = jnp.tanh(x @ w).T
        products = transposed @ w, transposed @ x
        return products, jnp.cumsum(transposed) if others else None

    step = profiled(turned, SQUARE, SQUARE)[1]
    held = [owned(step, name, 64 * 64 * 4) for name in ("tanh", "transpose")]
    found = profile(step.program, held, 0, "cpu")
    assert ("transpose" in ops(found)) == others


def test_an_argument_turned_around_for_one_call_is_its_workspace() -> None:
    def turned(x, w):
        return jax.lax.conv(x, w[:, :, ::-1, ::-1], (1, 1), "SAME")

    step = profiled(turned, float32(2, 3, 8, 8), float32(4, 3, 3, 3))[1]
    size = 4 * 3 * 3 * 3 * 4
    found = profile(step.program, [owned(step, "rev", size)], 0, "cpu")
    assert ops(found) == ["conv_general_dilated"]
    assert found.problem.ops[0].workspace == size


@pytest.mark.parametrize(("size", "standing"), [(64 * 64 * 4, 0), (4096, 4096)])
def test_a_constant_spread_for_a_tied_literal_comes_and_goes_with_its_reader(
    size: int, standing: int
) -> None:
    _, step, _ = profiled(lambda x: jnp.sum(jnp.sin(x) * 3.0), SQUARE)
    made_up = owned(step, "reduce_sum", size, origin="constants")
    found = profile(step.program, [made_up], 0, "cpu")
    assert found.standing == standing
    assert found.problem.ops[-1].workspace == size - standing


def test_room_that_xla_found_in_an_argument_is_still_needed() -> None:
    _, step, _ = profiled(lambda x: jnp.sum(x), SQUARE)
    borrowed = owned(step, "reduce_sum", 4096, origin="reader")
    elsewhere = dataclasses.replace(borrowed, allocation=3, is_temporary=False)
    found = profile(step.program, [borrowed, elsewhere], 0, "cpu")
    assert found.problem.ops[-1].workspace == 2 * 4096


def test_products_that_xla_made_one_call_take_no_bytes_of_each_other() -> None:
    step = profiled(lambda x, y, w: (x @ w, y @ w), SQUARE, SQUARE, SQUARE)[1]
    both = owned(step, "dot_general", 2 * 64 * 64 * 4, is_viewed=True)
    beside = dataclasses.replace(both, size=4096, offset=1 << 20)
    found = profile(step.program, [both, beside], 0, "gpu")
    assert [op.workspace for op in found.problem.ops] == [4096, 0]


def test_what_xla_made_of_constants_for_each_reader_is_made_once() -> None:
    step = profiled(lambda x: jnp.cumsum(x @ jnp.full((64, 64), 2.0)), SQUARE)[1]
    one = owned(step, "broadcast_in_dim", 64 * 64 * 4)
    other = dataclasses.replace(one, offset=1 << 20)
    found = profile(step.program, [one, other], 0, "gpu")
    at = ops(found).index("broadcast_in_dim")
    assert found.problem.ops[at].workspace == 0


def test_what_is_turned_around_for_a_product_counts_to_the_product() -> None:
    """Of a product and its transpose XLA makes one call, under the latter's name."""

    def gradient(x, y):
        return (x.T @ jnp.tanh(y)).T * 2

    step = profiled(gradient, SQUARE, SQUARE)[1]
    value, product = (owned(step, name, 64 * 64 * 4) for name in ("tanh", "transpose"))
    copy = dataclasses.replace(value, offset=1 << 20, turned_for=product.op_name)
    found = profile(step.program, [value, copy], 0, "cpu").problem.ops
    taken = {op.name.split(" ")[0]: op.workspace for op in found}
    assert taken["tanh"] == 0
    assert taken["dot_general"] == 64 * 64 * 4
    computed = dataclasses.replace(copy, is_computed=True)
    found = profile(step.program, [computed], 0, "cpu").problem.ops
    assert not any(op.workspace for op in found), "the only place it is written"
    found = profile(step.program, [value, computed], 0, "cpu").problem.ops
    taken = {op.name.split(" ")[0]: op.workspace for op in found}
    assert taken["dot_general"] == 64 * 64 * 4
    unturned = dataclasses.replace(copy, turned_for="")
    found = profile(step.program, [value, unturned], 0, "cpu").problem.ops
    taken = {op.name.split(" ")[0]: op.workspace for op in found}
    assert taken["tanh"] == 64 * 64 * 4


def test_what_ragged_products_share_counts_to_who_reads_it() -> None:
    def products(x, w, sizes):
        return lax.ragged_dot(x, w, sizes), lax.ragged_dot(x, w + 1, sizes)

    sizes = jax.ShapeDtypeStruct((2,), jnp.int32)
    step = profiled(products, SQUARE, float32(2, 64, 64), sizes)[1]
    rows = owned(step, "ragged_dot_general", 2 * 64 * 64 * 4)
    first, second = (
        scope(k)
        for k, equation in enumerate(step.program.equations)
        if equation.primitive.name == "ragged_dot_general"
    )
    for readers, taken in (((), [1, 0]), ((first,), [1, 0]), ((second,), [0, 1])):
        held = dataclasses.replace(rows, read_elsewhere=readers)
        found = profile(step.program, [held], 0, "cpu").problem.ops
        dots = [op.workspace for op in found if op.name.startswith("ragged_dot")]
        assert dots == [held.size * times for times in taken]


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="rows of XLA:CPU")
def test_rows_of_ragged_products_come_and_go_with_each() -> None:
    """XLA makes them once for the forward pass and for the gradient of the weights."""
    tokens, width, experts = 512, 64, 8

    def step(weights, x, sizes):
        def loss(weights):
            hidden = lax.ragged_dot(x, weights[0], sizes)
            return jnp.mean(lax.ragged_dot(jax.nn.silu(hidden), weights[1], sizes) ** 2)

        return jax.tree.map(jnp.subtract, weights, jax.grad(loss)(weights))

    weight = float32(experts, width, width)
    sizes = jax.ShapeDtypeStruct((experts,), jnp.int32)
    found, _, _ = profiled(step, (weight, weight), float32(tokens, width), sizes)
    rows = experts * tokens * width * 4
    products = (op for op in found.problem.ops if op.name.startswith("ragged_dot"))
    _, forward, gradient, *_ = products
    assert rows <= forward.workspace < 2 * rows <= gradient.workspace


def test_an_operand_that_xla_wrote_under_no_name_is_not_counted_twice() -> None:
    _, step, _ = profiled(lambda x: (x @ x) * 2, SQUARE)
    turned = owned(step, "mul", 64 * 64 * 4, origin="reader")
    found = profile(step.program, [turned], 0, "cpu")
    assert ops(found) == ["dot_general", "mul"]
    assert [op.workspace for op in found.problem.ops] == [0, 0]
    named = owned(step, "dot_general", 64 * 64 * 4)
    again = profile(step.program, [turned, named], 0, "cpu")
    assert [op.workspace for op in again.problem.ops] == [0, 64 * 64 * 4]


@pytest.mark.parametrize("is_known", [False, True])
def test_a_constant_spread_inside_of_a_kernel_of_many_goes_with_it(
    is_known: bool,
) -> None:
    _, step, _ = profiled(lambda x: jnp.sum((jnp.sin(x) * 3.0) @ x), SQUARE)
    size = 64 * 64 * 4
    made_up = owned(step, "reduce_sum", size, origin="constants")
    if is_known:
        inside = (owned(step, "mul", size).op_name,)
        made_up = dataclasses.replace(made_up, read_inside=inside)
    found = profile(step.program, [made_up], 0, "cpu")
    assert found.standing == (0 if is_known else size)
    assert not any(op.workspace for op in found.problem.ops)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="fusions of XLA:CPU")
def test_layers_that_are_not_trained_leave_no_constants() -> None:
    """XLA:CPU makes one library call of them, and writes arrays of gelu's constants."""

    def trained(x, y, weights, frozen):
        def layers(x, weights):
            for w in weights[:-1]:
                x = jax.nn.gelu(x @ w)
            return jnp.max(x @ weights[-1], axis=-1)

        grads = jax.grad(lambda w: jnp.sum(layers(x, w)))(weights)
        return grads, layers(y, frozen)

    batch, weights = float32(512, 256), (float32(256, 256),) * 3
    found, step, _ = profiled(trained, batch, batch, weights, weights)
    _, buffers = step.compile_with_buffers(
        lambda *values: step.program.evaluate(values, scope)
    )
    assert any(b.origin == "constants" and b.size == 512 * 256 * 4 for b in buffers)
    assert found.standing == 0


def plan_of_updates(
    loss: Callable[..., Any], budget: float, weights: list[jax.Array], x: jax.Array
) -> coop_jax.Plan:
    def step(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
        return jax.tree.map(jnp.subtract, weights, jax.grad(loss)(weights, x))

    planned = coop_jax.remat(step, budget, donate_argnums=0, progress=False)
    return planned.plan(weights, x)


def test_an_array_of_a_constant_that_kernels_spread_themselves_does_not_stand() -> None:
    """XLA makes it for a library's sum, and other kernels read it as it is there."""

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights:
            x = jax.nn.gelu(jax.nn.standardize(x @ w, epsilon=0.1))
        return jnp.mean(x**2)

    plan = plan_of_updates(loss, 0.5, [jnp.eye(64)] * 4, jnp.ones((2048, 64)))
    assert 0.99 < plan.predicted / plan.measured.total < 1.02


@pytest.mark.parametrize("is_written_over", [False, True])
def test_what_a_loop_starts_from_and_writes_over_comes_and_goes_with_it(
    is_written_over: bool,
) -> None:
    """As the zeros of what a scan stacks."""

    def loop(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda y, _: (y @ x, y), x, length=8)[1]

    _, step, _ = profiled(loop, SQUARE)
    size = 8 * 64 * 64 * 4
    buffers = [owned(step, "scan", size, origin="constants")]
    if is_written_over:
        buffers.append(owned(step, "scan", size))
    found = profile(step.program, buffers, 0, "cpu")
    assert found.standing == (0 if is_written_over else size)
    assert [op.workspace for op in found.problem.ops] == [0]


def test_what_constants_make_inside_of_a_branch_comes_and_goes_with_it() -> None:
    """`expm` differentiates a branch that stacks zeros, in each of four layers."""

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights:
            x = jnp.tanh(x @ jax.scipy.linalg.expm(w - w.T))
        return jnp.mean(x**2)

    plan = plan_of_updates(loss, 0.7, [jnp.eye(16)] * 4, jnp.ones((256, 16)))
    assert 0.85 < plan.predicted / plan.measured.total < 1.15
    assert plan.measured.total > 0.85 * (plan.budget or 0)


@pytest.mark.parametrize("is_read_twice", [True, False])
def test_calls_without_a_name_are_told_apart_by_all_that_reads_them(
    is_read_twice,
) -> None:
    def step(x, w):
        first, second = x @ w, w @ x
        norm = jnp.sqrt(jnp.sum(first + second))
        return jnp.tanh(first) / norm, jnp.sin(second) / norm

    traced = jax.jit(step).trace(SQUARE, SQUARE)
    program = flat_step(traced, [SQUARE, SQUARE]).program
    names = [equation.primitive.name for equation in program.equations]
    products = [k for k, name in enumerate(names) if name == "dot_general"]
    norm, size = scope(names.index("sqrt")), 64 * 64 * 4
    owned = [
        OwnedBuffer(
            norm,
            "fusion",
            size // 2,
            0,
            0,
            is_temporary=True,
            origin="reader",
            call=size,
            read_elsewhere=(norm, scope(names.index(reader))) if is_read_twice else (),
        )
        for reader in ("tanh", "sin")
    ]
    found = named(Graph(program), {names.index("sqrt"): owned})
    sizes = {k: [buffer.size for buffer in found[k]] for k in found}
    told_apart = {k: [size // 2] for k in products}
    both = {names.index("sqrt"): [size // 2] * 2}
    assert sizes == (told_apart if is_read_twice else both)


def test_what_windows_are_padded_with_stays_known_to_xla() -> None:
    def step(x, w):
        def loss(w):
            pooled = lax.reduce_window(
                x @ w, 0.0, lax.add, (3, 3), (1, 1), ((1, 1), (1, 1))
            )
            return jnp.sum(jnp.tanh(pooled))

        return jax.grad(loss)(w)

    found, _, _ = profiled(step, SQUARE, SQUARE)
    windows = [
        unit
        for unit in found.units
        if found.program.equations[unit.root].primitive.name == "reduce_window_sum"
    ]
    inside = [
        found.program.equations[k].primitive.name for u in windows for k in u.inlined
    ]
    assert "pad" in inside
    assert not any(unit.literals for unit in windows)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
