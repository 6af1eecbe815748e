"""A GPT in flax.linen whose layers are one `nn.scan`, with accumulated gradients.

The blocks are those of `gpt2`, the parameters stacked by flax; bfloat16 activations,
dropout, AdamW after clipping by the global norm, micro-batches in a scan around all of
it. "paper" is GPT-2 medium.
"""

from dataclasses import dataclass, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from . import gpt2
from .gpt2 import Block
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
class Config(gpt2.Config):
    """Sizes; `batch` is per micro-batch, of which a step takes `micro_batches`."""

    micro_batches: int = 4


SIZES = {
    "small": Config(24, 128, 4, 128, 8, 1024, jnp.bfloat16),
    "paper": Config(24, 1024, 16, 1024, 8, 50257, jnp.bfloat16),
}


class ScannedGpt(nn.Module):
    """The model; with a policy, the scanned body is checkpointed."""

    config: Config
    policy: str | None = None

    @nn.compact
    def __call__(self, tokens):
        c = self.config
        embed = nn.Embed(c.vocabulary, c.width, dtype=c.dtype, name="tokens")
        positions = nn.Embed(c.length, c.width, dtype=c.dtype, name="positions")
        x = embed(tokens) + positions(jnp.arange(c.length))
        x = nn.Dropout(c.dropout, deterministic=False)(x)

        def body(block, x):
            return block(x), None

        if self.policy is not None:
            policy = checkpoint_policy(self.policy)
            body = nn.remat(body, policy=policy, prevent_cse=False)
        over_layers = nn.scan(
            body,
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            length=c.layers,
        )
        x, _ = over_layers(Block(c, name="blocks"), x)
        return embed.attend(nn.LayerNorm(dtype=c.dtype, name="norm")(x))


def build(
    size: str = "small", policy: str | None = None, **changes: Any
) -> TrainingStep:
    """The step; `changes` replaces fields of the size's `Config`."""
    config = replace(SIZES[size], **changes)
    model = ScannedGpt(config, policy)
    optimizer = adamw()
    value_and_grad = accumulated(loss_function(model), config.micro_batches)
    step = step_function(value_and_grad, optimizer)

    @jax.jit
    def make_args():
        init_key, dropout_key, batch_key = jax.random.split(jax.random.key(0), 3)
        shape = (config.micro_batches * config.batch, config.length + 1)
        batch = random_text(batch_key, shape, config.vocabulary)
        rngs = {"params": init_key, "dropout": dropout_key}
        params = model.init(rngs, batch["tokens"][: config.batch])["params"]
        return State(params, optimizer.init(params), dropout_key), batch

    return TrainingStep("flax_scanned_gpt", size, step, make_args)
