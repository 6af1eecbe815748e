"""A small ResNet with batch statistics learns to tell generated stripes from checks."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import coop_jax

WIDTHS, SIDE, BATCH, CLASSES = (16, 32, 64), 32, 64, 2


class Block(nn.Module):
    width: int
    stride: int

    @nn.compact
    def __call__(self, x):
        def norm(y):
            return nn.BatchNorm(use_running_average=False, momentum=0.9)(y)

        shortcut = nn.Conv(self.width, (1, 1), self.stride, use_bias=False)(x)
        y = nn.Conv(self.width, (3, 3), self.stride, use_bias=False)(x)
        y = nn.Conv(self.width, (3, 3), use_bias=False)(nn.relu(norm(y)))
        return nn.relu(norm(y) + shortcut)


class ResNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        for width in WIDTHS:
            x = Block(width, 1 if width == WIDTHS[0] else 2)(x)
        return nn.Dense(CLASSES)(x.mean((1, 2)))


model, optimizer = ResNet(), optax.sgd(0.05, momentum=0.9)


def train_step(state, images, labels):
    def loss_of(params):
        variables = {"params": params, "batch_stats": state["batch_stats"]}
        logits, new = model.apply(variables, images, mutable=["batch_stats"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.mean(), new["batch_stats"]

    grad = jax.value_and_grad(loss_of, has_aux=True)
    (loss, stats), grads = grad(state["params"])
    updates, optimizer_state = optimizer.update(grads, state["optimizer"])
    params = optax.apply_updates(state["params"], updates)
    return {"params": params, "batch_stats": stats, "optimizer": optimizer_state}, loss


def main():
    rows, columns = jnp.indices((SIDE, SIDE)) // 4 % 2
    images = jnp.stack([rows, rows ^ columns] * (BATCH // 2))[..., None]
    noise = jax.random.normal(jax.random.key(1), (8, *images.shape))
    state = dict(model.init(jax.random.key(0), images + noise[0]))
    state["optimizer"] = optimizer.init(state["params"])
    step = coop_jax.remat(train_step, budget=0.7, donate_argnums=0, time_limit=2.0)
    print(step.plan(state, images + noise[0], jnp.arange(BATCH) % 2))
    for i in range(8):
        state, loss = step(state, images + noise[i], jnp.arange(BATCH) % 2)
        print(f"step {i + 1}  loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
