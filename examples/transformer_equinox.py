"""A small equinox transformer learns to sort; its step is already under `jax.jit`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import coop_jax

LAYERS, WIDTH, HEADS, LENGTH, BATCH, DIGITS = 2, 64, 4, 64, 32, 10


class Block(eqx.Module):
    norms: list[eqx.nn.LayerNorm]
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP

    def __init__(self, key):
        key1, key2 = jax.random.split(key)
        self.norms = [eqx.nn.LayerNorm(WIDTH) for _ in range(2)]
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=key1)
        self.mlp = eqx.nn.MLP(WIDTH, WIDTH, 4 * WIDTH, 1, jax.nn.gelu, key=key2)

    def __call__(self, x, key=None):
        y = jax.vmap(self.norms[0])(x)
        x = x + self.attention(y, y, y)
        return x + jax.vmap(self.mlp)(jax.vmap(self.norms[1])(x))


def main():
    keys = jax.random.split(jax.random.key(0), 2 + LAYERS)
    embeddings = jax.random.normal(keys[0], (DIGITS + LENGTH, WIDTH))
    head = eqx.nn.Linear(WIDTH, DIGITS, key=keys[1])
    model = embeddings, [Block(key) for key in keys[2:]], head
    params, static = eqx.partition(model, eqx.is_array)
    optimizer = optax.adam(3e-3)

    def loss_of(params, digits):
        embeddings, blocks, head = eqx.combine(params, static)
        x = embeddings[digits] + embeddings[DIGITS:]
        x = jax.vmap(eqx.nn.Sequential(blocks))(x)
        losses = optax.softmax_cross_entropy_with_integer_labels
        return losses(jax.vmap(jax.vmap(head))(x), jnp.sort(digits)).mean()

    def train_step(params, opt_state, digits):
        loss, grads = jax.value_and_grad(loss_of)(params, digits)
        updates, opt_state = optimizer.update(grads, opt_state)
        return eqx.apply_updates(params, updates), opt_state, loss

    step = coop_jax.remat(jax.jit(train_step, donate_argnums=(0, 1)), budget=0.6)
    state = params, optimizer.init(params)
    digits = jax.random.randint(keys[1], (10, BATCH, LENGTH), 0, DIGITS)
    print(step.plan(*state, digits[0]))
    for i in range(10):
        *state, loss = step(*state, digits[i])
        print(f"step {i + 1:2}  loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
