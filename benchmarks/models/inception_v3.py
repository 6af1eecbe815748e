"""Inception V3 in flax.linen: parallel branches, an auxiliary classifier, RMSProp.

Szegedy et al., "Rethinking the Inception Architecture for Computer Vision" (2016). The
blocks are tables of branches. "small" has a quarter of the features; where its images
are too small for the auxiliary classifier's kernel, the kernel shrinks.
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
    image: int
    classes: int
    width: float = 1.0
    dropout: float = 0.5
    auxiliary_weight: float = 0.4


SIZES = {"small": Config(8, 139, 100, 0.25), "paper": Config(96, 299, 1000)}


class State(NamedTuple):
    params: Any
    batch_stats: Any
    opt_state: Any
    key: jax.Array


@dataclass(frozen=True)
class Layer:
    """A convolution, batch norm and relu; `valid` is "VALID" padding."""

    features: int
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1
    is_valid: bool = False


@dataclass(frozen=True)
class Split:
    """Layers side by side on the same input."""

    layers: tuple[Layer, ...]


AVERAGE, MAXIMUM = "average", "maximum"
type Branch = tuple[Layer | Split | str, ...]


def _halved(features: int) -> Layer:
    return Layer(features, (3, 3), 2, is_valid=True)


def _a(pooled: int) -> tuple[Branch, ...]:
    return (
        (Layer(64),),
        (Layer(48), Layer(64, (5, 5))),
        (Layer(64), Layer(96, (3, 3)), Layer(96, (3, 3))),
        (AVERAGE, Layer(pooled)),
    )


def _c(n: int) -> tuple[Branch, ...]:
    row, column = (1, 7), (7, 1)
    return (
        (Layer(192),),
        (Layer(n), Layer(n, row), Layer(192, column)),
        (Layer(n), Layer(n, column), Layer(n, row), Layer(n, column), Layer(192, row)),
        (AVERAGE, Layer(192)),
    )


_B: tuple[Branch, ...] = (
    (_halved(384),),
    (Layer(64), Layer(96, (3, 3)), _halved(96)),
    (MAXIMUM,),
)
_D: tuple[Branch, ...] = (
    (Layer(192), _halved(320)),
    (Layer(192), Layer(192, (1, 7)), Layer(192, (7, 1)), _halved(192)),
    (MAXIMUM,),
)
_BOTH = Split((Layer(384, (1, 3)), Layer(384, (3, 1))))
_E: tuple[Branch, ...] = (
    (Layer(320),),
    (Layer(384), _BOTH),
    (Layer(448), Layer(384, (3, 3)), _BOTH),
    (AVERAGE, Layer(192)),
)
BEFORE_AUXILIARY = (_a(32), _a(64), _a(64), _B, _c(128), _c(160), _c(160), _c(192))
AFTER_AUXILIARY = (_D, _E, _E)


class Convolution(nn.Module):
    layer: Layer
    width: float

    @nn.compact
    def __call__(self, x):
        layer = self.layer
        x = nn.Conv(
            max(1, int(layer.features * self.width)),
            layer.kernel,
            (layer.stride, layer.stride),
            padding="VALID" if layer.is_valid else "SAME",
            use_bias=False,
        )(x)
        norm = nn.BatchNorm(use_running_average=False, momentum=0.9, epsilon=1e-3)
        return nn.relu(norm(x))


class Mixed(nn.Module):
    """Branches on the same input, concatenated."""

    branches: tuple[Branch, ...]
    width: float

    @nn.compact
    def __call__(self, x):
        return jnp.concatenate([self._branch(b, x) for b in self.branches], axis=-1)

    def _branch(self, branch: Branch, x):
        for part in branch:
            if part == AVERAGE:
                x = nn.avg_pool(x, (3, 3), padding="SAME")
            elif part == MAXIMUM:
                x = nn.max_pool(x, (3, 3), (2, 2))
            elif isinstance(part, Split):
                both = [Convolution(layer, self.width)(x) for layer in part.layers]
                x = jnp.concatenate(both, axis=-1)
            elif isinstance(part, Layer):
                x = Convolution(part, self.width)(x)
        return x


class Stem(nn.Module):
    width: float

    @nn.compact
    def __call__(self, x):
        x = Convolution(Layer(32, (3, 3), 2, is_valid=True), self.width)(x)
        x = Convolution(Layer(32, (3, 3), is_valid=True), self.width)(x)
        x = Convolution(Layer(64, (3, 3)), self.width)(x)
        x = nn.max_pool(x, (3, 3), (2, 2))
        x = Convolution(Layer(80, is_valid=True), self.width)(x)
        x = Convolution(Layer(192, (3, 3), is_valid=True), self.width)(x)
        return nn.max_pool(x, (3, 3), (2, 2))


class Auxiliary(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x):
        x = nn.avg_pool(x, (5, 5), (3, 3))
        x = Convolution(Layer(128), self.config.width)(x)
        kernel = (min(5, x.shape[1]), min(5, x.shape[2]))
        x = Convolution(Layer(768, kernel, is_valid=True), self.config.width)(x)
        return nn.Dense(self.config.classes)(x.mean(axis=(1, 2)))


class InceptionV3(nn.Module):
    config: Config
    policy: str | None = None

    @nn.compact
    def __call__(self, x):
        c = self.config
        block, stem = Mixed, Stem
        if self.policy is not None:
            policy = checkpoint_policy(self.policy)
            block, stem = nn.remat(Mixed, policy=policy), nn.remat(Stem, policy=policy)
        x = stem(c.width, name="stem")(x)
        for i, branches in enumerate(BEFORE_AUXILIARY):
            x = block(branches, c.width, name=f"before{i}")(x)
        auxiliary = Auxiliary(c, name="auxiliary")(x)
        for i, branches in enumerate(AFTER_AUXILIARY):
            x = block(branches, c.width, name=f"after{i}")(x)
        x = nn.Dropout(c.dropout, deterministic=False)(x.mean(axis=(1, 2)))
        return nn.Dense(c.classes, name="head")(x), auxiliary


def build(size: str = "small", policy: str | None = None) -> TrainingStep:
    config = SIZES[size]
    model = InceptionV3(config, policy)
    optimizer = optax.chain(
        optax.clip_by_global_norm(2.0), optax.rmsprop(0.045, decay=0.9, eps=1.0)
    )

    def loss_fn(params, batch_stats, batch, key):
        (logits, auxiliary), updated = model.apply(
            {"params": params, "batch_stats": batch_stats},
            batch["images"],
            mutable=["batch_stats"],
            rngs={"dropout": key},
        )
        loss, extra = (
            optax.softmax_cross_entropy_with_integer_labels(each, batch["labels"])
            for each in (logits, auxiliary)
        )
        total = loss.mean() + config.auxiliary_weight * extra.mean()
        return total, updated["batch_stats"]

    def step(state, batch):
        key, dropout_key = jax.random.split(state.key)
        (loss, batch_stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(
            state.params, state.batch_stats, batch, dropout_key
        )
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return State(params, batch_stats, opt_state, key), {"loss": loss}

    @jax.jit
    def make_args():
        # Threefry would take XLA minutes to compile, a second for each kernel.
        keys = jax.random.split(jax.random.key(0, impl="rbg"), 3)
        init_key, image_key, label_key = keys
        key = jax.random.key(1)
        shape = (config.batch, config.image, config.image, 3)
        images = jax.random.normal(image_key, shape)
        labels = jax.random.randint(label_key, (config.batch,), 0, config.classes)
        variables = model.init({"params": init_key, "dropout": key}, images)
        params = variables["params"]
        state = State(params, variables["batch_stats"], optimizer.init(params), key)
        return state, {"images": images, "labels": labels}

    return TrainingStep("inception_v3", size, step, make_args)
