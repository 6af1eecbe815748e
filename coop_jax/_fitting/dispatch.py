"""Tells calls of a step apart as JAX does, and as fast.

What decides how a call is compiled (structure, shapes, types, placement, settings in
force) is known in full to JAX's own dispatch alone. So a jitted function stands beside
the step that computes nothing: its result is a `Signature`, new where JAX has to trace
it anew, and the same one wherever JAX would run what it compiled before.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax.core import Tracer


class Signature:
    """A kind of call. As a pytree it has no leaves: nothing is computed for it.

    Attributes:
      dynamic: per leaf of the arguments, whether it is an argument of the program, and
        not static.
    """

    def __init__(self, dynamic: tuple[bool, ...]) -> None:
        self.dynamic = dynamic


jax.tree_util.register_pytree_node(
    Signature, lambda signature: ((), signature), lambda signature, _: signature
)


class Signatures:
    """Those of the calls of one step.

    Args:
      **static: `static_argnums` and `static_argnames` of the step.
    """

    def __init__(self, **static: Any) -> None:
        self._traced = jax.jit(_signed, **static)

    def of(self, args: tuple, kwargs: dict, leaves: Sequence[Any]) -> Signature | None:
        """The signature of a call; None inside a trace, or where JAX has none.

        Args:
          args: positional arguments.
          kwargs: named arguments.
          leaves: of both.
        """
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            return None
        try:
            return self._traced(*args, **kwargs)
        except (TypeError, ValueError):
            return None


def _signed(*args: Any, **kwargs: Any) -> Signature:
    leaves = jax.tree.leaves((args, kwargs))
    return Signature(tuple(isinstance(leaf, Tracer) for leaf in leaves))
