"""What the GPTs have in common around their layers: state, optimizer, loss, step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import lax

from .training_step import ADAM_EPSILON


class State(NamedTuple):
    params: Any
    opt_state: Any
    key: jax.Array


def adamw() -> optax.GradientTransformation:
    """AdamW after clipping by the global norm."""
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(3e-4, b2=0.95, eps=ADAM_EPSILON, weight_decay=0.1),
    )


def loss_function(model: nn.Module) -> Callable:
    """Mean cross entropy of a flax model's next tokens."""

    def loss_fn(params, batch, key):
        logits: Any = model.apply(
            {"params": params}, batch["tokens"], rngs={"dropout": key}
        )
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits.astype(jnp.float32), batch["targets"]
        )
        return losses.mean()

    return loss_fn


def accumulated(loss_of: Callable, parts: int) -> Callable:
    """`value_and_grad` of the mean over `parts` micro-batches, one at a time."""
    if parts == 1:
        return jax.value_and_grad(loss_of)

    def value_and_grad(params, batch, key):
        pieces = jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), batch)

        def add(total, piece_and_key):
            value = jax.value_and_grad(loss_of)(params, *piece_and_key)
            return jax.tree.map(lambda a, b: a + b / parts, total, value), None

        zeros = jax.tree.map(jnp.zeros_like, (jnp.float32(0), params))
        total, _ = lax.scan(add, zeros, (pieces, jax.random.split(key, parts)))
        return total

    return value_and_grad


def step_function(
    value_and_grad: Callable, optimizer: optax.GradientTransformation
) -> Callable:
    """`step(state, batch) -> (state, metrics)`."""

    def step(state, batch):
        key, dropout_key = jax.random.split(state.key)
        loss, grads = value_and_grad(state.params, batch, dropout_key)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {"loss": loss, "gradient_norm": optax.tree.norm(grads)}
        return State(params, opt_state, key), metrics

    return step


def random_text(key: jax.Array, shape: tuple[int, int], vocabulary: int) -> dict:
    """Sequences of tokens, one longer than the model's, as tokens and targets."""
    text = jax.random.randint(key, shape, 0, vocabulary)
    return {"tokens": text[:, :-1], "targets": text[:, 1:]}
