"""A small vision transformer in flax.nnx learns to tell stripes from checks."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import coop_jax

LAYERS, WIDTH, HEADS, SIDE, PATCH, BATCH = 2, 64, 4, 32, 4, 32


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm1, self.norm2 = (nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2))
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


def main():
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(
        nnx.Conv(1, WIDTH, (PATCH, PATCH), PATCH, rngs=rngs),
        lambda x: x.reshape(BATCH, -1, WIDTH),
        *(Block(rngs) for _ in range(LAYERS)),
        lambda x: x.mean(1),
        nnx.Linear(WIDTH, 2, rngs=rngs),
    )
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    graph, state = nnx.split((model, optimizer))

    def train_step(state, images, labels):
        model, optimizer = nnx.merge(graph, state)  # a step over arrays, as jax wants

        def loss_of(model):
            losses = optax.softmax_cross_entropy_with_integer_labels
            return losses(model(images), labels).mean()

        loss, grads = nnx.value_and_grad(loss_of)(model)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), loss

    step = coop_jax.remat(train_step, budget=0.6, donate_argnums=0)
    rows, columns = jnp.indices((SIDE, SIDE)) // 2 % 2
    images = jnp.stack([rows, rows ^ columns] * (BATCH // 2))[..., None]
    noise = jax.random.normal(jax.random.key(1), (8, *images.shape))
    labels = jnp.arange(BATCH) % 2
    print(step.plan(state, images + noise[0], labels))
    for i in range(8):
        state, loss = step(state, images + noise[i], labels)
        print(f"step {i + 1}  loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
