"""What a compiled program moves and takes at least, by the rates of the card.

Each kernel takes as long as its matrix products do at the card's peak or as its bytes
do at the bandwidth of its memory, whichever is longer. No card gets there: it is the
ratio of two programs that says something, where neither can be timed.
"""

from dataclasses import dataclass

from .traffic import Kernel, kernels

_BANDWIDTH = 4.8e12
_PEAK = {"bf16": 989e12, "f16": 989e12, "f32": 495e12, "f64": 67e12}
"""An H200 by its data sheet, dense, in bytes and operations per second; float32
products are done in TF32, XLA's default there."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Of one run of a program.

    Attributes:
      bytes: that its kernels read and write (`traffic`).
      seconds: that they take at least.
    """

    bytes: int
    seconds: float


def roofline(hlo: str) -> Roofline:
    """Bytes, and least seconds on an H200.

    Args:
      hlo: `compiled.as_text()`.
    """
    launched = kernels(hlo)
    return Roofline(
        sum(kernel.bytes * kernel.times for kernel in launched),
        sum(_seconds(kernel) * kernel.times for kernel in launched),
    )


def _seconds(kernel: Kernel) -> float:
    peak = _PEAK.get(kernel.kind, _PEAK["f32"])
    return max(kernel.bytes / _BANDWIDTH, kernel.flops / peak)
