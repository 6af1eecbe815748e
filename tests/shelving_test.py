"""Small values that wait together lie in one array."""

import dataclasses
import random
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Literal
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from coop_jax._fitting.compile import FlatStep, flat_step
from coop_jax._fitting.emit import emit
from coop_jax._fitting.shelf import Shelf
from coop_jax._measure import memory_use
from coop_jax._planning.types import Op, Problem, Value
from coop_jax._program.hlo import owned_buffers
from coop_jax._program.profile import Profile, profile
from coop_jax._program.scopes import scope
from coop_jax._program.shelving import shelved, small_size, without
from tests.eight_devices import rows_of

LAYERS, ROWS, WIDTH = 12, 256, 128


def waiting(sizes: list[int], read_at_once: int = 0) -> Problem:
    """Values made one after the other, which the last op reads, some of them before.

    Args:
      sizes: bytes of each.
      read_at_once: the first so many are read by an op right behind their own.
    """
    ops, values = list[Op](), list[Value]()
    for k, size in enumerate(sizes):
        made = len(values)
        values.append(Value(f"gradient {k}", size))
        ops.append(Op("gradient", (), (made,), 1.0))
        if k < read_at_once:
            values.append(Value(f"square {k}", 4))
            ops.append(Op("square", (made,), (made + 1,), 1.0))
    values.append(Value("update", 0, is_output=True))
    everything = tuple(range(len(values) - 1))
    return Problem(
        (*ops, Op("update", everything, (len(values) - 1,), 1.0)), tuple(values)
    )


def test_what_is_shelved_is_small_but_no_scalar_and_waits_with_others() -> None:
    problem = waiting([1000, 1 << 20, 4] * 8)
    assert small_size(problem) == 4096
    found = shelved(problem)
    assert found == tuple(range(0, 24, 3))
    assert without(problem, found).values[0].size == 0
    assert without(problem, found).values[1:3] == problem.values[1:3]
    assert shelved(waiting([1000, 1 << 20, 4] * 7)) == ()


def test_what_is_read_at_once_and_then_waits_is_shelved_too() -> None:
    assert shelved(waiting([1000] * 10, 10)) == tuple(range(0, 18, 2))


def test_what_is_read_as_it_comes_is_not() -> None:
    ops = tuple(Op("f", (k,), (k + 1,), 1.0) for k in range(20))
    assert shelved(Problem(ops, tuple(Value("", 1000) for _ in range(21)))) == ()


def train_step(state, x):
    """Weights and biases of two types, under the norm of all their gradients."""

    def loss_of(state):
        y = x
        for w, b, c in state:
            y = jnp.tanh(y @ w + b) * c.astype(jnp.float32)
        return jnp.mean(y**2)

    loss, grads = jax.value_and_grad(loss_of)(state)
    leaves = jax.tree.leaves(grads)
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(g.astype(jnp.float32))) for g in leaves))
    scale = jnp.minimum(1.0, 0.01 / norm)
    new = jax.tree.map(lambda p, g: (p - scale * g).astype(p.dtype), state, grads)
    return new, loss


def make_args():
    rng = np.random.default_rng(0)

    def layer():
        w, b, c = (rng.normal(size=s) for s in ((WIDTH, WIDTH), WIDTH, WIDTH))
        return (
            jnp.asarray(w / 8, jnp.float32),
            jnp.asarray(b, jnp.float32),
            jnp.asarray(c, jnp.bfloat16),
        )

    return [layer() for _ in range(LAYERS)], jnp.asarray(
        rng.normal(size=(ROWS, WIDTH)), jnp.float32
    )


def profiled():
    args = make_args()
    leaves = jax.tree.leaves(args)
    flat = flat_step(jax.jit(train_step, donate_argnums=0).trace(*args), leaves)
    return flat, with_shelf(flat)


def with_shelf(flat: FlatStep) -> Profile:
    """The profile of a step, with a shelf on CPU too."""
    program = flat.program
    compiled, buffers = flat.compile_with_buffers(
        lambda *values: program.evaluate(values, scope)
    )
    found = profile(program, buffers, memory_use(compiled).fixed, "cpu")
    assert not found.shelved
    values = shelved(found.problem)
    return dataclasses.replace(
        found,
        problem=without(found.problem, values),
        shelved=tuple(found.variable_of[v] for v in values),
    )


def test_values_that_vary_from_device_to_device_lie_apart() -> None:
    """What is read of the array would vary with the others in it."""

    def local(x, b):
        program = SimpleNamespace(avals={0: jax.typeof(x), 1: jax.typeof(b)})
        profiled: Any = SimpleNamespace(program=program, shelved=(0, 1))
        shelf = Shelf(profiled)
        shelf.put({0: x, 1: b})
        return shelf.take(0), shelf.take(1)

    mesh = jax.make_mesh((1,), ("data",), (AxisType.Auto,))
    specs = P("data"), P()
    mapped = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=specs)
    x, b = jnp.ones(4), jnp.arange(4.0)
    for found, expected in zip(jax.jit(mapped)(x, b), (x, b), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_on_gpu_a_profile_has_a_shelf_but_not_where_xla_splits_arrays() -> None:
    args = make_args()
    flat = flat_step(jax.jit(train_step).trace(*args), jax.tree.leaves(args))
    program = flat.program
    _, buffers = flat.compile_with_buffers(
        lambda *values: program.evaluate(values, scope)
    )
    found = profile(program, buffers, 0, "gpu")
    value_of = {v: k for k, v in enumerate(found.variable_of)}
    assert len(found.shelved) >= LAYERS
    assert all(found.problem.values[value_of[v]].size == 0 for v in found.shelved)
    sizes = [
        program.avals[v].size * program.avals[v].dtype.itemsize for v in found.shelved
    ]
    assert found.standing >= sum(sizes)
    split = dataclasses.replace(program, partitions=8)
    assert profile(split, buffers, 0, "gpu").shelved == ()


def test_xla_keeps_one_array_for_each_type_and_writes_it_in_place() -> None:
    flat, found = profiled()
    types = [str(found.program.avals[v].dtype) for v in found.shelved]
    assert types.count("float32") >= LAYERS - 1
    assert types.count("bfloat16") >= LAYERS - 1
    positions = [(k,) for k in range(len(found.problem.ops))]
    function = emit(found, positions)
    buffers = [b for b in owned_buffers(flat.compile(function)) if b.is_temporary]
    for dtype, itemsize in (("float32", 4), ("bfloat16", 2)):
        shelf = types.count(dtype) * WIDTH * itemsize
        assert len({b.place for b in buffers if b.size == shelf}) == 1

    bare = dataclasses.replace(found, shelved=())
    alone = owned_buffers(flat.compile(emit(bare, positions)))
    row = WIDTH * 2
    assert len({b.place for b in alone if b.size == row}) >= LAYERS - 1
    assert len({b.place for b in buffers if b.size == row}) < LAYERS / 2


def narrow_step(state, x):
    """Weights whose gradients are small: products of large arrays."""

    def loss_of(state):
        y = x
        for a, b in state:
            y = jnp.tanh(y @ a @ b)
        return jnp.mean(y**2)

    grads = jax.grad(loss_of)(state)
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)))
    return jax.tree.map(lambda p, g: p - 0.1 * g / norm, state, grads)


def shape_of(atom: Any) -> tuple[int, ...]:
    return atom.aval.shape


def test_what_comes_next_waits_for_a_product_that_is_about_to_be_shelved() -> None:
    """Else XLA may run it later, and the large arrays it reads stay meanwhile."""
    layer = (jnp.ones((WIDTH, 4)), jnp.ones((4, WIDTH)))
    args = [layer] * LAYERS, jnp.ones((ROWS, WIDTH))
    leaves = jax.tree.leaves(args)
    flat = flat_step(jax.jit(narrow_step, donate_argnums=0).trace(*args), leaves)
    found = with_shelf(flat)
    assert len(found.shelved) >= LAYERS
    function = emit(found, [(k,) for k in range(len(found.problem.ops))])
    equations = jax.make_jaxpr(function)(*leaves).jaxpr.eqns
    maker = {v: k for k, e in enumerate(equations) for v in e.outvars}
    is_barrier = [e.primitive.name == "optimization_barrier" for e in equations]
    inputs = [[v for v in e.invars if not isinstance(v, Literal)] for e in equations]
    read = {v for operands in inputs for v in operands}
    # XLA takes what nothing reads out of a barrier.
    kept = [
        [
            v
            for v, w in zip(e.invars, e.outvars, strict=True)
            if w in read and not isinstance(v, Literal)
        ]
        if is_barrier[k]
        else inputs[k]
        for k, e in enumerate(equations)
    ]
    sources = [{maker[v] for v in operands if v in maker} for operands in kept]
    products = [
        k
        for k, e in enumerate(equations)
        if e.primitive.name == "dot_general"
        and sorted(shape_of(e.outvars[0])) == [4, WIDTH]
        and any(is_barrier[k:])
    ]
    assert len(products) >= LAYERS
    for k in products:
        seen = {is_barrier.index(True, k)}
        while more := set().union(*(sources[at] for at in seen)) - seen:
            seen |= more
        assert k in seen


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_a_plan_gives_the_same_numbers(seed: int) -> None:
    """Ops that run again, before and after all is on the shelf."""
    _, found = profiled()
    rng = random.Random(seed)
    count = len(found.problem.ops)
    positions: list[tuple[int, ...]] = [(k,) for k in range(count)]
    for _ in range(10):
        k = rng.randrange(count - 1)
        if found.problem.ops[k].is_recomputable and not any(
            found.problem.values[v].overwrites is not None
            for v in found.problem.ops[k].outputs
        ):
            reads = [
                at
                for at in range(k + 1, count)
                if set(found.problem.ops[k].outputs) & set(found.problem.ops[at].inputs)
            ]
            if reads:
                positions[k] = tuple(sorted({*positions[k], rng.choice(reads)}))
    assert any(len(places) > 1 for places in positions)
    args = make_args()
    leaves = jax.tree.leaves(args)
    expected = jax.tree.leaves(jax.jit(train_step)(*args))
    again = jax.jit(emit(found, positions))(*leaves)
    for a, b in zip(again, expected, strict=True):
        np.testing.assert_allclose(
            np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=2e-2, atol=1e-5
        )


MAPPED = textwrap.dedent(
    """
    import json, sys
    import jax, jax.numpy as jnp
    from jax import lax
    from jax.sharding import AxisType, PartitionSpec as P
    from coop_jax._fitting.compile import flat_step
    from coop_jax._fitting.emit import emit

    sys.path.append(sys.argv[1])
    from tests.shelving_test import with_shelf

    LAYERS, ROWS, WIDTH = 12, 256, 64

    def local(state, x):
        def loss_of(state):
            y = x
            for w, b in state:
                y = jnp.tanh(y @ w + b)
            return jnp.mean(y**2)

        own = jax.tree.map(lambda a: lax.pcast(a, "data", to="varying"), state)
        grads = jax.grad(loss_of)(own)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        grads = lax.pmean(jax.tree.map(lambda g: g / norm, grads), "data")
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads)

    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    w = jnp.eye(WIDTH) + 0.01
    state = [(w, jnp.linspace(0, 1, WIDTH))] * LAYERS
    x = jnp.linspace(-1, 1, 8 * ROWS * WIDTH).reshape(-1, WIDTH)
    specs = {"in_specs": (P(), P("data")), "out_specs": P()}
    step = jax.shard_map(local, mesh=mesh, **specs)
    leaves = jax.tree.leaves((state, x))
    flat = flat_step(jax.jit(step).trace(state, x), leaves)
    found = with_shelf(flat)
    planned = emit(found, [(k,) for k in range(len(found.problem.ops))])
    pairs = zip(flat.compile(planned)(*leaves), jax.tree.leaves(step(state, x)))
    off = max(float(jnp.max(jnp.abs(a - b))) for a, b in pairs)
    print("row", json.dumps(["off", off]))
    print("row", json.dumps(["shelved", len(found.shelved)]))
    """
)


def test_a_step_inside_shard_map_has_a_shelf_on_each_device(tmp_path) -> None:
    rows = rows_of(MAPPED, [str(Path(__file__).parents[1])], tmp_path)
    assert rows["off"] < 1e-5
    assert rows["shelved"] >= 8


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
