"""Fully sharded training over eight devices: parameters, optimizer and batch are split.

Eight CPU devices stand in for eight cards; bytes are those of one.
"""

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec

import coop_jax

jax.config.update("jax_num_cpu_devices", 8)
LAYERS, WIDTH, BATCH = 6, 128, 8192
optimizer = optax.adam(5e-4)


def init(key):
    keys = jax.random.split(key, 2 * LAYERS)
    return [
        {
            "up": jax.random.normal(up, (WIDTH, 4 * WIDTH)) * WIDTH**-0.5,
            "down": jax.random.normal(down, (4 * WIDTH, WIDTH)) * WIDTH**-0.5 / 8,
        }
        for up, down in zip(keys[::2], keys[1::2], strict=True)
    ]


def train_step(params, optimizer_state, x, y):
    def loss_of(params):
        h = x
        for i, layer in enumerate(params):
            with jax.named_scope(f"layer_{i}"):
                h = h + jax.nn.gelu(h @ layer["up"]) @ layer["down"]
        return jnp.mean((h - y) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(params)
    updates, optimizer_state = optimizer.update(grads, optimizer_state)
    return optax.apply_updates(params, updates), optimizer_state, loss


def main():
    mesh = jax.make_mesh((8,), ("data",), (jax.sharding.AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    everywhere = NamedSharding(mesh, PartitionSpec())

    def split(tree):
        return jax.tree.map(
            lambda a: jax.device_put(a, rows if a.ndim else everywhere), tree
        )

    params = init(jax.random.key(0))
    state = split((params, optimizer.init(params)))
    x = split(jax.random.normal(jax.random.key(1), (BATCH, WIDTH)))
    y = jnp.sin(2 * x)

    step = coop_jax.remat(train_step, budget=0.6, donate_argnums=(0, 1))
    print(step.plan(*state, x, y))
    for i in range(1, 9):
        *state, loss = step(*state, x, y)
        print(f"step {i}  loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
