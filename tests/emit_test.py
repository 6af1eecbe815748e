"""Emission: XLA runs what a plan says, when it says it."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from coop_jax._fitting.compile import flat_step
from coop_jax._fitting.cutting import cut_into_parts, ops_alone, ops_spreading
from coop_jax._fitting.emit import emit
from coop_jax._measure import memory_use
from coop_jax._planning.planner import Effort, plan
from coop_jax._planning.validate import peak_bytes
from coop_jax._program.hlo import OwnedBuffer, owned_buffers
from coop_jax._program.profile import Profile, profile
from coop_jax._program.scopes import scope


def with_room(found: Profile) -> Profile:
    """There is room for all of the program at once: its last op needs a workspace."""
    *ops, last = found.problem.ops
    last = dataclasses.replace(last, workspace=1 << 24)
    problem = dataclasses.replace(found.problem, ops=(*ops, last))
    return dataclasses.replace(found, problem=problem)


@pytest.mark.parametrize(
    ("second", "count"),
    [
        (lambda x, w, v: x @ v, 2),
        (lambda x, w, v: x.T @ v, 1),
        (lambda x, w, v: jnp.tanh(x) @ v, 1),
        (lambda x, w, v: v @ w, 2),
        (lambda x, w, v: v @ x, 1),
    ],
    ids=("operand", "summed otherwise", "made of it", "other operand", "other side"),
)
def test_on_gpu_a_barrier_is_between_products_that_xla_would_merge(
    second, count
) -> None:
    def step(x, w, v):
        return x @ w + second(x, w, v)

    args = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 3
    flat = flat_step(jax.jit(step).trace(*args), args)
    found = profile(flat.program, [], 0, "gpu")
    home = [(op,) for op in found.problem.program_order]
    found = with_room(found)
    cut = cut_into_parts(found, home, ops_alone(found), set())
    ops = found.problem.ops
    products = [sum(ops[op].name == "dot_general" for op in part) for part in cut]
    assert sum(products) == 2
    assert sum(1 for product in products if product) == count


def test_no_stage_begins_with_words_that_xla_draws_in_what_reads_them() -> None:
    def step(x: jax.Array, w: jax.Array, v: jax.Array, key: jax.Array):
        y, word = x @ w, jax.random.bits(key, x.shape, jnp.uint8)
        return jnp.where(word > 9, y, 0) @ v, jnp.where(word > 99, v, 0).sum()

    square = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    args = [square, square, square, jax.eval_shape(lambda: jax.random.key(0))]
    flat = flat_step(jax.jit(step).trace(*args), args)
    found = with_room(profile(flat.program, [], 0, "gpu"))
    names = [op.name for op in found.problem.ops]
    assert names == ["dot_general", "random_bits", "dot_general", "reduce_sum"]
    home, alone = [(op,) for op in range(4)], ops_alone(found)
    assert alone == {0, 1, 2}
    cut = cut_into_parts(found, home, alone, set(), in_stages=True)
    assert cut == [[0, 1, 2], [3]]


def test_rows_of_two_products_by_group_do_not_come_one_after_the_other() -> None:
    """XLA:GPU writes the rows of both in one kernel."""

    def products(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
        return lax.ragged_dot(lax.ragged_dot(x, w, sizes), w, sizes)

    shapes = (64, 32), (4, 32, 32)
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    sizes = jax.ShapeDtypeStruct((4,), jnp.int32)
    flat = flat_step(jax.jit(products).trace(*args, sizes), [*args, sizes])
    size = 4 * 64 * 32 * 4
    buffers = [
        OwnedBuffer(scope(k), "fusion", size, 0, k * size, True)
        for k, equation in enumerate(flat.program.equations)
        if equation.primitive.name == "ragged_dot_general"
    ]
    found = profile(flat.program, buffers, 0, "gpu")
    home = [(op,) for op in found.problem.program_order]
    assert [op.workspace for op in found.problem.ops] == [size, size]
    alone = ops_alone(found)
    spreading = ops_spreading(found, alone)
    assert cut_into_parts(found, home, alone, spreading) == [[0], [1]]


@pytest.mark.parametrize("in_stages", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.6, 0.4])
def test_parts_as_on_gpu_compute_what_the_step_does(
    share: float, in_stages: bool
) -> None:
    """With moments, an average of the new weights, and a norm that reads them too."""

    def step(weights, moments, averages, x):
        def loss_of(weights):
            y = x
            for up, down in weights:
                y = y + jax.nn.gelu(y @ up) @ down
            return jnp.mean(y**2)

        grads = jax.grad(loss_of)(weights)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
        weights = jax.tree.map(lambda w, m: w - 0.1 * m, weights, moments)
        averages = jax.tree.map(lambda a, w: 0.9 * a + 0.1 * w, averages, weights)
        norm = sum(jnp.sum(w**2) for w in jax.tree.leaves(weights))
        return weights, moments, averages, norm

    keys = iter(jax.random.split(jax.random.key(0), 13))
    weights = [
        tuple(
            jax.random.normal(next(keys), shape) / 8 for shape in ((64, 128), (128, 64))
        )
        for _ in range(6)
    ]
    args = (weights, weights, weights, jax.random.normal(next(keys), (256, 64)))
    leaves = jax.tree.leaves(args)
    flat = flat_step(jax.jit(step, donate_argnums=(0, 1, 2)).trace(*args), leaves)
    program = flat.program
    _, buffers = flat.compile_with_buffers(lambda *v: program.evaluate(v, scope))
    found = profile(program, buffers, 0, "gpu")
    problem = dataclasses.replace(found.problem, has_watershed=False)
    found = dataclasses.replace(found, problem=problem)
    pool = int(share * peak_bytes(problem, problem.program_order))
    planned = plan(problem, pool, Effort())
    assert planned.fits
    expected = jax.jit(flat.as_written())(*leaves)
    emitted = emit(found, planned.positions, in_stages)
    for mine, theirs in zip(jax.jit(emitted)(*leaves), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_a_donated_weight_is_not_copied_for_what_reads_it_just_before_its_update():
    def step(w, x, v):
        hidden = x @ w
        passed = jnp.tanh(hidden @ v)
        new = w * 0.9
        return new, passed @ v + hidden

    weight = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
    x = jax.ShapeDtypeStruct((16, 1024), jnp.float32)
    args = (weight, x, weight)
    flat = flat_step(jax.jit(step, donate_argnums=0).trace(*args), args)
    program = flat.program
    compiled, buffers = flat.compile_with_buffers(
        lambda *values: program.evaluate(values, scope)
    )
    found = profile(program, buffers, memory_use(compiled).fixed, "cpu")
    names = [op.name for op in found.problem.ops]
    update = names.index("mul")
    positions: list[tuple[int, ...]] = [(k,) for k in range(len(names))]
    positions[names.index("dot_general")] += (update,)
    planned = memory_use(flat.compile(emit(found, positions)))
    assert planned.temp < 1024 * 1024 * 4, "XLA copied the weight"


def test_no_array_of_zeros_stands_for_a_maximum_taken_into_a_pool() -> None:
    def step(x, kernel):
        layout = ("NHWC", "HWIO", "NHWC")

        def convolved(x):
            return lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=layout
            )

        y = jnp.maximum(convolved(x) * 2, 0.0)
        twice = convolved(y)
        window = (1, 2, 2, 1)
        return twice, lax.reduce_window(y, -jnp.inf, lax.max, window, window, "VALID")

    x = jax.ShapeDtypeStruct((4, 64, 64, 16), jnp.float32)
    args = (x, jax.ShapeDtypeStruct((3, 3, 16, 16), jnp.float32))
    flat = flat_step(jax.jit(step).trace(*args), args)
    program = flat.program
    compiled, buffers = flat.compile_with_buffers(
        lambda *values: program.evaluate(values, scope)
    )
    found = profile(program, buffers, memory_use(compiled).fixed, "cpu")
    names = [op.name for op in found.problem.ops]
    positions: list[tuple[int, ...]] = [(k,) for k in range(len(names))]
    positions[names.index("max")] += (names.index("reduce_window_max"),)
    planned = flat.compile(emit(found, positions))
    made_up = [b for b in owned_buffers(planned) if b.origin == "constants"]
    assert all(b.size < 4 * 64 * 64 * 16 for b in made_up)


def planned_equations(
    step: Callable,
    args: Sequence[Any],
    platform: str,
    again: int,
    fused: str | None = None,
) -> list[Any]:
    """Of the step with its first op once more in front of the op `again`.

    Equations called `fused` own no bytes, whatever XLA:CPU gave them.
    """
    flat = flat_step(jax.jit(step).trace(*args), args)
    program = flat.program
    _, buffers = flat.compile_with_buffers(
        lambda *values: program.evaluate(values, scope)
    )
    unowned = [
        scope(k) for k, e in enumerate(program.equations) if e.primitive.name == fused
    ]
    buffers = [b for b in buffers if not any(f"{s}/" in b.op_name for s in unowned)]
    found = profile(program, buffers, 0, platform)
    count = len(found.problem.ops)
    positions = [(0, again % count), *((k,) for k in range(1, count))]
    equations = jax.make_jaxpr(emit(found, positions))(*args).eqns
    assert any(e.primitive.name == "optimization_barrier" for e in equations)
    return equations


@pytest.mark.parametrize(
    ("platform", "is_turned", "ordered"),
    [("cpu", False, False), ("gpu", False, True), ("gpu", True, False)],
)
def test_on_gpu_what_nothing_turns_is_row_major_behind_a_barrier(
    platform, is_turned, ordered
) -> None:
    def step(x, w):
        y = jnp.tanh(x @ w) + 1
        return jnp.sum(jnp.transpose(y) * 2 if is_turned else y, 0) @ w[:, 0]

    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    names = [e.primitive.name for e in planned_equations(step, [x, x], platform, -1)]
    behind = names[names.index("optimization_barrier") :]
    assert ("layout_constraint" in behind) == ordered


@pytest.mark.parametrize(
    ("platform", "readers", "is_written"),
    [("cpu", 2, True), ("cpu", 1, False), ("gpu", 2, False)],
)
def test_on_cpu_what_several_read_is_written_first_where_it_is_computed_again(
    platform, readers, is_written
) -> None:
    def step(x, w):
        y = jnp.sin(x)
        first = y @ w
        return first @ (y if readers == 2 else w)

    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    names = [
        e.primitive.name for e in planned_equations(step, [x, x], platform, readers)
    ]
    *_, again = (k for k, name in enumerate(names) if name == "sin")
    read = names.index("dot_general", again)
    assert ("optimization_barrier" in names[again:read]) == is_written


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_what_follows_small_ones_waits_for_them(platform) -> None:
    """The sums of sums alone read the sums, which nothing could wait for after them."""

    def step(x, w):
        y = jnp.sin(x)
        sums = (y @ w).sum(0)
        return sums.reshape(8, 8).sum(0), jnp.tanh(w @ y) @ w

    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    equations = planned_equations(step, [x, x], platform, 4)
    names = [e.primitive.name for e in equations]
    *_, again = (k for k, name in enumerate(names) if name == "sin")
    *_, of_sums = (e for e in equations[:again] if e.primitive.name == "reduce_sum")
    (result,) = of_sums.outvars
    assert result.aval.shape == (8,)
    *_, barrier = (
        e for e in equations[:again] if e.primitive.name == "optimization_barrier"
    )
    assert result in barrier.invars


def test_what_follows_an_op_without_operands_waits_for_what_is_before_it() -> None:
    """The indices could be there at the start, and what waits for them alone too."""

    def step(x, w):
        rows = jax.lax.broadcasted_iota(jnp.float32, (64, 64), 0)
        y = jnp.tanh(x @ rows)
        return y, w @ w @ rows @ y

    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    equations = planned_equations(step, [x, x], "cpu", 3)
    names = [e.primitive.name for e in equations]
    *_, again = (k for k, name in enumerate(names) if name == "iota")
    assert names[again - 1] == names[again + 1] == "optimization_barrier"
    assert not set(equations[again - 1].outvars).isdisjoint(equations[again + 1].invars)


def test_on_cpu_an_array_of_one_literal_is_written_again_where_it_is_planned() -> None:
    """XLA would find that it is the one it has, and keep that in between."""

    def step(x, w):
        twos = jnp.full((64, 64), 2.0)
        return jnp.tanh(x @ twos) @ w @ twos

    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    equations = planned_equations(step, [x, x], "cpu", 3)
    names = [e.primitive.name for e in equations]
    *_, again = (k for k, name in enumerate(names) if name == "broadcast_in_dim")
    (literal,) = equations[again].invars
    assert literal in equations[again - 1].outvars


@pytest.mark.parametrize(
    ("platform", "rows", "passing"), [("cpu", 64, 1), ("cpu", 8, 0), ("gpu", 64, 0)]
)
def test_a_literal_is_tied_where_xla_would_make_an_array_of_some_size(
    platform, rows, passing
) -> None:
    """The mask's -1, which XLA:CPU would make an array of, and XLA:GPU fuses."""

    def step(x, w):
        y = jnp.tanh(x @ w)[:rows]
        masked = jnp.where(y > 0, y, jnp.full_like(y, -1.0))
        return masked @ w

    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    equations = planned_equations(step, [x, x], platform, 1)
    barriers = [e for e in equations if e.primitive.name == "optimization_barrier"]
    kinds = [v.aval.str_short() for e in barriers for v in e.invars]
    assert sum(kind.endswith("32[]") for kind in kinds) == passing


def test_a_number_to_divide_by_passes_inverted() -> None:
    """As XLA does with a constant; what it does not know it inverts as it runs."""

    def step(x, w):
        y = jnp.tanh(x @ w)
        return (y / 192.0) @ w

    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    equations = planned_equations(step, [x, x], "cpu", 1, "div")
    names = [e.primitive.name for e in equations]
    assert "div" not in names and names.count("mul") == 1
    values = np.linspace(0.01, 1, 64, dtype=np.float32)
    inverse = np.float32(1) / np.float32(192)
    written = jax.jit(lambda x: x / 192.0)(values)
    np.testing.assert_array_equal(written, values * inverse)


def test_a_number_that_arrays_are_divided_by_passes_no_barrier_for_it() -> None:
    """Else XLA would invert it behind each, and round what it does not otherwise."""

    def step(x, w):
        y, z = jnp.tanh(x @ w), jnp.tanh(w @ x)
        norm = jnp.sqrt(jnp.sum(y * z))
        return (y / norm) @ w, (z / norm) @ w

    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    equations = planned_equations(step, [x, x], "cpu", 1)
    barriers = [e for e in equations if e.primitive.name == "optimization_barrier"]
    kinds = [v.aval.str_short() for e in barriers for v in e.invars]
    # Once, as what its own part ends with.
    assert kinds.count("float32[]") == 1


def test_on_gpu_an_array_of_zeros_is_written_right_before_what_reads_it() -> None:
    """Not before the products that the scatter could be joined with."""

    def step(rows, x, wide, w):
        y = jnp.tanh(jnp.tanh(x @ wide) @ wide.T) @ w
        return jnp.zeros((256, 64)).at[rows].add(y)

    rows = jax.ShapeDtypeStruct((64,), jnp.int32)
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    wide = jax.ShapeDtypeStruct((64, 4096), jnp.float32)
    args, zeros = [rows, x, wide, x], "broadcast_in_dim"
    equations = planned_equations(step, args, "gpu", 1, zeros)
    names = [e.primitive.name for e in equations]
    made = [e.outvars[0].aval.shape for e in equations]
    spread = made.index((256, 64))
    product = len(names) - 1 - names[::-1].index("dot_general")
    assert "optimization_barrier" in names[product:spread]


@pytest.mark.parametrize(("platform", "written"), [("cpu", 0), ("gpu", 1)])
def test_on_gpu_a_dropout_mask_is_written_for_a_softmax(
    monkeypatch, platform, written
) -> None:
    # On GPU JAX itself draws in a straight line.
    monkeypatch.setattr("coop_jax._fitting.compile.in_line", lambda program: program)

    def step(key, x, w):
        def loss(x):
            probabilities = jax.nn.softmax(x @ w)
            kept = jax.random.bernoulli(key, 0.9, x.shape)
            also = jax.random.bernoulli(jax.random.fold_in(key, 1), 0.9, x.shape)
            dropped = jnp.where(kept, probabilities, 0) @ w
            return jnp.sum(jnp.where(also, jnp.tanh(dropped), 0) @ w)

        return jax.grad(loss)(x)

    key = jax.eval_shape(lambda: jax.random.key(0))
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    equations = planned_equations(step, [key, x, x], platform, 0, "exp")
    barriers = [e for e in equations if e.primitive.name == "optimization_barrier"]
    alone = [e.invars[0].aval for e in barriers if len(e.invars) == 1]
    # Not the other mask, which no softmax reads.
    assert sum(aval.dtype == bool for aval in alone) == written


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
