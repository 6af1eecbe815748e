"""A small training step and its plan, for tests of what is done with plans."""

import functools

import jax
import jax.numpy as jnp

import coop_jax

LAYERS, ROWS, WIDTH = 8, 1024, 64
SHAPES = (
    [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS,
    jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32),
)


# Refinement makes plans cheaper, which is not what these tests are about.
OPTIONS = {"donate_argnums": 0, "time_limit": 0.3}


def train_step(weights, x):
    def loss_of(weights):
        y = x
        for i, w in enumerate(weights):
            with jax.named_scope(f"layer_{i}"):
                y = jnp.tanh(y @ w)
        return jnp.mean(y**2)

    loss, grads = jax.value_and_grad(loss_of)(weights)
    return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)], loss


def make_args(rows=ROWS):
    return SHAPES[0], jax.ShapeDtypeStruct((rows, WIDTH), jnp.float32)


@functools.cache
def small_plan(budget=0.6):
    return coop_jax.remat(train_step, budget, **OPTIONS).plan(*SHAPES)
