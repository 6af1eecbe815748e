"""A step that changes what it was given in place is told that this is lost."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import coop_jax


@jax.tree_util.register_pytree_node_class
class Module:
    """As modules of flax.nnx are: an object of arrays that may be set."""

    def __init__(self, weight: Any, count: Any) -> None:
        self.weight = weight
        self.count = count

    def tree_flatten(self) -> Any:
        return (self.weight, self.count), None

    @classmethod
    def tree_unflatten(cls, _: Any, leaves: Any) -> "Module":
        return cls(*leaves)


@jax.tree_util.register_pytree_node_class
class Copied(Module):
    """Makes its leaves whenever it is asked for them."""

    def tree_flatten(self) -> Any:
        leaves = (self.weight, self.count)
        return tuple(x + 0 if hasattr(x, "ndim") else x for x in leaves), None


def module() -> Module:
    return Module(jnp.eye(8), jnp.zeros(()))


def gradient(module: Module, x: jax.Array) -> jax.Array:
    return jax.grad(lambda w: jnp.mean((x @ w) ** 2))(module.weight)


def losing(module: Module, x: jax.Array) -> jax.Array:
    module.weight -= 0.1 * gradient(module, x)
    return jnp.mean(x)


def nested(state: dict[str, Any], x: jax.Array) -> jax.Array:
    state["models"][0].count += 1
    return jnp.mean(state["models"][0].weight @ x)


def returning(module: Module, x: jax.Array) -> Module:
    module.weight -= 0.1 * gradient(module, x)
    module.count += 1
    return module


def returning_some(module: Module, x: jax.Array) -> jax.Array:
    module.weight -= 0.1 * gradient(module, x)
    return module.weight


def making_another(module: Module, x: jax.Array) -> Module:
    return Module(module.weight - 0.1 * gradient(module, x), module.count)


def changing_a_dict(batch: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    batch["x"] = batch["x"] / 255
    return jnp.mean(batch["x"] @ x)


@pytest.mark.parametrize(
    ("step", "argument", "where"),
    [
        (losing, module(), r"`args\[0\]`, a `Module`"),
        (nested, {"models": [module()]}, r"`args\[0\]\['models'\]\[0\]`, a `Module`"),
    ],
)
def test_what_a_step_sets_and_does_not_return_is_lost_with_a_warning(
    step: Any, argument: Any, where: str
) -> None:
    with pytest.warns(UserWarning, match=where):
        coop_jax.remat(step, "1GB")(argument, jnp.ones((8, 8)))


@pytest.mark.parametrize(
    ("step", "argument"),
    [
        (returning, module()),
        (returning_some, module()),
        (making_another, module()),
        (changing_a_dict, {"x": jnp.ones((8, 8))}),
        (making_another, Copied(jnp.eye(8), jnp.zeros(()))),
    ],
)
def test_nothing_is_said_where_nothing_is_lost(step: Any, argument: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = coop_jax.remat(step, "1GB")(argument, jnp.ones((8, 8)))
    expected = jax.jit(step)(argument, jnp.ones((8, 8)))
    jax.tree.map(lambda a, b: pytest.approx(a) == b, found, expected)


def test_a_budget_that_a_gradient_from_outside_does_not_have_is_said_so() -> None:
    planned = coop_jax.remat(lambda w, x: jnp.mean((x @ w) ** 2), "1GB")
    with pytest.warns(UserWarning, match="budget says nothing"):
        jax.grad(planned)(jnp.eye(8), jnp.ones((8, 8)))


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
