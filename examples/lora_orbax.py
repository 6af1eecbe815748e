"""Fine-tunes a frozen network with LoRA; stops in the middle and goes on with orbax."""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp

import coop_jax

LAYERS, WIDTH, RANK, BATCH, STEPS = 8, 128, 8, 4096, 10
optimizer = optax.adam(1e-2)


def init(key):
    """Frozen weights, and for each a pair of thin matrices that starts at zero."""
    keys = jax.random.split(key, LAYERS)
    frozen = [jax.random.normal(k, (WIDTH, WIDTH)) * WIDTH**-0.5 for k in keys]
    down = [jax.random.normal(k, (WIDTH, RANK)) * WIDTH**-0.5 for k in keys]
    return frozen, [(d, jnp.zeros((RANK, WIDTH))) for d in down]


def predict(frozen, lora, x):
    for w, (down, up) in zip(frozen, lora, strict=True):
        x = jax.nn.standardize(x + jax.nn.gelu(x @ w + x @ down @ up), epsilon=0.1)
    return x


def train_step(state, frozen, x, y):
    def loss_of(lora):
        return jnp.mean((predict(frozen, lora, x) - y) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(state["lora"])
    updates, optimizer_state = optimizer.update(grads, state["optimizer"])
    lora = optax.apply_updates(state["lora"], updates)
    return {"lora": lora, "optimizer": optimizer_state}, loss


def main():
    frozen, lora = init(jax.random.key(0))
    state = {"lora": lora, "optimizer": optimizer.init(lora)}
    x = jax.random.normal(jax.random.key(1), (BATCH, WIDTH))
    shift = jax.random.normal(jax.random.key(2), (WIDTH, WIDTH)) * WIDTH**-0.5
    y = jnp.tanh(predict(frozen, lora, x) @ shift)

    # Only the adapters and their optimizer are donated: the frozen weights stay.
    step = coop_jax.remat(train_step, budget=0.5, donate_argnums=0, time_limit=2.0)
    print(step.plan(state, frozen, x, y))
    with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as saver:
        for i in range(1, STEPS + 1):
            state, loss = step(state, frozen, x, y)
            print(f"step {i:2}  loss {loss:.3f}", flush=True)
            if i == STEPS // 2:
                saver.save(Path(folder) / "state", state)
                saver.wait_until_finished()
                like = jax.tree.map(jnp.zeros_like, state)
                state = saver.restore(Path(folder) / "state", like)


if __name__ == "__main__":
    main()
