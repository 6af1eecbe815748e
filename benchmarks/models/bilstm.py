"""A bidirectional LSTM in plain JAX, its time steps written out; Adam.

Hochreiter and Schmidhuber, "Long Short-Term Memory" (1997), read in both directions
(Graves and Schmidhuber, 2005), and a linear classifier over both last states. A Python
loop and no `lax.scan`: every time step is in view, as it is for an eager framework.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .training_step import ADAM_EPSILON, TrainingStep, checkpoint_policy


@dataclass(frozen=True)
class Config:
    batch: int
    length: int
    features: int
    hidden: int
    classes: int
    block: int
    """Time steps under one `jax.checkpoint`."""


SIZES = {
    "small": Config(256, 24, 100, 128, 10, 6),
    "paper": Config(2048, 128, 100, 256, 10, 16),
}


class State(NamedTuple):
    params: Any
    opt_state: Any


def _cell(carry, x, layer):
    cell, hidden = carry
    gates = x @ layer["input"] + hidden @ layer["recurrent"] + layer["bias"]
    enter, keep, new, leave = jnp.split(gates, 4, axis=-1)
    cell = jax.nn.sigmoid(keep) * cell + jax.nn.sigmoid(enter) * jnp.tanh(new)
    return cell, jax.nn.sigmoid(leave) * jnp.tanh(cell)


def _steps(carry, xs, layer):
    for x in xs:
        carry = _cell(carry, x, layer)
    return carry


def _last_state(xs, layer, config: Config, policy: str | None):
    """The hidden state after all of `xs`, one (batch, features) array a time step."""
    run = _steps
    if policy is not None:
        run = jax.checkpoint(_steps, policy=checkpoint_policy(policy))
    zeros = jnp.zeros((config.batch, config.hidden))
    carry = (zeros, zeros)
    for start in range(0, config.length, config.block):
        carry = run(carry, xs[start : start + config.block], layer)
    return carry[1]


def _logits(params, inputs, config: Config, policy: str | None):
    xs = [inputs[:, t] for t in range(config.length)]
    forwards = _last_state(xs, params["forwards"], config, policy)
    backwards = _last_state(xs[::-1], params["backwards"], config, policy)
    both = jnp.concatenate([forwards, backwards], axis=-1)
    return both @ params["head"] + params["head_bias"]


def _initial(config: Config, key):
    def uniform(key, *shape):
        limit = config.hidden**-0.5
        return jax.random.uniform(key, shape, minval=-limit, maxval=limit)

    def layer(key):
        input_key, recurrent_key = jax.random.split(key)
        return {
            "input": uniform(input_key, config.features, 4 * config.hidden),
            "recurrent": uniform(recurrent_key, config.hidden, 4 * config.hidden),
            "bias": jnp.zeros(4 * config.hidden),
        }

    keys = jax.random.split(key, 3)
    return {
        "forwards": layer(keys[0]),
        "backwards": layer(keys[1]),
        "head": uniform(keys[2], 2 * config.hidden, config.classes),
        "head_bias": jnp.zeros(config.classes),
    }


def build(size: str = "small", policy: str | None = None) -> TrainingStep:
    config = SIZES[size]
    optimizer = optax.adam(1e-3, eps=ADAM_EPSILON)

    def loss_fn(params, batch):
        logits = _logits(params, batch["inputs"], config, policy)
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits, batch["labels"]
        )
        return losses.mean()

    def step(state, batch):
        loss, grads = jax.value_and_grad(loss_fn)(state.params, batch)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return State(params, opt_state), {"loss": loss}

    @jax.jit
    def make_args():
        params_key, input_key, label_key = jax.random.split(jax.random.key(0), 3)
        shape = (config.batch, config.length, config.features)
        inputs = jax.random.normal(input_key, shape)
        labels = jax.random.randint(label_key, (config.batch,), 0, config.classes)
        params = _initial(config, params_key)
        state = State(params, optimizer.init(params))
        return state, {"inputs": inputs, "labels": labels}

    return TrainingStep("bilstm", size, step, make_args)
