"""A decoder in the style of GPT-3 in plain JAX: dictionaries and functions; Adam.

Brown et al., "Language Models are Few-Shot Learners" (2020); every other layer attends
in a band, as there. "paper" is the row of 2.7 billion parameters, all float32.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .training_step import ADAM_EPSILON, TrainingStep, checkpoint_policy


@dataclass(frozen=True)
class Config:
    layers: int
    width: int
    heads: int
    length: int
    batch: int
    vocabulary: int
    band: int


SIZES = {
    "small": Config(4, 256, 8, 128, 8, 2048, 32),
    "paper": Config(32, 2560, 32, 2048, 2, 50257, 256),
}


class State(NamedTuple):
    params: Any
    opt_state: Any


def _dense(x, layer):
    return x @ layer["kernel"] + layer["bias"]


def _norm(x, layer):
    x = x - x.mean(-1, keepdims=True)
    x *= jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-5)
    return x * layer["scale"] + layer["bias"]


def _attention(x, layer, heads: int, band: int | None):
    batch, length, width = x.shape
    qkv = _dense(x, layer["qkv"]).reshape(batch, length, heads, -1)
    q, k, v = jnp.split(qkv, 3, axis=-1)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    seen = jnp.tril(jnp.ones((length, length), dtype=bool))
    if band is not None:
        seen = jnp.triu(seen, 1 - band)
    probabilities = jax.nn.softmax(jnp.where(seen, scores, -1e9))
    mixed = jnp.einsum("bhqk,bkhd->bqhd", probabilities, v)
    return _dense(mixed.reshape(batch, length, width), layer["out"])


def _block(x, block, heads: int, band: int | None):
    x = x + _attention(_norm(x, block["attention_norm"]), block, heads, band)
    hidden = jax.nn.gelu(_dense(_norm(x, block["mlp_norm"]), block["up"]))
    return x + _dense(hidden, block["down"])


def _logits(params, tokens, config: Config, policy: str | None):
    run = _block
    if policy is not None:
        run = jax.checkpoint(
            _block, policy=checkpoint_policy(policy), static_argnums=(2, 3)
        )
    x = params["tokens"][tokens] + params["positions"]
    for i, block in enumerate(params["blocks"]):
        x = run(x, block, config.heads, config.band if i % 2 else None)
    return _norm(x, params["norm"]) @ params["tokens"].T


def _initial(config: Config, key):
    width = config.width

    def dense(key, rows: int, columns: int, scale: float = 0.02):
        kernel = scale * jax.random.normal(key, (rows, columns))
        return {"kernel": kernel, "bias": jnp.zeros(columns)}

    def norm():
        return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}

    def block(key):
        keys = jax.random.split(key, 4)
        # What adds to the residual stream starts smaller, the deeper the stack.
        scale = 0.02 * (2 * config.layers) ** -0.5
        return {
            "attention_norm": norm(),
            "qkv": dense(keys[0], width, 3 * width),
            "out": dense(keys[1], width, width, scale),
            "mlp_norm": norm(),
            "up": dense(keys[2], width, 4 * width),
            "down": dense(keys[3], 4 * width, width, scale),
        }

    tokens_key, positions_key, *keys = jax.random.split(key, 2 + config.layers)
    return {
        "tokens": 0.02 * jax.random.normal(tokens_key, (config.vocabulary, width)),
        "positions": 0.01 * jax.random.normal(positions_key, (config.length, width)),
        "blocks": [block(key) for key in keys],
        "norm": norm(),
    }


def build(size: str = "small", policy: str | None = None) -> TrainingStep:
    config = SIZES[size]
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(1.6e-4, b2=0.95, eps=ADAM_EPSILON, weight_decay=0.1),
    )

    def loss_fn(params, batch):
        logits = _logits(params, batch["tokens"], config, policy)
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits, batch["targets"]
        )
        return losses.mean()

    def step(state, batch):
        loss, grads = jax.value_and_grad(loss_fn)(state.params, batch)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        return State(optax.apply_updates(state.params, updates), opt_state), {
            "loss": loss
        }

    @jax.jit
    def make_args():
        params_key, batch_key = jax.random.split(jax.random.key(0))
        shape = (config.batch, config.length + 1)
        text = jax.random.randint(batch_key, shape, 0, config.vocabulary)
        params = _initial(config, params_key)
        batch = {"tokens": text[:, :-1], "targets": text[:, 1:]}
        return State(params, optimizer.init(params)), batch

    return TrainingStep("gpt3", size, step, make_args)
