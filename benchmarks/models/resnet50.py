"""ResNet-50 v1.5 in flax.linen: batch-norm state, SGD with momentum and weight decay.

He et al., "Deep Residual Learning for Image Recognition" (2016); as in v1.5 the stride
of a bottleneck is in its 3x3 convolution.
"""

from dataclasses import dataclass
from functools import partial
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
    stages: tuple[int, ...] = (3, 4, 6, 3)


SIZES = {"small": Config(8, 64, 100), "paper": Config(128, 224, 1000)}


class State(NamedTuple):
    params: Any
    batch_stats: Any
    opt_state: Any


_conv = partial(nn.Conv, use_bias=False)
_norm = partial(nn.BatchNorm, use_running_average=False, momentum=0.9)


class Bottleneck(nn.Module):
    features: int
    stride: int

    @nn.compact
    def __call__(self, x):
        strides = (self.stride, self.stride)
        y = nn.relu(_norm()(_conv(self.features, (1, 1))(x)))
        y = nn.relu(_norm()(_conv(self.features, (3, 3), strides)(y)))
        y = _conv(4 * self.features, (1, 1))(y)
        y = _norm(scale_init=nn.initializers.zeros)(y)
        if x.shape != y.shape:
            x = _norm(name="shortcut_norm")(
                _conv(4 * self.features, (1, 1), strides, name="shortcut")(x)
            )
        return nn.relu(x + y)


class ResNet(nn.Module):
    config: Config
    policy: str | None = None

    @nn.compact
    def __call__(self, x):
        block = Bottleneck
        if self.policy is not None:
            block = nn.remat(Bottleneck, policy=checkpoint_policy(self.policy))
        x = nn.relu(_norm()(_conv(64, (7, 7), (2, 2), name="stem")(x)))
        x = nn.max_pool(x, (3, 3), (2, 2), padding="SAME")
        for i, depth in enumerate(self.config.stages):
            for j in range(depth):
                stride = 2 if i > 0 and j == 0 else 1
                x = block(64 * 2**i, stride, name=f"stage{i}_block{j}")(x)
        return nn.Dense(self.config.classes, name="head")(x.mean(axis=(1, 2)))


def build(size: str = "small", policy: str | None = None) -> TrainingStep:
    config = SIZES[size]
    model = ResNet(config, policy)
    optimizer = optax.chain(
        optax.add_decayed_weights(1e-4), optax.sgd(0.1, momentum=0.9)
    )

    def loss_fn(params, batch_stats, batch):
        logits, updated = model.apply(
            {"params": params, "batch_stats": batch_stats},
            batch["images"],
            mutable=["batch_stats"],
        )
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits, batch["labels"]
        )
        return losses.mean(), (logits, updated["batch_stats"])

    def step(state, batch):
        (loss, (logits, batch_stats)), grads = jax.value_and_grad(
            loss_fn, has_aux=True
        )(state.params, state.batch_stats, batch)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        accuracy = jnp.mean(jnp.argmax(logits, -1) == batch["labels"])
        metrics = {"loss": loss, "accuracy": accuracy}
        return State(params, batch_stats, opt_state), metrics

    @jax.jit
    def make_args():
        # With the images of key 0 float32 and float64 take different sides of one relu
        # next to zero, and their gradients of a bias are 20 % apart.
        init_key, image_key, label_key = jax.random.split(jax.random.key(2), 3)
        shape = (config.batch, config.image, config.image, 3)
        images = jax.random.normal(image_key, shape)
        labels = jax.random.randint(label_key, (config.batch,), 0, config.classes)
        variables = model.init(init_key, images)
        params = variables["params"]
        state = State(params, variables["batch_stats"], optimizer.init(params))
        return state, {"images": images, "labels": labels}

    return TrainingStep("resnet50", size, step, make_args)
