"""GPT-2 in flax.linen: dropout everywhere, tied embedding, AdamW with clipping.

Radford et al., "Language Models are Unsupervised Multitask Learners" (2019). "paper" is
its smallest model, with bfloat16 activations and float32 parameters.
"""

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from .gpt_step import (
    State,
    accumulated,
    adamw,
    loss_function,
    random_text,
    step_function,
)
from .training_step import TrainingStep, checkpoint_policy


@dataclass(frozen=True)
class Config:
    layers: int
    width: int
    heads: int
    length: int
    batch: int
    vocabulary: int
    dtype: Any = jnp.float32
    dropout: float = 0.1


SIZES = {
    "small": Config(4, 256, 4, 256, 8, 2048),
    "paper": Config(12, 768, 12, 1024, 16, 50257, jnp.bfloat16),
}


class Attention(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x):
        c = self.config
        head_width = c.width // c.heads
        qkv = nn.Dense(3 * c.width, dtype=c.dtype, name="qkv")(x)
        q, k, v = jnp.split(qkv.reshape(*x.shape[:2], c.heads, -1), 3, axis=-1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * head_width**-0.5
        causal = jnp.tril(jnp.ones(scores.shape[-2:], dtype=bool))
        scores = jnp.where(causal, scores.astype(jnp.float32), -1e9)
        probabilities = jax.nn.softmax(scores).astype(c.dtype)
        probabilities = nn.Dropout(c.dropout, deterministic=False)(probabilities)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", probabilities, v).reshape(x.shape)
        return nn.Dense(c.width, dtype=c.dtype, name="out")(mixed)


class Mlp(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x):
        c = self.config
        x = jax.nn.gelu(nn.Dense(4 * c.width, dtype=c.dtype, name="up")(x))
        return nn.Dense(c.width, dtype=c.dtype, name="down")(x)


class Block(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x):
        c = self.config
        for name, layer in (("attention", Attention), ("mlp", Mlp)):
            y = nn.LayerNorm(dtype=c.dtype, name=f"{name}_norm")(x)
            y = layer(c, name=name)(y)
            x = x + nn.Dropout(c.dropout, deterministic=False)(y)
        return x


class Gpt2(nn.Module):
    """The model; with a policy, every `blocks` blocks are checkpointed as one."""

    config: Config
    policy: str | None = None
    blocks: int = 1

    @nn.compact
    def __call__(self, tokens):
        c = self.config
        embed = nn.Embed(c.vocabulary, c.width, dtype=c.dtype, name="tokens")
        positions = nn.Embed(c.length, c.width, dtype=c.dtype, name="positions")
        x = embed(tokens) + positions(jnp.arange(c.length))
        x = nn.Dropout(c.dropout, deterministic=False)(x)
        for first in range(0, c.layers, self.blocks):
            last = min(first + self.blocks, c.layers)

            def part(module, x, layers=range(first, last)):
                for i in layers:
                    x = Block(module.config, name=f"block_{i}")(x)
                return x

            if self.policy is not None:
                part = nn.remat(part, policy=checkpoint_policy(self.policy))
            x = part(self, x)
        return embed.attend(nn.LayerNorm(dtype=c.dtype, name="norm")(x))


def build(
    size: str = "small",
    policy: str | None = None,
    blocks: int = 1,
    micro_batches: int = 1,
) -> TrainingStep:
    """The step, with every `blocks` blocks checkpointed as one if there is a policy.

    Its gradients are those of `micro_batches` batches, accumulated.
    """
    config = SIZES[size]
    model = Gpt2(config, policy, blocks)
    optimizer = adamw()
    step = step_function(accumulated(loss_function(model), micro_batches), optimizer)

    @jax.jit
    def make_args():
        init_key, dropout_key, batch_key = jax.random.split(jax.random.key(0), 3)
        shape = (micro_batches * config.batch, config.length + 1)
        batch = random_text(batch_key, shape, config.vocabulary)
        rngs = {"params": init_key, "dropout": dropout_key}
        params = model.init(rngs, batch["tokens"])["params"]
        return State(params, optimizer.init(params), dropout_key), batch

    return TrainingStep("gpt2", size, step, make_args)
