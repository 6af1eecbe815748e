"""Lowers a planned step under the signature of the step it was made from."""

from typing import Any

import jax

from .compile import is_donated, unchecked_keys
from .saved import Fitted


def lower(fitted: Fitted, traced: Any) -> jax.stages.Lowered:
    """The planned step as `jax.jit(step).lower` gives it, static arguments left out.

    Args:
      fitted: the planned step.
      traced: `jax.stages.Traced` of the call.
    """
    step = fitted.step
    function = step.on_whole_arrays(fitted.function)

    def planned(*dynamic: Any, **named: Any) -> Any:
        flat = function(*jax.tree.leaves((dynamic, named)))
        return jax.tree.unflatten(traced.out_tree, flat)

    # Shardings go with the types: `in_shardings` cannot be given for named arguments.
    settled = step.jit_options.get("in_shardings", (None,) * len(step.leaves))
    structs = [
        leaf if sharding is None else leaf.update(sharding=sharding)
        for leaf, sharding in zip(step.leaves, settled, strict=True)
    ]
    args, kwargs = jax.tree.unflatten(traced.in_tree, structs)
    options = {k: v for k, v in step.jit_options.items() if k != "in_shardings"}
    if flat := options.get("out_shardings"):
        options["out_shardings"] = jax.tree.unflatten(traced.out_tree, flat)
    jitted = jax.jit(
        planned,
        donate_argnums=step.donated_arguments,
        donate_argnames=[k for k, x in traced.args_info[1].items() if is_donated(x)],
        **options,
    )
    with unchecked_keys():
        return jitted.lower(*args, **kwargs)
