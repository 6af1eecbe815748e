"""U-Net in flax.linen: a pixel classifier with skips over the whole depth; SGD.

Ronneberger et al., "U-Net: Convolutional Networks for Biomedical Image Segmentation"
(2015), with "same" padding and batch norm, as in most code that bears its name; the
optimizer is the paper's, momentum 0.99.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from .training_step import TrainingStep, checkpoint_policy


@dataclass(frozen=True)
class Config:
    batch: int
    height: int
    width: int
    features: int
    depth: int = 4
    classes: int = 2


SIZES = {"small": Config(4, 92, 120, 16), "paper": Config(5, 460, 608, 64)}


class State(NamedTuple):
    params: Any
    batch_stats: Any
    opt_state: Any


class TwoConvolutions(nn.Module):
    features: int

    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            x = nn.Conv(self.features, (3, 3), use_bias=False)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=False, momentum=0.9)(x))
        return x


class Down(nn.Module):
    features: int

    @nn.compact
    def __call__(self, x):
        return TwoConvolutions(self.features)(nn.max_pool(x, (2, 2), (2, 2)))


class Up(nn.Module):
    features: int

    @nn.compact
    def __call__(self, x, skip):
        x = nn.ConvTranspose(self.features, (2, 2), (2, 2), padding="VALID")(x)
        # Pooling rounds odd sizes down.
        missing = [(s - n) for s, n in zip(skip.shape[1:3], x.shape[1:3], strict=True)]
        sides = [(n // 2, n - n // 2) for n in missing]
        x = jnp.pad(x, [(0, 0), *sides, (0, 0)])
        return TwoConvolutions(self.features)(jnp.concatenate([skip, x], axis=-1))


class UNet(nn.Module):
    config: Config
    policy: str | None = None

    @nn.compact
    def __call__(self, x):
        c = self.config
        first: Any = TwoConvolutions
        down: Any = Down
        up: Any = Up
        if self.policy is not None:
            policy = checkpoint_policy(self.policy)
            first, down, up = (nn.remat(b, policy=policy) for b in (first, down, up))
        skips = [first(c.features, name="first")(x)]
        for i in range(1, c.depth + 1):
            skips.append(down(c.features * 2**i, name=f"down{i}")(skips[-1]))
        x = skips.pop()
        for i in reversed(range(c.depth)):
            x = up(c.features * 2**i, name=f"up{i}")(x, skips.pop())
        return nn.Conv(c.classes, (1, 1), name="head")(x)


def build(size: str = "small", policy: str | None = None) -> TrainingStep:
    config = SIZES[size]
    model = UNet(config, policy)
    optimizer = optax.sgd(1e-2, momentum=0.99)

    def loss_fn(params, batch_stats, batch):
        logits, updated = model.apply(
            {"params": params, "batch_stats": batch_stats},
            batch["images"],
            mutable=["batch_stats"],
        )
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["masks"])
        return losses.mean(), updated["batch_stats"]

    def step(state, batch):
        (loss, batch_stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(
            state.params, state.batch_stats, batch
        )
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return State(params, batch_stats, opt_state), {"loss": loss}

    @jax.jit
    def make_args():
        init_key, image_key, mask_key = jax.random.split(jax.random.key(0), 3)
        shape = (config.batch, config.height, config.width)
        images = jax.random.normal(image_key, (*shape, 3))
        masks = jax.random.randint(mask_key, shape, 0, config.classes)
        variables = model.init(init_key, images)
        params = variables["params"]
        state = State(params, variables["batch_stats"], optimizer.init(params))
        return state, {"images": images, "masks": masks}

    return TrainingStep("unet", size, step, make_args)
