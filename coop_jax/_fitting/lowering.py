"""Lowers a planned step under the signature of the step it was made from."""

from typing import Any

import jax

from .compile import unchecked_keys
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
    jitted = jax.jit(planned, **_donation(traced), **options)
    with unchecked_keys():
        return jitted.lower(*args, **kwargs)


def _donation(traced: Any) -> dict[str, Any]:
    """Donates the same leaves, where they make up whole arguments."""
    positional, named = traced.args_info
    return {
        "donate_argnums": tuple(i for i, x in enumerate(positional) if _is_donated(x)),
        "donate_argnames": tuple(name for name, x in named.items() if _is_donated(x)),
    }


def _is_donated(info: Any) -> bool:
    leaves = jax.tree.leaves(info)
    return bool(leaves) and all(leaf.donated for leaf in leaves)
