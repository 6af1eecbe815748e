"""Tells calls of a step apart as JAX does, and as fast.

What decides how a call is traced (structure, shapes, types, settings in force) is known
in full to JAX's own dispatch alone. So a jitted function stands beside the step that
computes nothing: its result is a `Signature`, new where JAX has to trace it anew, and
the same one wherever JAX would run what it traced before. Where arrays are decides how
it is compiled, and is added here.
"""

import weakref
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
        # A function of its own: JAX takes calls of one for the same that have equal
        # dynamic and equal static arguments, wherever these are.
        self._traced = jax.jit(lambda *args, **kwargs: _signed(args, kwargs), **static)

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


class Remembered[T]:
    """Things by a signature and a key, for as long as JAX remembers the signature.

    JAX forgets by `jax.clear_caches`, which is called to free memory.
    """

    def __init__(self) -> None:
        self._things = weakref.WeakKeyDictionary[Signature, dict[Any, T]]()

    def get(self, signature: Signature, key: Any) -> T | None:
        """What was put there, or None."""
        return self._things.get(signature, {}).get(key)

    def put(self, signature: Signature, key: Any, thing: T) -> T:
        """Keeps the thing, and returns it."""
        self._things.setdefault(signature, {})[key] = thing
        return thing

    def __len__(self) -> int:
        return sum(map(len, self._things.values()))


def placement(leaves: Sequence[Any]) -> Any:
    """Where a call runs: the sharding of each leaf that is bound to devices.

    All others, such as NumPy's, go where those are, or to the default device.
    """
    bound = [getattr(leaf, "committed", False) and leaf.sharding for leaf in leaves]
    return jax.config.jax_default_device, tuple(bound)


@jax.jit
def of_any_step() -> Signature:
    """A signature that is not of a call: of what does not depend on arguments."""
    return Signature(())


def _signed(args: tuple, kwargs: dict) -> Signature:
    leaves = jax.tree.leaves((args, kwargs))
    return Signature(tuple(isinstance(leaf, Tracer) for leaf in leaves))
