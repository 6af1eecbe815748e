"""What a benchmark model is: a pure step, its arguments and a checkpoint policy."""

from collections.abc import Callable
from dataclasses import dataclass

import jax

POLICIES = ("nothing_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable")

# As in LLaMA. With 1e-8 Adam's first update of a weight whose gradient is zero but for
# rounding, such as an attention key's bias, is plus or minus the learning rate by
# chance, and the new state could not be compared with a reference.
ADAM_EPSILON = 1e-5


@dataclass(frozen=True)
class TrainingStep:
    """A whole training step `step(state, batch) -> (state, metrics)`, not jitted.

    `make_args()` returns `(state, batch)` with random weights, the same every time;
    `metrics` holds at least "loss", a float32 scalar.
    """

    name: str
    size: str
    step: Callable
    make_args: Callable[[], tuple]
    donate_argnums: tuple[int, ...] = (0,)

    def abstract_args(self) -> tuple:
        """The arguments as `jax.ShapeDtypeStruct`s; no array is made."""
        return jax.eval_shape(self.make_args)


def checkpoint_policy(name: str) -> Callable:
    """The `jax.checkpoint` policy called `name`, one of `POLICIES`."""
    if name not in POLICIES:
        raise ValueError(f"policy {name!r} is not one of {', '.join(POLICIES)}")
    return getattr(jax.checkpoint_policies, name)
