"""A small GPT in flax.linen, with dropout and AdamW, learns to write sonnets."""

from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState

import coop_jax

LAYERS, WIDTH, HEADS, LENGTH, BATCH = 3, 128, 4, 256, 8


class GPT(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        drop = nn.Dropout(0.1, deterministic=False)
        places = nn.Embed(LENGTH, WIDTH)(jnp.arange(tokens.shape[1]))
        x = drop(nn.Embed(128, WIDTH)(tokens) + places)
        causal = nn.make_causal_mask(tokens)
        for _ in range(LAYERS):
            attention = nn.SelfAttention(HEADS, dropout_rate=0.1, deterministic=False)
            x = x + drop(attention(nn.LayerNorm()(x), mask=causal))
            hidden = nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x)))
            x = x + drop(nn.Dense(WIDTH)(hidden))
        return nn.Dense(128)(nn.LayerNorm()(x))


def train_step(state, tokens, key):
    def loss_of(params):
        dropout = jax.random.fold_in(key, state.step)
        logits = state.apply_fn(params, tokens[:, :-1], rngs={"dropout": dropout})
        losses = optax.softmax_cross_entropy_with_integer_labels
        return losses(logits, tokens[:, 1:]).mean()

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=grads), loss


def main():
    path = Path(__file__).with_name("sonnets.txt")
    text = np.frombuffer(path.read_bytes(), np.uint8).astype(np.int32)
    starts = np.random.default_rng(0).integers(len(text) - LENGTH - 1, size=(12, BATCH))
    windows = np.lib.stride_tricks.sliding_window_view(text, LENGTH + 1)
    model, key = GPT(), jax.random.key(0)
    params = model.init({"params": key, "dropout": key}, windows[:1, :-1])
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(3e-3))

    step = coop_jax.remat(train_step, budget="90MB", donate_argnums=0)
    print(step.plan(state, windows[starts[0]], key))
    for i, chosen in enumerate(starts, start=1):
        state, loss = step(state, windows[chosen], key)
        print(f"step {i:2}  loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
