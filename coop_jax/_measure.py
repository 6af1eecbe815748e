"""Bytes of a compiled program, as XLA itself measures them, per device."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax

from ._budget import format_bytes


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes per device of one compiled step, from XLA's `memory_analysis()`.

    Attributes:
      argument: arguments.
      output: outputs, donated aliases included.
      alias: bytes of outputs that live in donated arguments.
      temp: XLA's temporary block, after packing.

    Example:
      >>> use = coop_jax.measure(step, state, batch)
      >>> use.total == use.argument + use.output - use.alias + use.temp
      True
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

    def __str__(self) -> str:
        rows = [
            ("arguments", self.argument),
            ("outputs", self.output),
            ("donated", -self.alias),
            ("temporary", self.temp),
            ("total", self.total),
        ]
        return "\n".join(
            f"{name:<10}{format_bytes(size):>12}  ({size:,} bytes)"
            for name, size in rows
        )


def measure(step: Callable[..., Any], *args: Any, **kwargs: Any) -> MemoryUse:
    """Bytes per device that a step takes, without running it.

    Args:
      step: a function, plain or under `jax.jit` (with its donation and shardings), or
        what `coop_jax.remat` returned.
      *args: its arguments, as arrays or `jax.ShapeDtypeStruct`s.
      **kwargs: its named arguments.

    Returns:
      The bytes of arguments, outputs, donated outputs and temporaries; `print` lists
      them.

    Raises:
      TypeError: `step` is not callable.
      RuntimeError: the backend tells no bytes of compiled programs.
      BudgetError: `step` has a budget, and no program within it was found.

    Example:
      >>> import jax, jax.numpy as jnp, coop_jax
      >>> use = coop_jax.measure(lambda x: x @ x.T, jnp.ones((64, 8)))
      >>> use.argument, use.output
      (2048, 16384)
    """
    if not callable(step):
        raise TypeError(
            f"`coop_jax.measure` takes a function and its arguments, not "
            f"{type(step).__name__}: write `coop_jax.measure(step, *args)`."
        )
    staged: Any = step if hasattr(step, "lower") else jax.jit(step)
    return memory_use(staged.lower(*args, **kwargs).compile())


def device_limit(shardings: Iterable[Any]) -> int | None:
    """Bytes that a step's device reports as its limit, or None if it reports none.

    Args:
      shardings: of the step's arguments; None where they are not known.
    """
    known = (sharding for sharding in shardings if sharding is not None)
    placed = next(known, None)
    here = jax.local_devices() if placed is None else placed.addressable_devices
    try:
        statistics = next(iter(here)).memory_stats()
    except (RuntimeError, jax.errors.JaxRuntimeError, NotImplementedError):
        return None
    return (statistics or {}).get("bytes_limit")


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
