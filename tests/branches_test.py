"""A `cond` in a scanned body, taken apart into its dearest branch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from coop_jax._fitting.compile import flat_step
from coop_jax._loops.branches import branch_steps, take_apart
from coop_jax._loops.loop_plan import Variant
from coop_jax._loops.loop_sites import find_sites, rewritten
from coop_jax._program.flatten import flatten

LAYERS, ROWS, WIDTH = 6, 32, 8


def block(x, w):
    return x + jnp.tanh(jnp.sin(x @ w) @ w.T)


def dear_too(x, w):
    return x - jnp.sin(x @ w @ w.T)


def step(other):
    """A training step whose layers are `block` or `other`, by the sign of a weight."""

    def train(w, x):
        def body(x, w):
            return lax.cond(w[0, 0] > 0, block, other, x, w), None

        def loss_of(w):
            return jnp.mean(lax.scan(body, x, w)[0] ** 2)

        loss, grad = jax.value_and_grad(loss_of)(w)
        return w - 0.1 * grad, loss

    return train


def arguments():
    keys = jax.random.split(jax.random.key(0))
    w = jax.random.normal(keys[0], (LAYERS, WIDTH, WIDTH)) / WIDTH
    return w, jax.random.normal(keys[1], (ROWS, WIDTH))


def site_of(train):
    args = arguments()
    traced = jax.jit(train).trace(*args)
    program = flat_step(traced, jax.tree.leaves(args)).program
    (site,) = find_sites(program, "cpu")
    return program, site


def names(site):
    return [equation.primitive.name for equation in site.pair.joint.program.equations]


def test_the_dearest_branch_takes_the_place_of_the_cond():
    def forward(x, y):
        return lax.cond(x[0] > 0, lambda x: x @ x, lambda x: x[0], x), y

    closed = jax.make_jaxpr(lambda x, y: (forward(x, y)[0] * y,))(
        jnp.ones(9), jnp.ones(())
    )
    program = flatten(closed, (False, False))
    place = [e.primitive.name for e in program.equations].index("cond")
    changed, boundary, apart = take_apart(program, place + 1)
    inside = [changed.equations[k] for k in apart]
    # The product, and the exit, which reads the operand for the other branch.
    assert [e.primitive.name for e in inside] == ["dot_general", "select_n"]
    assert inside[1].inputs[0] == inside[0].outputs[0]
    assert program.arguments[0] in inside[1].inputs
    assert boundary == place + 2
    steps = branch_steps(range(len(changed.equations)), changed.equations, apart)
    assert tuple(apart) in steps
    assert len(steps) == len(program.equations)


def test_a_cond_with_one_dear_branch_is_planned_inside():
    _, site = site_of(step(lambda x, w: 0.5 * x))
    # Only the gradient's is left.
    assert names(site).count("cond") == 1
    rows = [corner.row for corner in site.choices.corners]
    assert len(rows) > 2


def test_a_cond_with_two_dear_branches_is_left_whole():
    _, site = site_of(step(dear_too))
    assert names(site).count("cond") == 2


def test_branches_for_one_platform_each_are_left_whole():
    """XLA would be given those of the others too."""

    def body(x, w):
        branches = {"cpu": lambda x, w: x @ w @ w.T, "cuda": lambda x, w: x}
        return lax.platform_dependent(x, w, **branches) * 2

    x = jnp.ones((4, 4))
    program = flatten(jax.make_jaxpr(body)(x, x), (False, False))
    place = [e.primitive.name for e in program.equations].index("cond")
    assert not take_apart(program, place + 1)[2]


def in_a_map(other, is_checked):
    """A step inside `jax.shard_map`, whose layers are `block` or `other`."""
    mesh = jax.make_mesh((1,), ("data",), (AxisType.Auto,))

    def local(w, kept, x):
        def body(x, layer):
            w, is_kept = layer
            return jnp.tanh(lax.cond(is_kept, block, other, x, w)), None

        def loss_of(w):
            return jnp.mean(lax.scan(body, x, (w, kept))[0] ** 2)

        varying = lax.pcast(w, ("data",), to="varying") if is_checked else w
        loss, grad = jax.value_and_grad(loss_of)(varying)
        return w - 0.1 * lax.pmean(grad, "data"), lax.pmean(loss, "data")

    specs = (P(), P(), P("data"))
    step = jax.shard_map(
        local, mesh=mesh, in_specs=specs, out_specs=(P(), P()), check_vma=is_checked
    )
    w, x = arguments()
    args = w, jnp.arange(LAYERS) % 3 != 1, x
    program = flat_step(jax.jit(step).trace(*args), jax.tree.leaves(args)).program
    (site,) = find_sites(program, "cpu")
    return step, args, program, site


def test_inside_a_map_what_the_others_have_no_value_for_varies_like_the_value():
    step, args, program, site = in_a_map(lambda x, w: x, is_checked=True)
    assert site.pair.joint.apart
    expected = jax.tree.leaves(jax.jit(step)(*args))
    for corner in site.choices.corners:
        plan = site.loop_plan(Variant(corner, 0, 0, 0.0))
        changed = rewritten(program, [plan], "cpu")
        assert changed.mapped is not None
        around = changed.mapped.around(lambda *a, c=changed: c.evaluate(a))
        for a, b in zip(jax.jit(around)(*args), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def test_a_cond_that_communicates_in_any_branch_is_left_whole():
    _, _, _, site = in_a_map(lambda x, w: lax.pmean(x, "data"), is_checked=False)
    assert not site.pair.joint.apart


@pytest.mark.parametrize("other", [lambda x, w: 0.5 * x, lambda x, w: x, dear_too])
def test_whatever_is_kept_the_results_are_the_same(other):
    args = arguments()
    train = step(other)
    program, site = site_of(train)
    expected = jax.tree.leaves(jax.jit(train)(*args))
    for corner in site.choices.corners:
        plan = site.loop_plan(Variant(corner, 0, 0, 0.0))
        changed = rewritten(program, [plan], "cpu")
        found = jax.jit(changed.evaluate)(jax.tree.leaves(args))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
