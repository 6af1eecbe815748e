"""Budgets: what is read, what is refused, and with which words."""

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coop_jax._budget import Budget, format_bytes, parse_budget

GIB = 1024**3


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("4096B", 4096),
        ("4096 b", 4096),
        ("1KiB", 1024),
        ("1kB", 1000),
        ("1KB", 1000),
        ("1kb", 1000),
        ("3MiB", 3 * 1024**2),
        ("800MB", 800_000_000),
        ("12GiB", 12 * GIB),
        ("12gib", 12 * GIB),
        ("12GIB", 12 * GIB),
        ("12GB", 12_000_000_000),
        ("12gb", 12_000_000_000),
        ("2TiB", 2 * 1024**4),
        ("2TB", 2 * 1000**4),
        ("1.5 GiB", 3 * GIB // 2),
        ("  .5KiB\n", 512),
        ("+7.B", 7),
        ("0.3kB", 300),
        ("1.0009kB", 1000),
    ],
)
def test_reads_bytes_with_iec_and_si_units(text: str, size: int) -> None:
    assert parse_budget(text) == Budget("bytes", size=size)


@pytest.mark.parametrize("number", [1, 2**60, np.int64(7), np.uint8(7), np.int32(7)])
def test_an_integer_is_bytes(number: Any) -> None:
    budget = parse_budget(number)
    assert budget == Budget("bytes", size=int(number))
    assert type(budget.size) is int


@pytest.mark.parametrize("number", [1.0, 0.5, 1e-9, np.float32(0.5), np.float64(1)])
def test_a_float_up_to_one_is_a_share(number: Any) -> None:
    budget = parse_budget(number)
    assert budget == Budget("share", share=float(number))
    assert type(budget.share) is float


@pytest.mark.parametrize("text", ["min", "MIN", " min "])
def test_min_asks_for_the_smallest_reachable(text: str) -> None:
    assert parse_budget(text) == Budget("min")


def test_none_asks_for_the_limit_of_the_device() -> None:
    assert parse_budget(None) == Budget("device")


@pytest.mark.parametrize(
    ("budget", "why"),
    [
        (0, "at least one byte"),
        (-1, "at least one byte"),
        (np.int64(-5), "at least one byte"),
        ("0", "at least one byte"),
        ("0GiB", "at least one byte"),
        ("0.1B", "at least one byte"),
        ("-12GiB", "at least one byte"),
        (0.0, "above 0"),
        (-0.5, "above 0"),
        (1.0001, "at most 1"),
        (12.0, "at most 1"),
        (float(12 * GIB), "at most 1"),
        (math.nan, "not a finite number"),
        (math.inf, "not a finite number"),
        (-math.inf, "not a finite number"),
        (np.float32("nan"), "not a finite number"),
        ("", "does not read as a number"),
        ("   ", "does not read as a number"),
        ("max", "does not read as a number"),
        ("GiB", "does not read as a number"),
        ("nan", "does not read as a number"),
        ("1e9", "does not read as a number"),
        ("4,096", "does not read as a number"),
        ("12 GiB or so", "does not read as a number"),
        ("12 parsecs", "'parsecs' is not a unit of bytes"),
        ("12PiB", "'PiB' is not a unit of bytes"),
        ("12iB", "'iB' is not a unit of bytes"),
        ("0.5", "a share is written without quotes"),
        ("50%", "a share is written as a float"),
        ("12G", "'G' could mean GiB (1024-based) or GB (1000-based)"),
        ("12k", "'k' could mean KiB (1024-based) or kB (1000-based)"),
        ("12Gb", "'Gb' reads as bits"),
        ("12Mib", "'Mib' reads as bits"),
    ],
)
def test_refuses_with_what_was_given_why_and_what_to_write(
    budget: Any, why: str
) -> None:
    with pytest.raises(ValueError) as caught:
        parse_budget(budget)
    message = str(caught.value)
    assert f"`budget={budget!r}` cannot be used: " in message
    assert why in message
    assert '"12GiB"' in message and "(0, 1]" in message


@pytest.mark.parametrize(
    "budget",
    [True, False, np.True_, b"12GiB", [1], (1,), 1 + 0j, Decimal("0.5"), np.ones(1)],
)
def test_refuses_other_types(budget: Any) -> None:
    with pytest.raises(TypeError) as caught:
        parse_budget(budget)
    message = str(caught.value)
    assert f"a {type(budget).__name__} is neither" in message
    assert '"12GiB"' in message


@pytest.mark.parametrize(
    ("budget", "size"),
    [
        (4096, 4096),
        ("1KiB", 1024),
        (1.0, 1000),
        (0.5, 500),
        (0.3339, 333),
        (1e-9, 1),
        ("min", None),
        (None, 1900),
    ],
)
def test_resolves_to_bytes(budget: Any, size: int | None) -> None:
    assert parse_budget(budget).resolve(1000, device_limit=2000) == size


@pytest.mark.parametrize(
    ("budget", "size"), [("1KiB", 1024), (0.5, 500), ("min", None)]
)
def test_needs_the_limit_of_the_device_only_for_none(
    budget: Any, size: int | None
) -> None:
    assert parse_budget(budget).resolve(1000, device_limit=None) == size
    with pytest.raises(ValueError, match=r'reports none.*"12GiB"'):
        parse_budget(None).resolve(1000, device_limit=None)


@given(st.integers(1, 2**70))
def test_the_whole_share_is_every_unplanned_byte(unplanned: int) -> None:
    assert parse_budget(1.0).resolve(unplanned, None) == unplanned


@given(
    st.floats(0, 1, exclude_min=True),
    st.floats(0, 1, exclude_min=True),
    st.integers(1, 2**50),
)
def test_a_larger_share_is_no_fewer_bytes(a: float, b: float, unplanned: int) -> None:
    small, large = (parse_budget(s).resolve(unplanned, None) for s in sorted((a, b)))
    assert small is not None and large is not None
    assert 1 <= small <= large <= unplanned


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (1024**2, "1.0 MiB"),
        (1024**3 - 1, "1.0 GiB"),
        (13_207_024_435, "12.3 GiB"),
        (5 * 1024**4, "5.0 TiB"),
        (5000 * 1024**4, "5000.0 TiB"),
        (-1536, "-1.5 KiB"),
    ],
)
def test_formats_bytes_for_people(size: int, text: str) -> None:
    assert format_bytes(size) == text


@given(st.integers(0, 2**50))
def test_formatted_bytes_read_back_within_their_rounding(size: int) -> None:
    text = format_bytes(size)
    if size > 0:
        assert parse_budget(text).size == pytest.approx(size, rel=0.051)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
