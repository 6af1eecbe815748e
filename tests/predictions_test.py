"""Bytes that a plan is predicted to take beside those that XLA:CPU gives it."""

import jax
import jax.numpy as jnp
import pytest

from coop_jax._fitting.compile import flat_step
from coop_jax._fitting.solve import Workbench
from coop_jax._planning.planner import Effort

WIDTH, ROWS, LAYERS = 128, (16, 128), 8
ACTIVATIONS = {
    "relu": lambda x: jnp.maximum(x, 0),
    "tanh": jnp.tanh,
    "gelu": jax.nn.gelu,
}


def float32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="kernels of XLA:CPU")
@pytest.mark.parametrize("rows", [ROWS, (ROWS[0] * ROWS[1],)], ids=["3d", "2d"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_stack_of_layers_takes_what_is_predicted(
    activation: str, rows: tuple[int, ...]
) -> None:
    """All arrays are alike, so that every tick of XLA's clock counts.

    So does whether a kernel takes over the bytes of a product, which is a matrix to
    XLA, and what is computed once more, turned around, for a weight's gradient.
    """

    def step(weights, x):
        def loss(weights):
            y = x
            for w in weights:
                y = ACTIVATIONS[activation](y @ w)
            return jnp.mean(y**2)

        grads = jax.grad(loss)(weights)
        return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)]

    args = [float32(WIDTH, WIDTH)] * LAYERS, float32(*rows, WIDTH)
    traced = jax.jit(step, donate_argnums=0).trace(*args)
    bench = Workbench(flat_step(traced, jax.tree.leaves(args)))
    written = bench.unplanned
    effort, tried = Effort(time_limit=10.0), 0
    for share in (0.7, 0.5, 0.35):
        budget = written.fixed + int(share * written.temp)
        found = bench.try_once(budget, effort)
        if found is not None:
            tried += 1
            assert found.predicted == pytest.approx(found.memory.temp, rel=0.01)
    assert tried >= 2


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
