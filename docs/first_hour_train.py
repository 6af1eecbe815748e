"""A four-layer transformer, trained on random tokens, in plain JAX."""

import jax
import jax.numpy as jnp

LAYERS, WIDTH, HEADS, VOCABULARY, BATCH, LENGTH = 4, 128, 4, 128, 16, 256


def init(key):
    def matrix(key, rows, columns):
        return jax.random.normal(key, (rows, columns)) * rows**-0.5

    keys = iter(jax.random.split(key, 1 + 4 * LAYERS))
    blocks = [
        {
            "qkv": matrix(next(keys), WIDTH, 3 * WIDTH),
            "out": matrix(next(keys), WIDTH, WIDTH),
            "up": matrix(next(keys), WIDTH, 4 * WIDTH),
            "down": matrix(next(keys), 4 * WIDTH, WIDTH),
        }
        for _ in range(LAYERS)
    ]
    return {"embed": matrix(next(keys), VOCABULARY, WIDTH), "blocks": blocks}


def attention(block, x):
    qkv = (x @ block["qkv"]).reshape(BATCH, LENGTH, 3, HEADS, -1)
    q, k, v = jnp.moveaxis(qkv, 2, 0)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    scores = jnp.where(jnp.tri(LENGTH, dtype=bool), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    return mixed.reshape(x.shape) @ block["out"]


def loss_of(params, tokens):
    x = params["embed"][tokens]
    for block in params["blocks"]:
        x = x + attention(block, jax.nn.standardize(x))
        x = x + jax.nn.gelu(jax.nn.standardize(x) @ block["up"]) @ block["down"]
    logits = jax.nn.standardize(x) @ params["embed"].T
    chosen = jnp.take_along_axis(
        jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], -1
    )
    return -jnp.mean(chosen)


def train_step(params, tokens):
    loss, grads = jax.value_and_grad(loss_of)(params, tokens)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def example_args():
    params = jax.eval_shape(init, jax.random.key(0))
    return params, jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)


def main():
    step = jax.jit(train_step, donate_argnums=0)
    params = init(jax.random.key(0))
    for i in range(20):
        tokens = jax.random.randint(jax.random.key(i), (BATCH, LENGTH), 0, VOCABULARY)
        params, loss = step(params, tokens)
        print(f"step {i + 1:2}  loss {loss:.3f}")


if __name__ == "__main__":
    main()
