"""Compile times of several programs, each beside those of one that they share."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Compiles:
    """What compiling took.

    Attributes:
      base: seconds of every compile of the shared program.
      ratios: of each other program over the shared one, the median of the rounds.
    """

    base: tuple[float, ...]
    ratios: tuple[float, ...]


def paired_compiles(
    base: Callable[[], Any], others: Sequence[Callable[[], Any]], rounds: int
) -> Compiles:
    """Compiles `base` before and after each of `others`, in every round.

    A machine's speed changes by a third within minutes: a program counts over the mean
    of its two neighbours. With no others or no rounds `base` is compiled once.
    """
    seconds = [_seconds(base)]
    ratios: list[list[float]] = [[] for _ in others]
    for _ in range(rounds):
        for of_program, compile_other in zip(ratios, others, strict=True):
            taken = _seconds(compile_other)
            seconds.append(_seconds(base))
            of_program.append(taken / statistics.mean(seconds[-2:]))
    medians = tuple(statistics.median(each) for each in ratios if each)
    return Compiles(tuple(seconds), medians)


def _seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
