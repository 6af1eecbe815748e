"""`LocalSearch` in C++: the same plans, to the last bit, many times as fast.

Without the native library (`library`) the same search runs in Python. Imports no JAX.
"""

import ctypes
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .library import library
from .planned import Effort, Planned, Positions, most_moves
from .refine import refinement_rounds
from .retention import movability
from .types import Problem, Schedule


class _Ragged(ctypes.Structure):
    _fields_ = (("offsets", ctypes.c_void_p), ("flat", ctypes.c_void_p))


class _ProblemArrays(ctypes.Structure):
    _fields_ = (
        ("ops", ctypes.c_int64),
        ("values", ctypes.c_int64),
        ("inputs", _Ragged),
        ("outputs", _Ragged),
        ("in_place", _Ragged),
        ("costs", ctypes.c_void_p),
        ("workspaces", ctypes.c_void_p),
        ("piece_offsets", ctypes.c_void_p),
        ("pieces", ctypes.c_void_p),
        ("is_fixed", ctypes.c_void_p),
        ("deadlines", ctypes.c_void_p),
        ("producers", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("is_output", ctypes.c_void_p),
        ("alignment", ctypes.c_int64),
        ("has_watershed", ctypes.c_int64),
        ("has_durations", ctypes.c_int64),
        ("cost", ctypes.c_double),
        ("once", ctypes.c_double),
    )


class _PlannedArrays(ctypes.Structure):
    _fields_ = (
        ("positions", _Ragged),
        ("peak", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("cost", ctypes.c_double),
        ("fits", ctypes.c_int64),
    )


class _Limits(ctypes.Structure):
    _fields_ = (("pool", ctypes.c_int64), ("moves_left", ctypes.c_int64))


class NativeSearch:
    """`LocalSearch` by the native library; see there.

    Attributes:
      problem: what is planned.
      pool: bytes that a schedule may take.
      moves: steps tried at most from one seed.
      moves_left: of these.
      deadline: when refinement stops, by `time.monotonic`.
    """

    def __init__(
        self, problem: Problem, pool: int, effort: Effort, is_packed: bool = False
    ) -> None:
        self.problem = problem
        self.pool = pool
        self.moves = self.moves_left = most_moves(problem, effort)
        self.deadline = time.monotonic() + effort.time_limit
        self._library = library()
        arrays = _Arrays()
        self._session = ctypes.c_void_p(
            self._library.coop_jax_search_open(
                ctypes.byref(arrays.problem(problem)), ctypes.c_int32(is_packed)
            )
        )

    def __del__(self) -> None:
        self._library.coop_jax_search_close(self._session)

    def begin(self, pool: int, seed: int = 0) -> None:
        """Forgets what earlier searches left behind, and draws anew from `seed`."""
        self.pool, self.moves_left = pool, self.moves
        self._library.coop_jax_search_begin(self._session, ctypes.c_uint64(seed))

    def at(self, positions: Positions) -> Planned:
        """The schedule at these positions."""
        return self._call(self._library.coop_jax_search_at, positions)

    def reach(
        self, start: Positions, noise: float = 0.0, is_quick: bool = False
    ) -> Planned:
        """Relieves a schedule until it is within the pool, then trims it."""
        options = ctypes.c_double(noise), ctypes.c_int32(is_quick)
        return self._call(self._library.coop_jax_search_reach, start, None, *options)

    def refine(self, start: Planned, effort: Effort) -> Planned:
        """The cheapest schedule found around one that fits, but for packing."""
        rounds = ctypes.c_int64(refinement_rounds(self.problem, effort))
        seconds = ctypes.c_double(self.deadline - time.monotonic())
        refine = self._library.coop_jax_search_refine
        return self._call(refine, start.positions, start, rounds, seconds)

    def tightened(self, best: Planned) -> Planned:
        """A schedule that fits, with less recomputed, if packing allows that."""
        tightened = self._library.coop_jax_search_tightened
        return self._call(tightened, best.positions, best)

    def _call(
        self,
        function: Callable[..., None],
        positions: Positions,
        start: Planned | None = None,
        *options: Any,
    ) -> Planned:
        arrays = _Arrays()
        given = _PlannedArrays(arrays.ragged(positions))
        if start is not None:
            given.peak, given.size, given.cost = start.peak, start.size, start.cost
            given.fits = start.fits
        limits, found = _Limits(self.pool, self.moves_left), _PlannedArrays()
        function(
            self._session,
            ctypes.byref(limits),
            ctypes.byref(given),
            *options,
            ctypes.byref(found),
        )
        self.moves_left = limits.moves_left
        return _planned(found, len(self.problem.ops))


class _Arrays:
    """Makes arrays and keeps them as long as C++ may read them."""

    def __init__(self) -> None:
        self._kept: list[np.ndarray] = []

    def array(self, items: Iterable[float], dtype: type) -> int:
        """Address of a new array of the items."""
        self._kept.append(np.array(list(items), dtype))
        return self._kept[-1].ctypes.data

    def ragged(self, rows: Sequence[Sequence[int]]) -> _Ragged:
        offsets = np.cumsum([0, *map(len, rows)])
        flat = [item for row in rows for item in row]
        return _Ragged(self.array(offsets, np.int64), self.array(flat, np.int32))

    def problem(self, problem: Problem) -> _ProblemArrays:
        ops, values = problem.ops, problem.values
        is_fixed, deadlines = movability(problem)
        pieces = [op.workspaces for op in ops]
        return _ProblemArrays(
            ops=len(ops),
            values=len(values),
            inputs=self.ragged([op.inputs for op in ops]),
            outputs=self.ragged([op.outputs for op in ops]),
            in_place=self.ragged([sum(op.in_place, ()) for op in ops]),
            costs=self.array((op.cost for op in ops), np.float64),
            workspaces=self.array((op.workspace for op in ops), np.int64),
            piece_offsets=self.array(np.cumsum([0, *map(len, pieces)]), np.int64),
            pieces=self.array(itertools.chain.from_iterable(pieces), np.int64),
            is_fixed=self.array(is_fixed, np.int32),
            deadlines=self.array(deadlines, np.int32),
            producers=self.array(problem.producer, np.int32),
            sizes=self.array(problem.pool_sizes, np.int64),
            is_output=self.array((value.is_output for value in values), np.int32),
            alignment=problem.alignment,
            has_watershed=problem.has_watershed,
            has_durations=problem.has_durations,
            cost=problem.cost(problem.program_order),
            once=problem.once,
        )


def native_packed_size(
    problem: Problem, schedule: Schedule, watersheds: Sequence[int]
) -> int:
    """`packed_size` by the native library; see there."""
    arrays = _Arrays()
    return library().coop_jax_packed_size(
        ctypes.byref(arrays.problem(problem)),
        ctypes.c_void_p(arrays.array(schedule, np.int32)),
        ctypes.c_int64(len(schedule)),
        ctypes.c_void_p(arrays.array(watersheds, np.int32)),
        ctypes.c_int64(len(watersheds)),
    )


def _planned(arrays: _PlannedArrays, ops: int) -> Planned:
    offsets = _read(arrays.positions.offsets, ctypes.c_int64, ops + 1)
    flat = _read(arrays.positions.flat, ctypes.c_int32, int(offsets[-1]))
    op = np.repeat(np.arange(ops), np.diff(offsets))
    runs, ends = flat.tolist(), offsets.tolist()
    return Planned(
        schedule=tuple(op[np.lexsort((op, flat))].tolist()),
        positions=tuple(tuple(runs[a:b]) for a, b in itertools.pairwise(ends)),
        peak=arrays.peak,
        size=arrays.size,
        cost=arrays.cost,
        fits=bool(arrays.fits),
    )


def _read(address: int, kind: Any, count: int) -> np.ndarray:
    if not count:
        return np.zeros(0, np.int64)
    pointer = ctypes.cast(address, ctypes.POINTER(kind))
    return np.ctypeslib.as_array(pointer, (count,)).copy()
