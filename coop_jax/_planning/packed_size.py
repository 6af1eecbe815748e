"""The size of a packed schedule, in C++ where the library is there. Imports no JAX."""

from collections.abc import Sequence

from .buffer_assignment import assign, schedule_buffers
from .library import library
from .native_search import native_packed_size
from .types import Problem, Schedule


def packed_size(
    problem: Problem, schedule: Schedule, watersheds: Sequence[int] = ()
) -> int:
    """Bytes of the block that XLA packs a schedule into.

    Args:
      problem: of the schedule.
      schedule: ops in the order they run.
      watersheds: positions in front of one of which the clock may be put forward.
    """
    if library() is not None:
        return native_packed_size(problem, schedule, watersheds)
    buffers = schedule_buffers(problem, schedule)
    about = problem.alignment, watersheds
    return assign(buffers, *about, has_durations=problem.has_durations).peak
