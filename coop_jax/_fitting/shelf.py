"""The array that small waiting values are written into (`_program/shelving`).

All are written before any is read, and the array passes a barrier after either: so XLA
writes it in place. What reads one of them before the last is written reads the value
itself.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .._program.profile import Profile
from .._program.trace import Variable


class Shelf:
    """One array per type of the shelved values."""

    def __init__(self, profile: Profile) -> None:
        self._avals = {v: profile.program.avals[v] for v in profile.shelved}
        self._starts: dict[Variable, int] = {}
        lengths: dict[str, int] = {}
        for v, aval in self._avals.items():
            self._starts[v] = lengths.get(aval.dtype.name, 0)
            lengths[aval.dtype.name] = self._starts[v] + aval.size
        self._arrays = {
            name: lax.optimization_barrier(jnp.zeros(length, name))
            for name, length in lengths.items()
        }
        self._missing = dict.fromkeys(self._avals)
        self._touched: set[str] = set()

    def __contains__(self, variable: Variable) -> bool:
        return variable in self._avals

    def holds(self, variable: Variable) -> bool:
        """Whether it is to be read from here: it is, once all values are."""
        return variable in self._avals and not self._missing

    def put(self, values: Mapping[Variable, Any]) -> None:
        """Writes those of the values that belong here and are missing."""
        coming = [v for v in self._missing if v in values]
        for v in coming:
            del self._missing[v]
        while coming:
            run = [coming.pop(0)]
            while coming and self._follows(run[-1], coming[0]):
                run.append(coming.pop(0))
            row = jnp.concatenate([jnp.ravel(values[v]) for v in run])
            name, start = row.dtype.name, (self._starts[run[0]],)
            array = lax.dynamic_update_slice(self._arrays[name], row, start)
            self._arrays[name] = array
            self._touched.add(name)

    def _follows(self, first: Variable, second: Variable) -> bool:
        aval = self._avals[first]
        is_same = aval.dtype == self._avals[second].dtype
        return is_same and self._starts[first] + aval.size == self._starts[second]

    def take(self, variable: Variable) -> jax.Array:
        """The value, from here."""
        aval, start = self._avals[variable], self._starts[variable]
        self._touched.add(aval.dtype.name)
        row = lax.slice(self._arrays[aval.dtype.name], (start,), (start + aval.size,))
        return row.reshape(aval.shape)

    def touched(self) -> dict[str, Any]:
        """By type, arrays that were written or read since they passed a barrier."""
        return {name: self._arrays[name] for name in self._touched}

    def passed(self, arrays: Mapping[str, Any]) -> None:
        """Goes on with `touched` arrays from behind a barrier."""
        self._arrays |= arrays
        self._touched.clear()
