"""Whole training steps to plan, each in the idiom of its own library.

`build("gpt2")` is small enough for a laptop, `build("gpt2", "paper")` has the published
size. With a `policy` every block is under `jax.checkpoint`, as one writes it by hand;
the mathematics and the random bits are those of the step without it.
"""

from . import (
    bert_large,
    bilstm,
    equinox_transformer,
    flax_scanned_gpt,
    gpt2,
    gpt3,
    inception_v3,
    resnet50,
    scanned_gpt,
    spos,
    swin,
    unet,
    vit,
)
from .training_step import POLICIES as POLICIES
from .training_step import TrainingStep as TrainingStep

_BUILDERS = {
    "gpt2": gpt2.build,
    "resnet50": resnet50.build,
    "vit": vit.build,
    "equinox_transformer": equinox_transformer.build,
    "unet": unet.build,
    "inception_v3": inception_v3.build,
    "swin": swin.build,
    "bert_large": bert_large.build,
    "gpt3": gpt3.build,
    "bilstm": bilstm.build,
    "spos": spos.build,
}
MODELS = tuple(_BUILDERS)
_SCANNED = {
    "scanned_gpt": scanned_gpt.build,
    "flax_scanned_gpt": flax_scanned_gpt.build,
}
_BUILDERS |= _SCANNED
SCANNED = tuple(_SCANNED)
"""Layers in one `lax.scan`; `benchmarks.loops` measures them."""
PAPER = (
    "gpt3",
    "bert_large",
    "bilstm",
    "spos",
    "swin",
    "resnet50",
    "unet",
    "inception_v3",
)
"""The eight networks on which Coop was evaluated (NeurIPS 2023, arXiv 2311.00591)."""


def build(name: str, size: str = "small", policy: str | None = None) -> TrainingStep:
    """Returns the training step `name`, one of `MODELS`.

    Args:
      name: one of `MODELS` or `SCANNED`.
      size: "small" (seconds a step on two cores) or "paper" (the published size).
      policy: None, or one of `POLICIES` for `jax.checkpoint` around every block.
    """
    if name not in _BUILDERS:
        raise ValueError(f"model {name!r} is not one of {', '.join(_BUILDERS)}")
    return _BUILDERS[name](size, policy)
