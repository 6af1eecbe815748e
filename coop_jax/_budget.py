"""What a user may write as a budget, and the bytes it comes to. Imports no JAX.

`parse_budget` refuses whatever could be read in two ways and says what to write
instead. Byte units are spelled as in IEC (KiB, 1024-based) and SI (kB, 1000-based).
"""

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral, Real
from typing import Literal, NoReturn

type BudgetLike = int | float | str | None
"""Bytes, a share in (0, 1], `"12GiB"` or `"min"`, or None for the device's limit."""

_DEVICE_MARGIN = 20
"""`budget=None` leaves one part in this many of the device's limit unused."""

_UNITS = {"b": 1}
_UNITS |= {f"{p}ib": 1024**i for i, p in enumerate("kmgt", start=1)}
_UNITS |= {f"{p}b": 1000**i for i, p in enumerate("kmgt", start=1)}

_FORMS = (
    'an int in bytes (12_000_000_000), a string with a unit ("12GiB", "800MB"), '
    'a float in (0, 1] as the share of the unplanned bytes (0.5), "min" for the '
    "smallest reachable, or None for the device's own limit"
)


@dataclass(frozen=True, slots=True)
class Budget:
    """What was asked for, before the unplanned step and the device are known.

    Attributes:
      kind: "bytes", "share" (of the unplanned bytes), "min" (smallest reachable), or
        "device" (the device's own limit with a margin).
      size: bytes, if kind is "bytes".
      share: in (0, 1], if kind is "share".
    """

    kind: Literal["bytes", "share", "min", "device"]
    size: int = 0
    share: float = 0.0

    def resolve(self, unplanned: int, device_limit: int | None) -> int | None:
        """Returns the budget in bytes, or None for the smallest reachable.

        Args:
          unplanned: bytes that the unplanned step measures.
          device_limit: bytes that the device may use, or None if it reports no limit.

        Raises:
          ValueError: the device's limit was asked for and there is none.
        """
        match self.kind:
            case "bytes":
                return self.size
            case "share":
                return max(1, math.floor(Fraction(self.share) * unplanned))
            case "min":
                return None
            case "device":
                return _within_device(device_limit)


def _within_device(limit: int | None) -> int:
    if limit is None:
        raise ValueError(
            "`budget=None` means the device's own limit, but this device reports none. "
            'Give `budget` as bytes, for example "12GiB".'
        )
    return limit - limit // _DEVICE_MARGIN


def parse_budget(budget: BudgetLike) -> Budget:
    """Reads a budget as the user wrote it.

    Args:
      budget: an int (bytes), a string with a unit (`"12GiB"`, `"800MB"`), a float in
        (0, 1] (share of the bytes that the unplanned step measures), `"min"` (smallest
        reachable), or None (the device's own limit with a margin). NumPy numbers count
        as the Python numbers they stand for.

    Returns:
      The budget. `Budget.resolve` turns it into bytes.

    Raises:
      TypeError: `budget` is none of these types; a bool is not an int here.
      ValueError: it is not positive, not finite, above 1 as a share, or not readable.
    """
    if budget is None:
        return Budget("device")
    if isinstance(budget, str):
        return _parse_text(budget)
    if isinstance(budget, Integral) and not isinstance(budget, bool):
        return _from_bytes(int(budget), budget)
    if isinstance(budget, Real) and not isinstance(budget, bool):
        return _from_share(float(budget), budget)
    why = f"a {type(budget).__name__} is neither a number of bytes nor a share"
    raise TypeError(_message(budget, why))


def _from_bytes(size: int, given: object) -> Budget:
    if size <= 0:
        _refuse(given, "a budget must be at least one byte")
    return Budget("bytes", size=size)


def _from_share(share: float, given: object) -> Budget:
    if not math.isfinite(share):
        _refuse(given, "it is not a finite number")
    if share <= 0:
        _refuse(given, "a share must be above 0")
    if share > 1:
        _refuse(given, "a float is a share of the unplanned bytes, at most 1")
    return Budget("share", share=share)


_QUANTITY = re.compile(r"([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z%]*)")


def _parse_text(given: str) -> Budget:
    text = given.strip()
    if text.lower() == "min":
        return Budget("min")
    match = _QUANTITY.fullmatch(text)
    if match is None:
        _refuse(given, "it does not read as a number of bytes")
    sign, number, unit = match.groups()
    size = math.floor(Fraction(number) * _bytes_per(unit, number, given))
    return _from_bytes(-size if sign == "-" else size, given)


def _bytes_per(unit: str, number: str, given: str) -> int:
    """Bytes in one `unit`. Refuses units that could mean something else."""
    if unit == "" and "." in number:
        _refuse(given, "it has no unit; a share is written without quotes")
    if unit == "%":
        _refuse(given, "a share is written as a float: 0.5, not '50%'")
    if unit.lower() in ("k", "m", "g", "t"):
        si = "kB" if unit in "kK" else f"{unit.upper()}B"
        iec = f"{unit.upper()}iB"
        _refuse(given, f"{unit!r} could mean {iec} (1024-based) or {si} (1000-based)")
    if (unit or "b").lower() not in _UNITS:
        _refuse(given, f"{unit!r} is not a unit of bytes")
    if unit.endswith("b") and not unit.islower():
        _refuse(given, f"{unit!r} reads as bits; bytes are written with a capital B")
    return _UNITS[(unit or "b").lower()]


def _refuse(given: object, why: str) -> NoReturn:
    raise ValueError(_message(given, why))


def _message(given: object, why: str) -> str:
    return f"`budget={given!r}` cannot be used: {why}. Write {_FORMS}."


def format_bytes(size: int) -> str:
    """Returns bytes as a person reads them: `"512 B"`, `"12.3 GiB"` (1024-based)."""
    if abs(size) < 1024:
        return f"{size} B"
    scaled = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        scaled /= 1024
        # What rounds to 1024.0 is written as 1.0 of the next unit.
        if abs(scaled) < 1023.95:
            return f"{scaled:.1f} {unit}"
    return f"{scaled / 1024:.1f} TiB"
