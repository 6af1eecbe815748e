"""Every benchmark model is a pure step, and a policy changes nothing but memory."""

import functools

import jax
import jax.numpy as jnp
import pytest

from benchmarks.models import MODELS, PAPER, POLICIES, SCANNED, build
from benchmarks.models.spos import SIZES, sample_path

# One object per model, so that its initializer compiles once.
small = functools.cache(build)

BLOCKS = {
    "gpt2": 4,
    "resnet50": 16,
    "vit": 6,
    "equinox_transformer": 4,
    "unet": 9,
    "inception_v3": 12,
    "swin": 12,
    "bert_large": 4,
    "gpt3": 4,
    "bilstm": 8,
    "spos": 20,
}

# As published, or as in the code that the papers' authors or PyTorch distribute.
PARAMETERS = {
    "gpt2": 124_439_808,
    "resnet50": 25_557_032,
    "vit": 86_567_656,
    "unet": 31_037_698,
    "inception_v3": 27_161_264,
    "swin": 28_288_354,
    "bert_large": 336_226_108,
    "gpt3": 2_651_553_280,
}


# The networks of the paper are traced once, below.
@pytest.mark.parametrize("name", [*sorted(set(MODELS) - set(PAPER)), *SCANNED])
def test_step_returns_a_state_like_its_argument(name):
    state, batch = small(name).abstract_args()
    new_state, metrics = jax.eval_shape(small(name).step, state, batch)
    assert new_state == state
    assert metrics["loss"] == jax.ShapeDtypeStruct((), jnp.float32)


# Some are slow to trace; one policy will do.
@pytest.mark.parametrize(
    ("name", "policy"),
    [
        (name, policy)
        for name in MODELS
        for policy in POLICIES
        if name not in PAPER or policy == "dots_saveable"
    ],
)
def test_policy_reaches_every_block_and_changes_no_shape(name, policy):
    args = small(name).abstract_args()
    step = build(name, policy=policy).step
    jaxpr, (state, metrics) = jax.make_jaxpr(step, return_shape=True)(*args)
    assert state == args[0]
    assert metrics["loss"] == jax.ShapeDtypeStruct((), jnp.float32)
    assert str(jaxpr).count("prevent_cse=True") == BLOCKS[name]
    assert "prevent_cse=False" not in str(jaxpr)


@pytest.mark.parametrize("name", SCANNED)
def test_policy_reaches_the_scanned_body(name):
    args = small(name).abstract_args()
    jaxpr = str(jax.make_jaxpr(build(name, policy="dots_saveable").step)(*args))
    # A scan keeps recomputations apart without barriers.
    assert jaxpr.count("prevent_cse=False") == 1
    assert "prevent_cse=True" not in jaxpr


@pytest.mark.parametrize("name", [*MODELS, *SCANNED])
def test_paper_size_has_the_published_weights_and_makes_no_arrays(name):
    state, batch = build(name, "paper").abstract_args()
    leaves = jax.tree.leaves((state, batch))
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    if name in PARAMETERS:
        count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
        assert count == PARAMETERS[name]


def test_a_step_of_the_supernet_changes_the_weights_on_its_path_alone():
    state, batch = small("spos").abstract_args()
    jaxpr = jax.make_jaxpr(small("spos").step)(state, batch).jaxpr
    passed = [new is old for new, old in zip(jaxpr.outvars, jaxpr.invars, strict=False)]
    names = [
        path[0].key for path, _ in jax.tree_util.tree_leaves_with_path(state.params)
    ]
    path = {f"{i}_{choice}" for i, choice in enumerate(sample_path(SIZES["small"]))}
    path |= {"stem", "last", "head"}
    for name, is_passed in zip(names, passed[: len(names)], strict=True):
        assert is_passed == (name not in path), name


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
    with pytest.raises(ValueError, match="gpt5"):
        build("gpt5")
    with pytest.raises(ValueError, match="everything"):
        jax.eval_shape(
            build("gpt2", policy="everything").step, *build("gpt2").abstract_args()
        )


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
