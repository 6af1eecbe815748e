"""The array that small waiting values are written into (`_program/shelving`).

All are written before any is read, a few at a time, and the array passes a barrier
after either: so XLA writes it in place. What reads one of them before the last is
written reads the value itself.

Where each lies comes out of a barrier too. XLA would compile a number it can see into
the kernel that reads the value, and so a kernel for each of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .._loops.loops import placed_like, varying
from .._program.profile import Profile
from .._program.trace import Variable

_AT_A_TIME = 8

type Kind = tuple[str, tuple[str, ...]]
"""Dtype, and the axes of `jax.shard_map` that values vary over."""


class Shelf:
    """One array per kind of the shelved values."""

    def __init__(self, profile: Profile) -> None:
        self._avals = {v: profile.program.avals[v] for v in profile.shelved}
        self._starts: dict[Variable, int] = {}
        lengths: dict[Kind, int] = {}
        for v, aval in self._avals.items():
            self._starts[v] = lengths.get(_kind(aval), 0)
            lengths[_kind(aval)] = self._starts[v] + aval.size
        empty = {
            _kind(aval): placed_like(aval, jnp.zeros(lengths[_kind(aval)], aval.dtype))
            for aval in self._avals.values()
        }
        numbers = {
            v: placed_like(aval, jnp.int32(self._starts[v]))
            for v, aval in self._avals.items()
        }
        self._arrays, self._offsets = (
            lax.optimization_barrier((empty, numbers)) if empty else ({}, {})
        )
        self._missing = dict.fromkeys(self._avals)
        self._waiting: dict[Variable, Any] = {}
        self._touched: set[Kind] = set()

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
        kind, offset = _kind(self._avals[run[0]]), self._offsets[run[0]]
        self._arrays[kind] = lax.dynamic_update_slice(
            self._arrays[kind], row, (offset,), allow_negative_indices=False
        )
        self._touched.add(kind)
        for v in run:
            del self._missing[v]

    def _place(self, variable: Variable) -> tuple[Kind, int]:
        return _kind(self._avals[variable]), self._starts[variable]

    def _follows(self, first: Variable, second: Variable) -> bool:
        kind, start = self._place(first)
        return (kind, start + self._avals[first].size) == self._place(second)

    def take(self, variable: Variable) -> jax.Array:
        """The value, from here."""
        aval, offset = self._avals[variable], self._offsets[variable]
        kind = _kind(aval)
        self._touched.add(kind)
        row = lax.dynamic_slice(
            self._arrays[kind], (offset,), (aval.size,), allow_negative_indices=False
        )
        return row.reshape(aval.shape)

    def touched(self) -> dict[Kind, Any]:
        """By kind, arrays that were written or read since they passed a barrier."""
        return {kind: self._arrays[kind] for kind in self._touched}

    def passed(
        self, arrays: Mapping[Kind, Any], values: Mapping[Variable, Any]
    ) -> None:
        """Goes on with `touched` arrays, and values, from behind a barrier."""
        self._arrays |= arrays
        self._touched.clear()
        self._waiting |= {v: values[v] for v in self._waiting if v in values}


def _kind(aval: Any) -> Kind:
    return aval.dtype.name, tuple(sorted(varying(aval)))
