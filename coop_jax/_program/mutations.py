"""Arguments that a step changes in place.

Under `jax.jit`, and so here, a step gets its arguments rebuilt from arrays. What it
changes in a module of its own it changes in that copy: flax.nnx's own transformations
bring such changes back, JAX's do not, and nothing fails.
"""

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax

_CONTAINERS = (tuple, list, dict)


def warning_of_changes(step: Callable[..., Any]) -> Callable[..., Any]:
    """The step; it warns where it changes an argument and does not return that.

    Changes of lists and dicts are taken to be meant for the step alone.
    """

    @functools.wraps(step, updated=())
    def traced(*args: Any, **kwargs: Any) -> Any:
        given = [(where, node, _leaves(node)) for where, node in _nodes((args, kwargs))]
        result = step(*args, **kwargs)
        returned = set(map(id, jax.tree.leaves(result)))
        for where, node, before in given:
            known = returned.union(map(id, before))
            if any(id(leaf) not in known for leaf in _leaves(node)):
                warnings.warn(_lost(where, node), stacklevel=2)
        return result

    return traced


def _nodes(tree: Any) -> Iterator[tuple[str, Any]]:
    """The objects in a pytree that are neither containers of Python nor leaves."""
    paths, _ = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda node: not isinstance(node, _CONTAINERS)
    )
    for (position, *path), node in paths:
        if jax.tree_util.all_leaves([node]) or _makes_leaves(node):
            continue
        name = ("args", "kwargs")[position.idx]
        yield name + jax.tree_util.keystr(tuple(path)), node


def _makes_leaves(node: Any) -> bool:
    """Whether an object makes its leaves when it is asked, so that they say nothing."""
    first, second = _leaves(node), _leaves(node)
    if len(first) != len(second):
        return True
    return any(a is not b for a, b in zip(first, second, strict=True))


def _leaves(node: Any) -> list[Any]:
    return jax.tree.leaves(node)


def _lost(where: str, node: Any) -> str:
    return (
        f"coop_jax: the step changes `{where}`, a `{type(node).__name__}`, in place "
        "and does not return what it set. As under `jax.jit`, the change is lost. Let "
        "the step return the new state; a flax.nnx module is split outside of it "
        "(`nnx.split`), merged inside (`nnx.merge`), and its `nnx.state` returned."
    )
