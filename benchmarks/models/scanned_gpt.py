"""A GPT whose layers are one `lax.scan` over stacked parameters, in plain JAX.

Dropout in attention and behind both halves of a block, from one key per layer; AdamW
after clipping by the global norm; gradients accumulated over micro-batches in a scan,
and layers skipped by chance with a `cond`, where asked. "paper" is GPT-2 medium with
bfloat16 activations.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from .gpt_step import State, accumulated, adamw, random_text, step_function
from .training_step import TrainingStep, checkpoint_policy


@dataclass(frozen=True)
class Config:
    """Sizes; `batch` is per micro-batch, of which a step takes `micro_batches`.

    `skipped` is the share of layers that a step leaves out (LayerDrop: Fan et al.,
    2020).
    """

    layers: int
    width: int
    heads: int
    length: int
    batch: int
    vocabulary: int
    dtype: Any = jnp.float32
    dropout: float = 0.1
    micro_batches: int = 1
    skipped: float = 0.0


SIZES = {
    "small": Config(24, 128, 4, 128, 16, 1024),
    "paper": Config(24, 1024, 16, 1024, 8, 50257, jnp.bfloat16),
}


def _norm(x, scale):
    y = x.astype(jnp.float32)
    y = y - y.mean(-1, keepdims=True)
    y = y * lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-5)
    return (y * scale).astype(x.dtype)


def _dropout(x, rate, key):
    kept = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(kept, x / (1 - rate), 0)


def _attention(config, layer, x, key):
    def heads(y):
        return y.reshape(*y.shape[:2], config.heads, -1)

    qkv = x @ layer["qkv"].astype(x.dtype)
    q, k, v = map(heads, jnp.split(qkv, 3, axis=-1))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32)
    causal = jnp.tril(jnp.ones(scores.shape[-2:], dtype=bool))
    scores = jnp.where(causal, scores * q.shape[-1] ** -0.5, -1e9)
    probabilities = jax.nn.softmax(scores).astype(x.dtype)
    probabilities = _dropout(probabilities, config.dropout, key)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", probabilities, v).reshape(x.shape)
    return mixed @ layer["out"].astype(x.dtype)


def _mlp(layer, x):
    x = jax.nn.gelu(x @ layer["up"].astype(x.dtype))
    return x @ layer["down"].astype(x.dtype)


def _block(config, x, layer, key):
    keys = jax.random.split(key, 3)
    y = _attention(config, layer, _norm(x, layer["attention_norm"]), keys[0])
    x = x + _dropout(y, config.dropout, keys[1])
    y = _mlp(layer, _norm(x, layer["mlp_norm"]))
    return x + _dropout(y, config.dropout, keys[2])


def _block_or_not(config, x, layer, key):
    if not config.skipped:
        return _block(config, x, layer, key)
    chance_key, key = jax.random.split(key)
    is_kept = jax.random.bernoulli(chance_key, 1 - config.skipped)
    block = functools.partial(_block, config)
    return lax.cond(is_kept, block, lambda x, *_: x, x, layer, key)


def _init(config, key):
    width, vocabulary = config.width, config.vocabulary
    shapes = {
        "qkv": (width, 3 * width),
        "out": (width, width),
        "up": (width, 4 * width),
        "down": (4 * width, width),
    }
    keys = iter(jax.random.split(key, 2 + len(shapes)))

    def normal(shape):
        return 0.02 * jax.random.normal(next(keys), shape)

    blocks = {name: normal((config.layers, *s)) for name, s in shapes.items()}
    for name in ("attention_norm", "mlp_norm"):
        blocks[name] = jnp.ones((config.layers, width))
    return {
        "tokens": normal((vocabulary, width)),
        "positions": normal((config.length, width)),
        "norm": jnp.ones(width),
        "blocks": blocks,
    }


def loss_function(config: Config, policy: str | None = None, unroll: int = 1):
    """The mean loss as a function of (params, tokens, targets, key)."""

    def body(x, layer_and_key):
        return _block_or_not(config, x, *layer_and_key), None

    if policy is not None:
        # Scan keeps the copies apart by itself, so JAX's advice is `prevent_cse=False`.
        body = jax.checkpoint(body, policy=checkpoint_policy(policy), prevent_cse=False)

    def loss_of(params, batch, key):
        embed_key, blocks_key = jax.random.split(key)
        x = params["tokens"][batch["tokens"]] + params["positions"]
        x = _dropout(x.astype(config.dtype), config.dropout, embed_key)
        keys = jax.random.split(blocks_key, config.layers)
        x, _ = lax.scan(body, x, (params["blocks"], keys), unroll=unroll)
        x = _norm(x, params["norm"])
        logits = (x @ params["tokens"].T.astype(x.dtype)).astype(jnp.float32)
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits, batch["targets"]
        )
        return losses.mean()

    return loss_of


def build(size: str = "small", policy: str | None = None, **changes: Any):
    """The step; `changes` replaces fields of the size's `Config`."""
    config = replace(SIZES[size], **changes)
    optimizer = adamw()
    value_and_grad = accumulated(loss_function(config, policy), config.micro_batches)
    step = step_function(value_and_grad, optimizer)

    @jax.jit
    def make_args():
        init_key, dropout_key, batch_key = jax.random.split(jax.random.key(0), 3)
        shape = (config.micro_batches * config.batch, config.length + 1)
        batch = random_text(batch_key, shape, config.vocabulary)
        params = _init(config, init_key)
        return State(params, optimizer.init(params), dropout_key), batch

    return TrainingStep("scanned_gpt", size, step, make_args)
