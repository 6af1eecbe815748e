"""Every benchmark model is a pure step, and a policy changes nothing but memory."""

import functools

import jax
import jax.numpy as jnp
import pytest

from benchmarks.models import MODELS, POLICIES, build

# One object per model, so that its initializer compiles once.
small = functools.cache(build)

BLOCKS = {"gpt2": 4, "resnet50": 16, "vit": 6, "equinox_transformer": 4}


@pytest.mark.parametrize("name", MODELS)
def test_step_returns_a_state_like_its_argument(name):
    state, batch = small(name).abstract_args()
    new_state, metrics = jax.eval_shape(small(name).step, state, batch)
    assert new_state == state
    assert metrics["loss"] == jax.ShapeDtypeStruct((), jnp.float32)


# ResNet-50 is slow to trace; one policy will do.
@pytest.mark.parametrize(
    ("name", "policy"),
    [
        (name, policy)
        for name in MODELS
        for policy in POLICIES
        if name != "resnet50" or policy == "dots_saveable"
    ],
)
def test_policy_reaches_every_block_and_changes_no_shape(name, policy):
    args = small(name).abstract_args()
    step = build(name, policy=policy).step
    jaxpr, (state, _) = jax.make_jaxpr(step, return_shape=True)(*args)
    assert state == args[0]
    assert str(jaxpr).count("prevent_cse=True") == BLOCKS[name]
    assert "prevent_cse=False" not in str(jaxpr)


@pytest.mark.parametrize("name", MODELS)
def test_paper_size_traces_without_making_arrays(name):
    state, batch = build(name, "paper").abstract_args()
    leaves = jax.tree.leaves((state, batch))
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    assert sum(leaf.size for leaf in leaves) > 25e6


@pytest.mark.parametrize("name", ["gpt2", "equinox_transformer"])
def test_a_real_step_has_the_loss_of_a_random_guess(name):
    step = jax.jit(small(name).step, donate_argnums=small(name).donate_argnums)
    _, metrics = step(*small(name).make_args())
    assert abs(metrics["loss"] - jnp.log(2048)) < 1.0


def test_arguments_are_deterministic_and_as_described():
    model, again = small("equinox_transformer"), build("equinox_transformer")
    args = model.make_args()
    equal = jax.tree.map(lambda a, b: bool((a == b).all()), args, again.make_args())
    assert jax.tree.all(equal)
    assert jax.eval_shape(lambda args: args, args) == model.abstract_args()


def test_unknown_names_are_errors():
    with pytest.raises(ValueError, match="gpt3"):
        build("gpt3")
    with pytest.raises(ValueError, match="everything"):
        jax.eval_shape(
            build("gpt2", policy="everything").step, *build("gpt2").abstract_args()
        )
