"""BERT-Large in flax.linen: masked words and next sentence, dropout, AdamW.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers" (2019): norms
after the residual sums, tied decoder, the masked positions gathered before it.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
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
    masked: int
    dropout: float = 0.1


SIZES = {
    "small": Config(4, 256, 4, 128, 8, 2048, 20),
    "paper": Config(24, 1024, 16, 512, 16, 30522, 80),
}


class State(NamedTuple):
    params: Any
    opt_state: Any
    key: jax.Array


class Block(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x):
        c = self.config
        drop = nn.Dropout(c.dropout, deterministic=False)
        y = drop(nn.Dense(c.width, name="out")(self._attention(x)))
        x = nn.LayerNorm(name="attention_norm")(x + y)
        y = nn.gelu(nn.Dense(4 * c.width, name="up")(x), approximate=False)
        y = drop(nn.Dense(c.width, name="down")(y))
        return nn.LayerNorm(name="mlp_norm")(x + y)

    def _attention(self, x):
        c = self.config
        q, k, v = (
            nn.Dense(c.width, name=name)(x).reshape(*x.shape[:2], c.heads, -1)
            for name in ("query", "key", "value")
        )
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        probabilities = jax.nn.softmax(scores)
        probabilities = nn.Dropout(c.dropout, deterministic=False)(probabilities)
        return jnp.einsum("bhqk,bkhd->bqhd", probabilities, v).reshape(x.shape)


class Bert(nn.Module):
    config: Config
    policy: str | None = None

    @nn.compact
    def __call__(self, tokens, segments, masked):
        c = self.config
        embed = nn.Embed(c.vocabulary, c.width, name="tokens")
        x = embed(tokens) + nn.Embed(2, c.width, name="segments")(segments)
        x += nn.Embed(c.length, c.width, name="positions")(jnp.arange(c.length))
        x = nn.LayerNorm(name="embedding_norm")(x)
        x = nn.Dropout(c.dropout, deterministic=False)(x)
        block = Block
        if self.policy is not None:
            block = nn.remat(Block, policy=checkpoint_policy(self.policy))
        for i in range(c.layers):
            x = block(c, name=f"block_{i}")(x)
        pooled = nn.tanh(nn.Dense(c.width, name="pooler")(x[:, 0]))
        is_next = nn.Dense(2, name="next_sentence")(pooled)
        x = jnp.take_along_axis(x, masked[..., None], axis=1)
        x = nn.gelu(nn.Dense(c.width, name="transform")(x), approximate=False)
        x = nn.LayerNorm(name="transform_norm")(x)
        bias = self.param("bias", nn.initializers.zeros, (c.vocabulary,))
        return embed.attend(x) + bias, is_next


def build(size: str = "small", policy: str | None = None) -> TrainingStep:
    config = SIZES[size]
    model = Bert(config, policy)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(1e-4, eps=ADAM_EPSILON, weight_decay=0.01),
    )

    def loss_fn(params, batch, key):
        outputs: Any = model.apply(
            {"params": params},
            batch["tokens"],
            batch["segments"],
            batch["masked"],
            rngs={"dropout": key},
        )
        words, is_next = (
            optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            for logits, labels in zip(
                outputs, (batch["words"], batch["is_next"]), strict=True
            )
        )
        return words.mean() + is_next.mean()

    def step(state, batch):
        key, dropout_key = jax.random.split(state.key)
        loss, grads = jax.value_and_grad(loss_fn)(state.params, batch, dropout_key)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return State(params, opt_state, key), {"loss": loss}

    @jax.jit
    def make_args():
        keys = jax.random.split(jax.random.key(0), 6)
        c, shape = config, (config.batch, config.length)
        few = (config.batch, config.masked)
        batch = {
            "tokens": jax.random.randint(keys[0], shape, 0, c.vocabulary),
            "segments": jnp.tile(jnp.arange(c.length) >= c.length // 2, (c.batch, 1)),
            "masked": jnp.sort(jax.random.randint(keys[1], few, 0, c.length)),
            "words": jax.random.randint(keys[2], few, 0, c.vocabulary),
            "is_next": jax.random.randint(keys[3], (c.batch,), 0, 2),
        }
        batch["segments"] = batch["segments"].astype(jnp.int32)
        rngs = {"params": keys[4], "dropout": keys[5]}
        inputs = (batch["tokens"], batch["segments"], batch["masked"])
        params = model.init(rngs, *inputs)["params"]
        return State(params, optimizer.init(params), keys[5]), batch

    return TrainingStep("bert_large", size, step, make_args)
