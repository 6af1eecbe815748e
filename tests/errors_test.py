"""BudgetError: what it carries and what it says."""

import pickle

import pytest

from coop_jax._errors import BudgetError, LiveBuffer

MIB = 1024**2

BUFFERS = [
    ("add", 1 * MIB, ""),
    ("dot_general", 6 * MIB, "train.py:12"),
]


def test_says_what_was_asked_what_was_reached_what_is_alive_and_what_helps() -> None:
    error = BudgetError(4 * MIB, 9 * MIB, BUFFERS, ["Raise `time_limit`."])
    assert str(error) == (
        "`coop_jax.remat` cannot run this step in 4,194,304 bytes (4.0 MiB): "
        "the smallest program it found takes 9,437,184 bytes (9.0 MiB).\n"
        "Largest buffers alive at its peak:\n"
        "     6.0 MiB  dot_general  train.py:12\n"
        "     1.0 MiB  add\n"
        "What would help:\n"
        "  - Raise `budget` to at least 9,437,184 bytes.\n"
        "  - Raise `time_limit`.\n"
        "  - Make the batch smaller, or accumulate gradients over smaller ones."
    )


def test_carries_its_numbers_with_the_largest_buffer_first() -> None:
    error = BudgetError(4 * MIB, 9 * MIB, BUFFERS)
    assert isinstance(error, ValueError)
    assert (error.budget, error.floor) == (4 * MIB, 9 * MIB)
    assert error.buffers == (
        LiveBuffer("dot_general", 6 * MIB, "train.py:12"),
        LiveBuffer("add", 1 * MIB),
    )


def test_without_a_floor_it_suggests_the_smallest_reachable() -> None:
    error = BudgetError(100)
    assert error.floor is None and error.buffers == ()
    assert "no program of that size was found" in str(error)
    assert 'budget="min"' in str(error)
    assert "Largest buffers" not in str(error)


def test_lists_ten_buffers_and_sums_up_the_rest() -> None:
    error = BudgetError(100, 200, [(f"op{i}", i * 1024, "") for i in range(1, 14)])
    lines = str(error).splitlines()
    assert [line.split()[-1] for line in lines[2:12]] == [
        f"op{i}" for i in range(13, 3, -1)
    ]
    assert lines[12].split(maxsplit=2) == ["6.0", "KiB", "in 3 smaller ones"]
    assert len(error.buffers) == 13


def test_survives_pickling() -> None:
    error = BudgetError(4 * MIB, 9 * MIB, BUFFERS, ["Raise `time_limit`."])
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert (copy.budget, copy.floor, copy.buffers, copy.advice) == (
        error.budget,
        error.floor,
        error.buffers,
        error.advice,
    )


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
