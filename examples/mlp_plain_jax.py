"""A deep, normalized MLP in plain JAX fits a function by gradient descent."""

import jax
import jax.numpy as jnp

import coop_jax

FEATURES, LAYERS, WIDTH, BATCH = 16, 6, 64, 8192


def init(key):
    widths = [FEATURES] + [WIDTH] * LAYERS + [1]
    keys = jax.random.split(key, len(widths) - 1)
    return [
        (jax.random.normal(k, (m, n)) * m**-0.5, jnp.zeros(n))
        for k, m, n in zip(keys, widths, widths[1:], strict=False)
    ]


def predict(params, x):
    *hidden, (w_out, b_out) = params
    for w, b in hidden:
        x = jax.nn.gelu(jax.nn.standardize(x @ w + b, epsilon=0.1))
    return x @ w_out + b_out


@coop_jax.remat(budget=0.5, donate_argnums=0)
def train_step(params, x, y):
    def loss_of(params):
        return jnp.mean((predict(params, x) - y) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(params)
    return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), loss


def main():
    params = init(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (BATCH, FEATURES))
    y = jnp.sin(x[:, :1]) + x[:, 1:2] ** 2

    print(train_step.plan(params, x, y))
    for i in range(1, 13):
        params, loss = train_step(params, x, y)
        print(f"step {i:2}  loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
