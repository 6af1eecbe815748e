"""Random numbers that are the same in Python and in C++. Imports no JAX.

SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014); native/splitmix.h is the other half.
"""

from collections.abc import Sequence

_MASK = 2**64 - 1


class SplitMix:
    """A stream of random numbers, always the same for one `seed`."""

    def __init__(self, seed: int = 0) -> None:
        self._state = seed

    def unit(self) -> float:
        """Uniform in [0, 1)."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((z ^ (z >> 31)) >> 11) * 2.0**-53

    def between(self, low: float, high: float) -> float:
        """Uniform in [low, high)."""
        return low + (high - low) * self.unit()

    def choice[T](self, items: Sequence[T]) -> T:
        """One of the items, each as likely."""
        return items[int(self.unit() * len(items))]
