"""Vision transformer in flax.nnx: split and merged, so that the step is pure; AdamW.

Dosovitskiy et al., "An Image is Worth 16x16 Words" (2021). "paper" is ViT-B/16. Dropout
keys are handed down by the caller and live in the state, not in the module.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from .training_step import ADAM_EPSILON, TrainingStep, checkpoint_policy


@dataclass(frozen=True)
class Config:
    layers: int
    width: int
    heads: int
    image: int
    patch: int
    batch: int
    classes: int
    dropout: float = 0.1

    @property
    def tokens(self) -> int:
        return (self.image // self.patch) ** 2 + 1


SIZES = {
    "small": Config(6, 192, 3, 64, 8, 16, 100),
    "paper": Config(12, 768, 12, 224, 16, 64, 1000),
}


class State(NamedTuple):
    params: Any
    opt_state: Any
    key: jax.Array


class Attention(nnx.Module):
    def __init__(self, config: Config, rngs: nnx.Rngs):
        self.heads = config.heads
        self.qkv = nnx.Linear(config.width, 3 * config.width, rngs=rngs)
        self.out = nnx.Linear(config.width, config.width, rngs=rngs)

    def __call__(self, x):
        q, k, v = jnp.split(
            self.qkv(x).reshape(*x.shape[:2], self.heads, -1), 3, axis=-1
        )
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
        return self.out(mixed.reshape(x.shape))


class Block(nnx.Module):
    def __init__(self, config: Config, rngs: nnx.Rngs):
        width = config.width
        self.attention_norm = nnx.LayerNorm(width, rngs=rngs)
        self.attention = Attention(config, rngs)
        self.mlp_norm = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)
        self.dropout = nnx.Dropout(config.dropout, deterministic=False)

    def __call__(self, x, key):
        attention_key, hidden_key, mlp_key = jax.random.split(key, 3)
        y = self.attention(self.attention_norm(x))
        x = x + self.dropout(y, rngs=attention_key)
        y = jax.nn.gelu(self.up(self.mlp_norm(x)))
        y = self.down(self.dropout(y, rngs=hidden_key))
        return x + self.dropout(y, rngs=mlp_key)


class ViT(nnx.Module):
    def __init__(self, config: Config, rngs: nnx.Rngs):
        width, patch = config.width, (config.patch, config.patch)
        normal = nnx.initializers.normal(0.02)
        self.patches = nnx.Conv(3, width, patch, patch, padding="VALID", rngs=rngs)
        self.class_token = nnx.Param(normal(rngs.params(), (1, 1, width)))
        self.positions = nnx.Param(normal(rngs.params(), (1, config.tokens, width)))
        self.dropout = nnx.Dropout(config.dropout, deterministic=False)
        self.blocks = nnx.List([Block(config, rngs) for _ in range(config.layers)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, config.classes, rngs=rngs)

    def __call__(self, images, key, policy: str | None = None):
        run = Block.__call__
        if policy is not None:
            run = nnx.remat(run, policy=checkpoint_policy(policy))
        x = self.patches(images)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        first = jnp.broadcast_to(self.class_token[...], (x.shape[0], 1, x.shape[-1]))
        x = jnp.concatenate([first, x], axis=1) + self.positions[...]
        key, *block_keys = jax.random.split(key, len(self.blocks) + 1)
        x = self.dropout(x, rngs=key)
        for block, block_key in zip(self.blocks, block_keys, strict=True):
            x = run(block, x, block_key)
        return self.head(self.norm(x)[:, 0])


def build(size: str = "small", policy: str | None = None) -> TrainingStep:
    config = SIZES[size]
    optimizer = optax.adamw(1e-3, eps=ADAM_EPSILON, weight_decay=0.05)
    graph = nnx.graphdef(nnx.eval_shape(lambda: ViT(config, nnx.Rngs(0))))

    def loss_fn(params, batch, key):
        logits = nnx.merge(graph, params)(batch["images"], key, policy)
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits, batch["labels"]
        )
        return losses.mean()

    def step(state, batch):
        key, dropout_key = jax.random.split(state.key)
        loss, grads = jax.value_and_grad(loss_fn)(state.params, batch, dropout_key)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return State(params, opt_state, key), {"loss": loss}

    @jax.jit
    def make_args():
        init_key, image_key, label_key, key = jax.random.split(jax.random.key(0), 4)
        shape = (config.batch, config.image, config.image, 3)
        images = jax.random.normal(image_key, shape)
        labels = jax.random.randint(label_key, (config.batch,), 0, config.classes)
        params = nnx.state(ViT(config, nnx.Rngs(init_key)))
        state = State(params, optimizer.init(params), key)
        return state, {"images": images, "labels": labels}

    return TrainingStep("vit", size, step, make_args)
