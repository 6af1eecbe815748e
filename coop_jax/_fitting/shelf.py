"""The array that small waiting values are written into (`_program/shelving`).

All are written before any is read, a few at a time, and the array passes a barrier
after either: so XLA writes it in place. What reads one of them before the last is
written reads the value itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .._program.profile import Profile
from .._program.trace import Variable

_AT_A_TIME = 8


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
        self._waiting: dict[Variable, Any] = {}
        self._touched: set[str] = set()

    def __contains__(self, variable: Variable) -> bool:
        return variable in self._avals

    def holds(self, variable: Variable) -> bool:
        """Whether it is to be read from here: it is, once all values are."""
        return variable in self._avals and not self._missing

    def is_about_to_take(self, variable: Variable) -> bool:
        """Whether it was put here and is not written yet."""
        return variable in self._waiting

    def put(self, values: Mapping[Variable, Any]) -> None:
        """Takes those of the values that belong here, and writes a few at a time."""
        self._waiting |= {v: values[v] for v in self._missing if v in values}
        if len(self._waiting) < min(_AT_A_TIME, len(self._missing)):
            return
        coming = sorted(self._waiting, key=self._place)
        while coming:
            run = [coming.pop(0)]
            while coming and self._follows(run[-1], coming[0]):
                run.append(coming.pop(0))
            self._write(run)
        self._waiting.clear()

    def _write(self, run: Sequence[Variable]) -> None:
        """Writes values that lie one after the other."""
        row = jnp.concatenate([jnp.ravel(self._waiting[v]) for v in run])
        name, start = row.dtype.name, (self._starts[run[0]],)
        array = lax.dynamic_update_slice(self._arrays[name], row, start)
        self._arrays[name] = array
        self._touched.add(name)
        for v in run:
            del self._missing[v]

    def _place(self, variable: Variable) -> tuple[str, int]:
        return self._avals[variable].dtype.name, self._starts[variable]

    def _follows(self, first: Variable, second: Variable) -> bool:
        name, start = self._place(first)
        return (name, start + self._avals[first].size) == self._place(second)

    def take(self, variable: Variable) -> jax.Array:
        """The value, from here."""
        aval, (name, start) = self._avals[variable], self._place(variable)
        self._touched.add(name)
        row = lax.slice(self._arrays[name], (start,), (start + aval.size,))
        return row.reshape(aval.shape)

    def touched(self) -> dict[str, Any]:
        """By type, arrays that were written or read since they passed a barrier."""
        return {name: self._arrays[name] for name in self._touched}

    def passed(self, arrays: Mapping[str, Any], values: Mapping[Variable, Any]) -> None:
        """Goes on with `touched` arrays, and values, from behind a barrier."""
        self._arrays |= arrays
        self._touched.clear()
        self._waiting |= {v: values[v] for v in self._waiting if v in values}
