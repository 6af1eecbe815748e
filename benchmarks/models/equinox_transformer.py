"""Equinox decoder transformer: bfloat16 compute, float32 master weights, Adam.

RMSNorm and SwiGLU as in Touvron et al., "LLaMA" (2023), with learned positions. The
model maps one sequence; the batch is a `vmap`.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
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

    @property
    def hidden(self) -> int:
        """8/3 of the width, so that SwiGLU has the parameters of a 4x MLP."""
        return -(-8 * self.width // 3 // 64) * 64


SIZES = {
    "small": Config(4, 256, 4, 256, 8, 2048),
    "paper": Config(12, 1024, 16, 1024, 8, 32000),
}


class State(NamedTuple):
    model: Any
    opt_state: Any


class Attention(eqx.Module):
    qkv: eqx.nn.Linear
    out: eqx.nn.Linear
    heads: int = eqx.field(static=True)

    def __init__(self, config: Config, key):
        qkv_key, out_key = jax.random.split(key)
        width = config.width
        self.qkv = eqx.nn.Linear(width, 3 * width, use_bias=False, key=qkv_key)
        self.out = eqx.nn.Linear(width, width, use_bias=False, key=out_key)
        self.heads = config.heads

    def __call__(self, x):
        qkv = jax.vmap(self.qkv)(x).reshape(len(x), self.heads, -1)
        q, k, v = jnp.split(qkv, 3, axis=-1)
        scores = jnp.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
        causal = jnp.tril(jnp.ones(scores.shape[-2:], dtype=bool))
        scores = jnp.where(causal, scores.astype(jnp.float32), -1e9)
        probabilities = jax.nn.softmax(scores).astype(x.dtype)
        mixed = jnp.einsum("hqk,khd->qhd", probabilities, v)
        return jax.vmap(self.out)(mixed.reshape(x.shape))


class SwiGlu(eqx.Module):
    gate: eqx.nn.Linear
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, config: Config, key):
        keys = jax.random.split(key, 3)
        width, hidden = config.width, config.hidden
        self.gate = eqx.nn.Linear(width, hidden, use_bias=False, key=keys[0])
        self.up = eqx.nn.Linear(width, hidden, use_bias=False, key=keys[1])
        self.down = eqx.nn.Linear(hidden, width, use_bias=False, key=keys[2])

    def __call__(self, x):
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


class Block(eqx.Module):
    attention_norm: eqx.nn.RMSNorm
    attention: Attention
    mlp_norm: eqx.nn.RMSNorm
    mlp: SwiGlu

    def __init__(self, config: Config, key):
        attention_key, mlp_key = jax.random.split(key)
        self.attention_norm = eqx.nn.RMSNorm(config.width, use_bias=False)
        self.attention = Attention(config, attention_key)
        self.mlp_norm = eqx.nn.RMSNorm(config.width, use_bias=False)
        self.mlp = SwiGlu(config, mlp_key)

    def __call__(self, x):
        x = x + self.attention(jax.vmap(self.attention_norm)(x))
        return x + jax.vmap(self.mlp)(jax.vmap(self.mlp_norm)(x))


class Transformer(eqx.Module):
    tokens: eqx.nn.Embedding
    positions: eqx.nn.Embedding
    blocks: list[Block]
    norm: eqx.nn.RMSNorm
    head: eqx.nn.Linear

    def __init__(self, config: Config, key):
        width = config.width
        tokens_key, positions_key, head_key, *keys = jax.random.split(
            key, 3 + config.layers
        )
        self.tokens = eqx.nn.Embedding(config.vocabulary, width, key=tokens_key)
        self.positions = eqx.nn.Embedding(config.length, width, key=positions_key)
        self.blocks = [Block(config, key) for key in keys]
        self.norm = eqx.nn.RMSNorm(width, use_bias=False)
        self.head = eqx.nn.Linear(
            width, config.vocabulary, use_bias=False, key=head_key
        )

    def __call__(self, tokens, policy: str | None = None):
        x = jax.vmap(self.tokens)(tokens) + self.positions.weight
        for block in self.blocks:
            if policy is not None:
                block = eqx.filter_checkpoint(block, policy=checkpoint_policy(policy))
            x = block(x)
        return jax.vmap(self.head)(jax.vmap(self.norm)(x))


def build(size: str = "small", policy: str | None = None) -> TrainingStep:
    config = SIZES[size]
    optimizer = optax.adam(3e-4, eps=ADAM_EPSILON)

    def loss_fn(model, batch):
        model = jax.tree.map(lambda weight: weight.astype(jnp.bfloat16), model)
        logits = jax.vmap(lambda tokens: model(tokens, policy))(batch["tokens"])
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits.astype(jnp.float32), batch["targets"]
        )
        return losses.mean()

    def step(state, batch):
        loss, grads = jax.value_and_grad(loss_fn)(state.model, batch)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.model)
        model = optax.apply_updates(state.model, updates)
        return State(model, opt_state), {"loss": loss}

    @jax.jit
    def make_args():
        model_key, batch_key = jax.random.split(jax.random.key(0))
        shape = (config.batch, config.length + 1)
        text = jax.random.randint(batch_key, shape, 0, config.vocabulary)
        model: Any = Transformer(config, model_key)
        batch = {"tokens": text[:, :-1], "targets": text[:, 1:]}
        return State(model, optimizer.init(model)), batch

    return TrainingStep("equinox_transformer", size, step, make_args)
