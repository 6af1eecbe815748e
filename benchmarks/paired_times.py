"""Step times of several programs, interleaved so that drift falls on all alike."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax


def paired_times(
    programs: Sequence[Callable], args: tuple, donated: Sequence[int], rounds: int
) -> list[tuple[float, ...]]:
    """Seconds of each program in each of `rounds` rounds.

    Every round runs every program twice in a row, as in training each step comes after
    one of the same, and times the second; every other round goes in reverse. One more
    round before them is discarded.

    Args:
      programs: called as `program(*args)`.
      args: arrays; the donated ones are copied before every call.
      donated: positions in `args`.
    """
    seconds: list[list[float]] = [[] for _ in programs]
    order = list(range(len(programs)))
    for _ in range(rounds + 1):
        for i in order:
            jax.block_until_ready(programs[i](*copies(args, donated)))
            fresh = copies(args, donated)
            start = time.perf_counter()
            jax.block_until_ready(programs[i](*fresh))
            seconds[i].append(time.perf_counter() - start)
        order.reverse()
    return [tuple(each[1:]) for each in seconds]


def copies(args: tuple, donated: Sequence[int]) -> tuple[Any, ...]:
    """`args` with the donated ones copied, ready."""
    fresh = tuple(
        jax.tree.map(lambda leaf: leaf.copy(), arg) if i in donated else arg
        for i, arg in enumerate(args)
    )
    return jax.block_until_ready(fresh)
