"""What dropping a value over a stretch takes away from the excess. Imports no JAX."""

import numpy as np

_NEGLIGIBLE = 128


def least_counted(sizes: list[int], peak: int) -> int:
    """Bytes below which all values together are a negligible part of the peak."""
    left = peak // _NEGLIGIBLE
    for size in sorted(sizes):
        left -= size
        if left < 0:
            return max(size, 1)
    return 1


class Relief:
    """How much excess a value of some size adds or takes away over a stretch."""

    def __init__(self, bytes_at: np.ndarray, pool: int) -> None:
        self._excess = np.maximum(bytes_at - pool, 0)
        self._prefix: dict[int, list[int]] = {}

    def of(self, size: int, start: int, end: int) -> int:
        """Sum over positions `[start, end)` of the excess that `size` bytes cover."""
        if size not in self._prefix:
            covered = np.cumsum(np.minimum(self._excess, size))
            self._prefix[size] = [0, *covered.tolist()]
        prefix = self._prefix[size]
        return prefix[end] - prefix[start]
