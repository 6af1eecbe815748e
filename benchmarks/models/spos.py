"""The single-path one-shot supernet in flax.linen: one sampled path per step; SGD.

Guo et al., "Single Path One-Shot Neural Architecture Search with Uniform Sampling"
(2020): 20 layers of four ShuffleNet V2 blocks each, for CIFAR-10. The state holds all
blocks; a step computes with those on its path, and changes only their weights. A path
is drawn when the step is built: another path is another program.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from .training_step import TrainingStep, checkpoint_policy


@dataclass(frozen=True)
class Config:
    batch: int
    image: int = 32
    classes: int = 10
    stem: int = 16
    features: tuple[int, ...] = (64, 160, 320, 640)
    depths: tuple[int, ...] = (4, 4, 8, 4)
    last: int = 1024

    @property
    def layers(self) -> int:
        return sum(self.depths)


SIZES = {
    "small": Config(16, features=(32, 80, 160, 320), last=256),
    "paper": Config(256),
}
CHOICES = ("3x3", "5x5", "7x7", "xception")


class State(NamedTuple):
    params: Any
    batch_stats: Any
    opt_state: Any


def sample_path(config: Config, seed: int = 0) -> tuple[str, ...]:
    """One of `CHOICES` for each layer, uniformly at random."""
    drawn = np.random.default_rng(seed).integers(0, len(CHOICES), config.layers)
    return tuple(CHOICES[i] for i in drawn)


# In the supernet a norm has no weights of its own: they would fit one path only.
_norm = partial(
    nn.BatchNorm,
    use_running_average=False,
    momentum=0.9,
    use_bias=False,
    use_scale=False,
)


def _pointwise(features: int, x):
    return nn.relu(_norm()(nn.Conv(features, (1, 1), use_bias=False)(x)))


def _depthwise(kernel: int, stride: int, x):
    features = x.shape[-1]
    size, strides = (kernel, kernel), (stride, stride)
    conv = nn.Conv(
        features, size, strides, feature_group_count=features, use_bias=False
    )
    return _norm()(conv(x))


class Shuffle(nn.Module):
    """A ShuffleNet V2 block: half of the channels pass by, or both halve the image."""

    features: int
    stride: int
    choice: str

    @nn.compact
    def __call__(self, x):
        if self.stride == 1:
            # Every other channel, so that the halves mix from block to block.
            by, x = x[..., 0::2], x[..., 1::2]
        else:
            by = _pointwise(x.shape[-1], _depthwise(3, self.stride, x))
        rest = self.features - by.shape[-1]
        if self.choice == "xception":
            x = self._xception(rest, x)
        else:
            x = _pointwise(self.features // 2, x)
            x = _depthwise(int(self.choice[0]), self.stride, x)
            x = _pointwise(rest, x)
        return jnp.concatenate([by, x], axis=-1)

    def _xception(self, features: int, x):
        middle = self.features // 2
        x = _pointwise(middle, _depthwise(3, self.stride, x))
        x = _pointwise(middle, _depthwise(3, 1, x))
        return _pointwise(features, _depthwise(3, 1, x))


class Supernet(nn.Module):
    """Runs the blocks `chosen` for each layer; without it, makes the weights of all."""

    config: Config
    chosen: tuple[str, ...] | None
    policy: str | None = None

    @nn.compact
    def __call__(self, x):
        c = self.config
        block = Shuffle
        if self.policy is not None:
            block = nn.remat(Shuffle, policy=checkpoint_policy(self.policy))
        x = nn.Conv(c.stem, (3, 3), use_bias=False, name="stem")(x)
        x = nn.relu(_norm(name="stem_norm")(x))
        layer = 0
        for i, (features, depth) in enumerate(zip(c.features, c.depths, strict=True)):
            for j in range(depth):
                # The image is halved before the second and the third stage.
                stride = 2 if j == 0 and i in (1, 2) else 1
                y = x
                for choice in CHOICES if self.chosen is None else [self.chosen[layer]]:
                    y = block(features, stride, choice, name=f"{layer}_{choice}")(x)
                x, layer = y, layer + 1
        x = nn.Conv(c.last, (1, 1), use_bias=False, name="last")(x)
        x = nn.relu(_norm(name="last_norm")(x)).mean(axis=(1, 2))
        return nn.Dense(c.classes, use_bias=False, name="head")(x)


def _on_path(tree: dict, used: dict) -> dict:
    return {name: tree[name] for name in used}


def build(size: str = "small", policy: str | None = None, seed: int = 0):
    """The step of the path drawn with `seed`."""
    config = SIZES[size]
    supernet = Supernet(config, None)
    model = Supernet(config, sample_path(config, seed), policy)
    optimizer = optax.chain(
        optax.clip_by_global_norm(5.0),
        optax.add_decayed_weights(3e-4),
        optax.sgd(0.025, momentum=0.9),
    )
    shape = (config.batch, config.image, config.image, 3)
    used: Any = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros(shape))

    def loss_fn(params, batch_stats, batch):
        logits, updated = model.apply(
            {"params": params, "batch_stats": batch_stats},
            batch["images"],
            mutable=["batch_stats"],
        )
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits, batch["labels"]
        )
        return losses.mean(), updated["batch_stats"]

    def step(state, batch):
        params = _on_path(state.params, used["params"])
        statistics = _on_path(state.batch_stats, used["batch_stats"])
        (loss, statistics), grads = jax.value_and_grad(loss_fn, has_aux=True)(
            params, statistics, batch
        )
        momenta = jax.tree.map(
            lambda tree: _on_path(tree, used["params"]),
            state.opt_state,
            is_leaf=lambda x: isinstance(x, dict),
        )
        updates, momenta = optimizer.update(grads, momenta, params)
        params = optax.apply_updates(params, updates)
        opt_state = jax.tree.map(
            lambda old, new: old | new,
            state.opt_state,
            momenta,
            is_leaf=lambda x: isinstance(x, dict),
        )
        new = State(state.params | params, state.batch_stats | statistics, opt_state)
        return new, {"loss": loss}

    @jax.jit
    def make_args():
        # Threefry would take XLA minutes to compile, a second for each kernel.
        keys = jax.random.split(jax.random.key(0, impl="rbg"), 3)
        init_key, image_key, label_key = keys
        images = jax.random.normal(image_key, shape)
        labels = jax.random.randint(label_key, (config.batch,), 0, config.classes)
        variables = supernet.init(init_key, images)
        params = variables["params"]
        state = State(params, variables["batch_stats"], optimizer.init(params))
        return state, {"images": images, "labels": labels}

    return TrainingStep("spos", size, step, make_args)
