"""What is tightened: one schedule by eye, then random ones."""

import pytest
from segment_plans_test import layers
from validate_test import random_problem

from coop_jax._planning.planned import Effort, Planned
from coop_jax._planning.planner import program_order
from coop_jax._planning.refine import LocalSearch
from coop_jax._planning.retention import Retention
from coop_jax._planning.validate import validate


class Packs(LocalSearch):
    """Packs without loss only where op `needed` runs more than once."""

    needed = 0

    def _size(self) -> int:
        return self.state.peak() + (100 if len(self.state.runs[self.needed]) < 2 else 0)


@pytest.mark.parametrize("needed", [0, 2, 4])
def test_all_is_taken_back_but_what_it_packs_with(needed: int) -> None:
    problem = layers(4)
    # Each layer's hidden value, 4 seconds, is computed again in front of its reader.
    start = [[k] for k in range(len(problem.ops))]
    for op, reader in ((0, 12), (2, 11), (4, 10)):
        start[op].append(reader)
    search = Packs(Retention(problem), 42, Effort())
    search.needed = needed
    given = search.at(tuple(map(tuple, start)))
    assert given.fits and given.cost == problem.cost(problem.program_order) + 12
    found = search.tightened(given)
    assert found.fits and found.cost == given.cost - 8
    assert [len(runs) for runs in found.positions].count(2) == 1
    assert len(found.positions[needed]) == 2


def packed_plans(count: int) -> list[tuple[LocalSearch, Planned]]:
    found = []
    for seed in range(count):
        problem = random_problem(seed, 60)
        state = Retention(problem)
        search = LocalSearch(state, int(0.6 * state.peak()), Effort(), is_packed=True)
        reached = search.reach(program_order(problem))
        if reached.fits:
            found.append((search, reached))
    return found


def test_it_fits_and_costs_no_more_and_often_less() -> None:
    plans, less = packed_plans(40), 0
    for search, given in plans:
        found = search.tightened(given)
        validate(search.problem, found.schedule)
        assert found.fits and found.cost <= given.cost * (1 + 1e-9)
        assert found == search.at(found.positions)
        less += found.cost < 0.999 * given.cost
    assert less > len(plans) // 8


def test_it_packs_only_as_often_as_moves_are_left() -> None:
    packs = 0

    class Counts(Packs):
        def _size(self) -> int:
            nonlocal packs
            packs += 1
            return super()._size()

    problem = layers(4)
    start = [[k] for k in range(len(problem.ops))]
    for op, reader in ((0, 12), (2, 11), (4, 10)):
        start[op].append(reader)
    search = Counts(Retention(problem), 42, Effort())
    search.needed = 0
    given = search.at(tuple(map(tuple, start)))
    for moves, most in ((0, 0), (1, 1), (2, 2)):
        packs, search.moves_left = 0, moves
        search.tightened(given)
        assert packs == most


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
