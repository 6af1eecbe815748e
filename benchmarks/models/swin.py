"""Swin-T in flax.linen: attention in shifted windows, stochastic depth, AdamW.

Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows"
(2021). "small" keeps the four stages and halves width, window and about the image.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from .training_step import ADAM_EPSILON, TrainingStep, checkpoint_policy


@dataclass(frozen=True)
class Config:
    batch: int
    image: int
    width: int
    window: int
    classes: int
    depths: tuple[int, ...] = (2, 2, 6, 2)
    heads: tuple[int, ...] = (3, 6, 12, 24)
    drop_path: float = 0.2


SIZES = {"small": Config(4, 128, 48, 4, 100), "paper": Config(40, 224, 96, 7, 1000)}


class State(NamedTuple):
    params: Any
    opt_state: Any
    key: jax.Array


def _relative_positions(window: int) -> np.ndarray:
    """(window^2, window^2) rows of the table of biases."""
    rows, columns = np.divmod(np.arange(window**2), window)
    down = rows[:, None] - rows[None] + window - 1
    right = columns[:, None] - columns[None] + window - 1
    return down * (2 * window - 1) + right


def _to_windows(x, window: int):
    """(batch, height, width, features) -> (batch, windows, window^2, features)."""
    batch, height, width, features = x.shape
    x = x.reshape(batch, height // window, window, width // window, window, features)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(batch, -1, window**2, features)


def _from_windows(x, height: int, width: int, window: int):
    batch, features = x.shape[0], x.shape[-1]
    shape = (batch, height // window, width // window, window, window, features)
    x = x.reshape(shape).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(batch, height, width, features)


def _shift_mask(height: int, width: int, window: int, shift: int) -> np.ndarray:
    """Which pixels of a window were neighbours before the shift: (windows, n, n)."""

    def regions(length: int) -> np.ndarray:
        at = np.arange(length)
        return (at >= length - window).astype(int) + (at >= length - shift)

    region = 3 * regions(height)[:, None] + regions(width)[None]
    shape = (height // window, window, width // window, window)
    region = region.reshape(shape).transpose(0, 2, 1, 3).reshape(-1, window**2)
    return region[:, :, None] == region[:, None, :]


class WindowAttention(nn.Module):
    heads: int
    window: int
    shift: int

    @nn.compact
    def __call__(self, x):
        _, height, width, features = x.shape
        window, shift = self.window, self.shift
        if shift:
            x = jnp.roll(x, (-shift, -shift), axis=(1, 2))
        x = _to_windows(x, window)
        qkv = nn.Dense(3 * features, name="qkv")(x)
        q, k, v = jnp.split(qkv.reshape(*x.shape[:3], self.heads, -1), 3, axis=-1)
        scores = jnp.einsum("bwqhd,bwkhd->bwhqk", q, k) * q.shape[-1] ** -0.5
        shape = ((2 * window - 1) ** 2, self.heads)
        table = self.param("bias", nn.initializers.truncated_normal(0.02), shape)
        scores += table[_relative_positions(window)].transpose(2, 0, 1)
        if shift:
            mask = _shift_mask(height, width, window, shift)[:, None]
            scores = jnp.where(mask, scores, -100.0)
        mixed = jnp.einsum("bwhqk,bwkhd->bwqhd", jax.nn.softmax(scores), v)
        x = nn.Dense(features, name="out")(mixed.reshape(x.shape))
        x = _from_windows(x, height, width, window)
        return jnp.roll(x, (shift, shift), axis=(1, 2)) if shift else x


class Block(nn.Module):
    heads: int
    window: int
    shift: int
    drop_path: float

    @nn.compact
    def __call__(self, x):
        features = x.shape[-1]
        # Stochastic depth: the whole branch of an example, or nothing of it.
        drop = nn.Dropout(self.drop_path, broadcast_dims=(1, 2, 3), deterministic=False)
        attention = WindowAttention(self.heads, self.window, self.shift)
        x = x + drop(attention(nn.LayerNorm()(x)))
        y = nn.gelu(nn.Dense(4 * features)(nn.LayerNorm()(x)), approximate=False)
        return x + drop(nn.Dense(features)(y))


class Merge(nn.Module):
    """Four neighbouring patches become one of twice the features."""

    @nn.compact
    def __call__(self, x):
        batch, height, width, features = x.shape
        x = x.reshape(batch, height // 2, 2, width // 2, 2, features)
        x = x.transpose(0, 1, 3, 2, 4, 5).reshape(batch, height // 2, width // 2, -1)
        return nn.Dense(2 * features, use_bias=False)(nn.LayerNorm()(x))


class Swin(nn.Module):
    config: Config
    policy: str | None = None

    @nn.compact
    def __call__(self, x):
        c = self.config
        block = Block
        if self.policy is not None:
            block = nn.remat(Block, policy=checkpoint_policy(self.policy))
        rates = iter(np.linspace(0, c.drop_path, sum(c.depths)).tolist())
        x = nn.Conv(c.width, (4, 4), (4, 4), padding="VALID", name="patches")(x)
        x = nn.LayerNorm(name="patch_norm")(x)
        for i, (depth, heads) in enumerate(zip(c.depths, c.heads, strict=True)):
            if i > 0:
                x = Merge(name=f"merge{i}")(x)
            for j in range(depth):
                is_shifted = j % 2 == 1 and x.shape[1] > c.window
                shift = c.window // 2 if is_shifted else 0
                name = f"stage{i}_block{j}"
                x = block(heads, c.window, shift, next(rates), name=name)(x)
        x = nn.LayerNorm(name="norm")(x).mean(axis=(1, 2))
        return nn.Dense(c.classes, name="head")(x)


def build(size: str = "small", policy: str | None = None) -> TrainingStep:
    config = SIZES[size]
    model = Swin(config, policy)
    optimizer = optax.chain(
        optax.clip_by_global_norm(5.0),
        optax.adamw(1e-3, eps=ADAM_EPSILON, weight_decay=0.05),
    )

    def loss_fn(params, batch, key):
        logits: Any = model.apply(
            {"params": params}, batch["images"], rngs={"dropout": key}
        )
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
        rngs = {"params": init_key, "dropout": key}
        params = model.init(rngs, images)["params"]
        state = State(params, optimizer.init(params), key)
        return state, {"images": images, "labels": labels}

    return TrainingStep("swin", size, step, make_args)
