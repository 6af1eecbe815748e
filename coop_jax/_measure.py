"""Bytes of a compiled program, as XLA itself measures them, per device."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes per device of one compiled step, from XLA's `memory_analysis()`.

    Attributes:
      argument: arguments.
      output: outputs, donated aliases included.
      alias: bytes of outputs that live in donated arguments.
      temp: XLA's temporary block, after packing.
    """

    argument: int
    output: int
    alias: int
    temp: int

    @property
    def fixed(self) -> int:
        """Bytes no plan can change: arguments plus outputs less aliases."""
        return self.argument + self.output - self.alias

    @property
    def total(self) -> int:
        """The budget metric: `argument + output - alias + temp`.

        XLA's `peak_memory_in_bytes` leaves temporaries out on CPU and is not used.
        """
        return self.fixed + self.temp


def memory_use(compiled: Any) -> MemoryUse:
    """Reads the bytes of a `jax.stages.Compiled`."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        raise RuntimeError("this backend gives no memory analysis of compiled programs")
    return MemoryUse(
        argument=analysis.argument_size_in_bytes,
        output=analysis.output_size_in_bytes,
        alias=analysis.alias_size_in_bytes,
        temp=analysis.temp_size_in_bytes,
    )
