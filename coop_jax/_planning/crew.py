"""Searches of one problem at the same time. Imports no JAX.

The native library works outside of Python's lock, so several ways are followed at once,
on as many processors as there are. What a way comes to depends on nothing but the way:
plans are the same on every host.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from .library import library
from .native_search import NativeSearch
from .planned import Effort, Planned, Positions
from .refine import LocalSearch
from .retention import Retention
from .types import Problem

_MOST_AT_ONCE = 6

type AnySearch = NativeSearch | LocalSearch
type Start = Positions | Callable[[], Positions | None]


@dataclass(frozen=True, slots=True)
class Way:
    """From where a search sets out, and how.

    Attributes:
      start: positions to begin with, or what finds them, when the way is followed;
        None if there are none.
      noise: most by which scores of gaps are changed at random, as a share.
      is_quick: take gaps by their estimates, without trying them.
      seed: of the random numbers.
    """

    start: Start
    noise: float = 0.0
    is_quick: bool = False
    seed: int = 0


class Crew(AbstractContextManager):
    """A leading search, and others that go ahead of it.

    Attributes:
      lead: the search to go on with from what the ways came to.
      at_once: how many others can work at the same time.
    """

    def __init__(
        self, problem: Problem, pool: int, effort: Effort, is_packed: bool
    ) -> None:
        self.lead = open_search(problem, pool, effort, is_packed)
        self._problem, self._effort, self._is_packed = problem, effort, is_packed
        self._resting: SimpleQueue[AnySearch] = SimpleQueue()
        self.at_once = min(_processors(), _MOST_AT_ONCE) if library() else 1
        self._threads = ThreadPoolExecutor(self.at_once, "coop_jax planner")

    def __exit__(self, *_: Any) -> None:
        """Waits for nothing: what is under way ends by itself, for nothing."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def follow(
        self, ways: Iterable[Way], pool: int, polish: Effort, waits: bool = True
    ) -> Iterator[tuple[Way, Planned]]:
        """What the ways come to, in their order, each with a little refinement.

        Ways that have no start are left out.

        Args:
          ways: in their order; taken as needed.
          pool: bytes that a schedule may take.
          polish: effort of the refinement.
          waits: whether the first is waited for before any other is begun, as it may
            be the only one.
        """
        for way, found in self._followed(ways, pool, polish, waits):
            if found is not None:
                yield way, found

    def _followed(
        self, ways: Iterable[Way], pool: int, polish: Effort, waits: bool
    ) -> Iterator[tuple[Way, Planned | None]]:
        under_way: deque[tuple[Way, Future[Planned | None]]] = deque()
        try:
            for turn, way in enumerate(ways):
                if turn == 0 and waits:
                    yield way, _follow(self.lead, way, pool, polish)
                    continue
                under_way.append((way, self._sent(way, pool, polish)))
                if len(under_way) >= self.at_once:
                    yield _result(*under_way.popleft())
            while under_way:
                yield _result(*under_way.popleft())
        finally:
            for _, sent in under_way:
                sent.cancel()

    def send(self, ways: Iterable[Way], pool: int, polish: Effort) -> Iterator[Planned]:
        """What all of the ways come to, which others follow meanwhile."""
        under_way = [self._sent(way, pool, polish) for way in ways]
        return (found for sent in under_way if (found := sent.result()) is not None)

    def meanwhile[T](self, work: Callable[[AnySearch], T]) -> Future[T]:
        """Has another search do something else beside what is followed."""
        return self._threads.submit(self._lent, work)

    def _sent(self, way: Way, pool: int, polish: Effort) -> Future[Planned | None]:
        return self.meanwhile(lambda search: _follow(search, way, pool, polish))

    def _lent[T](self, work: Callable[[AnySearch], T]) -> T:
        try:
            search = self._resting.get_nowait()
        except Empty:
            pool = self.lead.pool
            search = open_search(self._problem, pool, self._effort, self._is_packed)
            search.deadline = self.lead.deadline
        found = work(search)
        self._resting.put(search)
        return found


def open_search(
    problem: Problem, pool: int, effort: Effort, is_packed: bool
) -> AnySearch:
    """A search by the native library, or by Python if that was not built."""
    if library() is None:
        return LocalSearch(Retention(problem), pool, effort, is_packed)
    return NativeSearch(problem, pool, effort, is_packed)


def _follow(search: AnySearch, way: Way, pool: int, polish: Effort) -> Planned | None:
    start = way.start() if callable(way.start) else way.start
    if start is None:
        return None
    search.begin(pool, way.seed)
    found = search.reach(start, way.noise, way.is_quick)
    return search.refine(found, polish) if found.peak <= pool else found


def _result(way: Way, sent: Future[Planned | None]) -> tuple[Way, Planned | None]:
    return way, sent.result()


def _processors() -> int:
    """That this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
