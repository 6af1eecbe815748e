"""Minimum cuts against all cuts of small graphs."""

import itertools
import math
import random

import numpy as np
import pytest

from coop_jax._planning.min_cut import FlowNetwork


def cut_size(edges, side, sink):
    assert sink not in side
    return sum(c for a, b, c in edges if a in side and b not in side)


def network(nodes, edges):
    built = FlowNetwork(nodes)
    for a, b, c in edges:
        built.add(a, b, c)
    return built


def test_cuts_the_thinner_of_two_edges():
    edges = [(0, 2, 3), (2, 1, 2)]
    assert network(3, edges).source_side(0, 1) == {0, 2}


def test_endless_edges_are_never_cut():
    built = FlowNetwork(4)
    built.add(0, 2, None)
    built.add(2, 3, None)
    built.add(3, 1, 7)
    built.add(2, 1, 1)
    assert built.source_side(0, 1) == {0, 2, 3}


@pytest.mark.parametrize("seed", range(40))
def test_is_the_smallest_of_all_cuts(seed):
    rng = random.Random(seed)
    nodes = rng.randint(3, 8)
    pairs = [(a, b) for a in range(nodes) for b in range(nodes) if a != b]
    edges = [(a, b, rng.randint(0, 9)) for a, b in pairs if rng.random() < 0.5]
    found = network(nodes, edges).source_side(0, 1)
    inner = range(2, nodes)
    sides = [
        {0, *chosen}
        for count in range(nodes - 1)
        for chosen in itertools.combinations(inner, count)
    ]
    assert cut_size(edges, found, 1) == min(cut_size(edges, s, 1) for s in sides)
    assert found == network(nodes, edges).source_side_in_python(0, 1)


@pytest.mark.parametrize("seed", range(10))
def test_large_cuts_are_the_same_in_python(seed):
    rng = random.Random(seed)
    edges = [
        *((0, node, rng.getrandbits(75)) for node in range(2, 12)),
        *((node, 1, rng.getrandbits(75)) for node in range(70, 80)),
        *(
            (*rng.sample(range(2, 80), 2), rng.choice((None, rng.getrandbits(75))))
            for _ in range(300)
        ),
    ]
    found = network(80, edges).source_side(0, 1)
    assert 0 in found and 1 not in found
    assert found == network(80, edges).source_side_in_python(0, 1)


@pytest.mark.parametrize("seed", range(10))
def test_a_changed_network_is_as_one_built_so(seed):
    rng = random.Random(seed)
    pairs = [tuple(rng.sample(range(30), 2)) for _ in range(120)]

    def capacities():
        # Whole numbers that a float holds, some of more than 64 bits.
        return [rng.getrandbits(50) << rng.choice((0, 25)) for _ in pairs]

    def with_ends(values):
        edges = [(*pair, c) for pair, c in zip(pairs, values, strict=True)]
        return [*edges, *((0, n, 7) for n in range(2, 9)), (9, 1, None)]

    before, after = capacities(), capacities()
    changed = network(30, with_ends(before))
    assert changed.source_side(0, 1)
    endless = set(rng.sample(range(len(pairs)), 5))
    given = [math.inf if k in endless else c + 0.25 for k, c in enumerate(after)]
    changed.change(np.arange(len(pairs)), np.array(given))
    after = [None if k in endless else c for k, c in enumerate(after)]
    expected = network(30, with_ends(after)).source_side(0, 1)
    assert changed.source_side(0, 1) == expected
    assert changed.source_side_in_python(0, 1) == expected


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
