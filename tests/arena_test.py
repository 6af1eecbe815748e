"""The pool: placement by eye, the window against brute force, invariants at random."""

import math
import random
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coop_jax._planning.arena import FREE, Arena, Chunk
from coop_jax._planning.window import (
    LAST_CHOICE,
    TIE,
    Window,
    WindowSearch,
    cheapest_window,
)

INF = math.inf


def used(arena: Arena) -> list[tuple[int, int]]:
    return [(chunk.offset, chunk.size) for chunk in arena if not chunk.is_free]


def filled(sizes: list[int], freed: tuple[int, ...] = (), spare: int = 0) -> Arena:
    """A pool whose chunks have these sizes; those at `freed` (indices) are free."""
    arena = Arena(sum(sizes) + spare)
    offsets = [arena.allocate(size) for size in sizes]
    for index in freed:
        offset = offsets[index]
        assert offset is not None
        arena.free(offset)
    arena.check()
    return arena


def test_expensive_values_grow_from_the_low_end_and_cheap_ones_from_the_high() -> None:
    arena = Arena(100)
    assert arena.allocate(10) == 0
    assert arena.allocate(10) == 10
    assert arena.allocate(5, low=False) == 95
    assert arena.allocate(5, low=False) == 90
    assert list(arena) == [
        Chunk(0, 10, False),
        Chunk(10, 10, False),
        Chunk(20, 70, True),
        Chunk(90, 5, False),
        Chunk(95, 5, False),
    ]
    arena.check()


def test_allocation_takes_the_smallest_sufficient_chunk() -> None:
    arena = filled([8, 1, 4, 1, 6, 1], freed=(0, 2, 4))
    assert arena.allocate(3) == 9
    assert arena.allocate(5, low=False) == 15
    assert arena.allocate(9) is None


def test_of_equal_chunks_low_takes_the_lowest_and_high_the_highest() -> None:
    sizes = [4, 1, 4, 1, 4, 1]
    assert filled(sizes, freed=(0, 2, 4)).allocate(2) == 0
    assert filled(sizes, freed=(0, 2, 4)).allocate(2, low=False) == 12


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 1, 0), (1, 0, 2)])
def test_free_neighbours_merge(order: tuple[int, ...]) -> None:
    assert list(filled([5, 6, 7], freed=order)) == [Chunk(0, 18, True)]


def test_sizes_are_rounded_up_and_the_capacity_down() -> None:
    arena = Arena(1000, alignment=64)
    assert arena.capacity == 960
    assert arena.allocate(1) == 0
    assert arena.allocate(65, low=False) == 960 - 128
    assert used(arena) == [(0, 64), (832, 128)]
    assert arena.free_bytes == 960 - 192


def test_misuse_is_refused() -> None:
    arena = filled([4], spare=4)
    for offset in (1, 4):
        with pytest.raises(ValueError, match="no used chunk"):
            arena.free(offset)
    with pytest.raises(ValueError, match="cannot allocate 0 bytes"):
        arena.allocate(0)


def test_an_empty_pool_holds_nothing() -> None:
    for capacity in (0, -5, 63):
        arena = Arena(capacity, alignment=64)
        arena.check()
        assert arena.allocate(1) is None
        assert arena.cheapest_window(1, np.zeros(0)) is None


def test_free_bytes_beside_a_chunk_count_on_both_sides() -> None:
    arena = filled([2, 3, 4, 5, 6], freed=(0, 2))
    assert arena.free_beside().tolist() == [0, 2 + 4, 0, 4, 0]


def test_owners_are_those_of_the_chunks_in_address_order() -> None:
    arena = Arena(20)
    assert arena.allocate(4, owner=7) == 0
    assert arena.allocate(4, low=False, owner=9) == 16
    assert arena.owners.tolist() == [7, FREE, 9]
    assert arena.offsets.tolist() == [0, 4, 16, 20]
    arena.hand_over(16, owner=3)
    arena.free(0)
    assert arena.owners.tolist() == [FREE, 3]
    assert arena.peak == 8
    with pytest.raises(ValueError, match="no used chunk"):
        arena.hand_over(0, owner=1)


def test_evicts_the_cheapest_contiguous_window() -> None:
    # The two cheapest chunks, 0 and 2, are not adjacent; 3 and 4 are.
    arena = filled([4, 4, 4, 4, 4])
    costs = np.array([1.0, 9.0, 1.0, 4.0, 2.0])
    assert arena.cheapest_window(8, costs) == Window(2, 4, 5.0)
    costs[2] = INF
    assert arena.cheapest_window(8, costs) == Window(3, 5, 6.0)


def test_free_chunks_in_a_window_cost_nothing() -> None:
    arena = filled([4, 4, 4, 4], freed=(1,))
    costs = np.array([1.0, 0.0, 9.0, 13.0])
    assert arena.cheapest_window(8, costs) == Window(0, 2, 1.0)


def test_a_cost_beyond_all_others_is_the_last_choice_and_no_barrier() -> None:
    costs = np.array([LAST_CHOICE, LAST_CHOICE, 1.0])
    arena = filled([4, 4, 4])
    assert arena.cheapest_window(8, costs) == Window(1, 3, LAST_CHOICE)
    assert arena.cheapest_window(12, costs) == Window(0, 3, 2 * LAST_CHOICE)


@pytest.mark.parametrize(
    ("sizes", "costs", "need", "window"),
    [
        # What the published loop misses: a window at the end of the pool ...
        ([4, 4, 8], [1, 1, 0], 8, Window(2, 3, 0.0)),
        ([4, 8, 4], [5, 9, 1], 4, Window(2, 3, 1.0)),
        # ... and one behind an infinite cost.
        ([4] * 6, [INF, 5, 1, 1, 9, 9], 8, Window(2, 4, 2.0)),
        # Ties: smaller surplus, then lower address.
        ([8, 4, 8], [1, 1, 1], 4, Window(1, 2, 1.0)),
        ([4, 4, 4], [1, 1, 1], 4, Window(0, 1, 1.0)),
        # A small cost behind a huge one is not lost in it.
        ([4] * 5, [1e300, 1e-9, 1e-9, 1e300, 1e-8], 8, Window(1, 3, 2e-9)),
        ([4] * 4, [1e308, 1e308, 1e308, 1e308], 16, Window(0, 4, INF)),
        ([4, 4], [INF, INF], 4, None),
        ([4, 4], [1, 1], 9, None),
        ([], [], 1, None),
        ([4], [0], 4, Window(0, 1, 0.0)),
    ],
)
def test_windows_by_eye(
    sizes: list[int], costs: list[float], need: int, window: Window | None
) -> None:
    assert cheapest_window(sizes, costs, need) == window


@pytest.mark.parametrize("bad", [-1.0, math.nan, -INF])
def test_costs_that_are_none_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="costs that are >= 0"):
        cheapest_window([4], [bad], 4)


def brute_force(sizes: list[int], costs: list[float], need: int) -> Window | None:
    """All windows: lowest cost, then smaller surplus, then lowest offset."""
    best: tuple[float, int, int, int] | None = None
    for start in range(len(sizes)):
        for end in range(start + 1, len(sizes) + 1):
            inside = costs[start:end]
            size = sum(sizes[start:end])
            if INF in inside or size < need:
                continue
            found = (math.fsum(inside), size, start, end)
            best = found if best is None or found < best else best
    return None if best is None else Window(best[2], best[3], best[0])


# Whole numbers, whose sums are exact, so that ties are ties.
WHOLE_COSTS = [0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 7.0, 1e6, INF]


def test_the_window_is_that_of_brute_force_in_20000_random_pools() -> None:
    rng = random.Random(0)
    for _ in range(20_000):
        count = rng.randint(0, 12)
        sizes = [rng.randint(1, 6) for _ in range(count)]
        costs = [rng.choice(WHOLE_COSTS) for _ in range(count)]
        total = sum(sizes)
        need = rng.choice([1, total, total + 1, rng.randint(1, total + 1)])
        need = max(1, need)
        expected = brute_force(sizes, costs, need)
        assert cheapest_window(sizes, costs, need) == expected, (sizes, costs, need)


def test_costs_of_all_magnitudes_do_not_drift() -> None:
    rng = random.Random(1)
    for _ in range(2_000):
        count = rng.randint(1, 40)
        sizes = [rng.randint(1, 6) for _ in range(count)]
        costs = [10.0 ** rng.uniform(-30, 30) for _ in range(count)]
        need = rng.randint(1, sum(sizes))
        expected, found = (
            brute_force(sizes, costs, need),
            cheapest_window(sizes, costs, need),
        )
        assert expected is not None and found is not None
        assert found.cost == math.fsum(costs[found.start : found.end])
        assert sum(sizes[found.start : found.end]) >= need
        assert found.cost <= expected.cost * (1 + 2 * TIE)


def test_one_search_serves_pools_of_any_size() -> None:
    # Work arrays hold what the search before left there.
    rng = random.Random(2)
    search = WindowSearch()
    for _ in range(500):
        count = rng.choice([1, 3, 70, 9, 200])
        sizes = [rng.randint(1, 6) for _ in range(count)]
        costs = [rng.choice([0.0, 1.0, 5.0, INF]) for _ in range(count)]
        offsets = np.concatenate(([0], np.cumsum(sizes)))
        need = rng.randint(1, sum(sizes) + 1)
        found = search.cheapest(offsets, np.array(costs), need)
        assert found == cheapest_window(sizes, costs, need)


def large_pool(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    sizes, costs = rng.integers(1, 100, count), rng.exponential(1.0, count)
    costs[rng.random(count) < 0.05] = 0
    costs[rng.random(count) < 0.01] = INF
    return np.concatenate(([0], np.cumsum(sizes))), costs


def test_the_search_takes_less_than_a_microsecond_per_chunk() -> None:
    count = 100_000
    offsets, costs = large_pool(count)
    search = WindowSearch()
    seconds = []
    for _ in range(10):
        start = time.perf_counter()
        assert search.cheapest(offsets, costs, 1_000) is not None
        seconds.append(time.perf_counter() - start)
    assert min(seconds) / count < 1e-6


def test_a_search_allocates_little_beside_its_two_arrays_of_positions() -> None:
    count = 100_000
    offsets, costs = large_pool(count)
    search = WindowSearch()
    search.cheapest(offsets, costs, 1_000)
    tracemalloc.start()
    search.cheapest(offsets, costs, 1_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * 9 * count


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 200),
    st.sampled_from([1, 4]),
    st.lists(st.tuples(st.integers(1, 60), st.booleans(), st.integers(0, 8))),
)
def test_the_chunks_tile_the_pool_whatever_happens(
    capacity: int, alignment: int, steps: list[tuple[int, bool, int]]
) -> None:
    arena = Arena(capacity, alignment)
    held: dict[int, int] = {}
    for size, low, pick in steps:
        largest = max((c.size for c in arena if c.is_free), default=0)
        offset = arena.allocate(size, low)
        assert (offset is None) == (arena.rounded(size) > largest)
        if offset is not None:
            held[offset] = arena.rounded(size)
        elif held and pick % 2:
            chunks = list(arena)
            costs = np.array([0.0 if c.is_free else 1.0 + c.offset for c in chunks])
            costs[[c.offset == min(held) for c in chunks]] = INF
            found = arena.cheapest_window(size, costs)
            for chunk in chunks[found.start : found.end] if found else ():
                if not chunk.is_free:
                    arena.free(chunk.offset)
                    del held[chunk.offset]
            assert found is None or arena.allocate(size, low) is not None
            if found is not None:
                held = dict(used(arena))
        elif held:
            victim = sorted(held)[pick % len(held)]
            arena.free(victim)
            del held[victim]
        arena.check()
        assert dict(used(arena)) == held
        assert len(arena) == len(list(arena))


def test_the_largest_size_is_no_special_case() -> None:
    arena = Arena(2**50)
    assert arena.allocate(2**49, low=False) == 2**49
    assert arena.allocate(2**49 + 1) is None
    assert arena.cheapest_window(2**50, np.array([0.0, LAST_CHOICE]))
    arena.check()


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
