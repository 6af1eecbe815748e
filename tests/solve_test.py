"""The loop around a planner: what is asked for where a first way leads nowhere."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import pytest
from small_step import SHAPES, train_step

from coop_jax import BudgetError
from coop_jax._fitting import solve
from coop_jax._fitting.compile import FlatStep, flat_step
from coop_jax._fitting.solve import Workbench
from coop_jax._planning import planner
from coop_jax._planning.planner import Effort
from coop_jax._planning.policies import PLANNERS, Planner

QUICK = Effort(rounds=5)


def small_flat_step():
    traced = jax.jit(train_step, donate_argnums=0).trace(*SHAPES)
    return flat_step(traced, jax.tree.leaves(SHAPES))


def workbench():
    return Workbench(small_flat_step())


def plan_from_known(problem, pool, effort, starts, ways_down):
    """Gets to a pool only from plans that are known."""
    found = planner.plan(problem, pool, effort, starts, is_packed=True)
    return found if starts else replace(found, fits=False)


def test_where_only_the_smallest_fits_plans_start_from_it():
    smallest = workbench()
    floor = smallest.floor(QUICK)
    budget = (floor.memory.total + smallest.unplanned.total) // 2
    bench = workbench()
    bench.planner = Planner(plan_from_known, PLANNERS["coop"].smallest)
    found = bench.fit(budget, QUICK)
    assert found.memory.total <= budget
    assert found.cost < 0.9 * floor.cost


class Pretended(Workbench):
    """As if XLA took `factor` times what is planned."""

    factor = 1.0

    def _compile(self, planned, in_stages=False):
        known = len(self.candidates)
        found = super()._compile(planned, in_stages)
        if len(self.candidates) > known:
            temp = int(self.factor * found.predicted)
            found = replace(found, memory=replace(found.memory, temp=temp))
            self.candidates[-1] = found
        return found


@pytest.mark.parametrize(("factor", "rounds"), [(1.0, {0}), (1.25, {0, 5})])
def test_only_where_xla_adds_much_the_floor_is_sought_twice(
    factor: float, rounds: set[int]
):
    asked = set()

    def plan(problem, pool, effort, starts, ways_down):
        asked.add(effort.rounds)
        found = planner.plan(problem, pool, effort, starts, is_packed=True)
        return replace(found, positions=starts[0])

    bench = Pretended(small_flat_step())
    bench.factor = factor
    bench.planner = Planner(plan, PLANNERS["coop"].smallest)
    bench.floor(QUICK)
    assert asked == rounds


def test_plans_for_a_little_more_than_the_smallest_start_from_cheaper_ones_nearby():
    bench, asked = workbench(), []
    nearby = planner.program_order(bench.problem)

    def smallest(problem, effort, ways_down):
        found = PLANNERS["coop"].smallest(problem, effort, ways_down)
        return replace(found, nearby=(nearby,))

    def plan(problem, pool, effort, starts, ways_down):
        asked.append(starts)
        return planner.plan(problem, pool, effort, starts, is_packed=True)

    bench.planner = Planner(plan, smallest)
    bench.floor(QUICK)
    assert asked
    assert all(nearby in starts[1:] for starts in asked)


def planning_nothing(asked: list[int]) -> Planner:
    """One by which nothing fits; puts down the pools that it is asked for."""

    def plan(problem, pool, effort, starts, ways_down):
        asked.append(pool)
        found = planner.plan(problem, pool, effort, starts, is_packed=True)
        return replace(found, fits=False)

    return Planner(plan, PLANNERS["coop"].smallest)


@pytest.mark.parametrize(
    ("larger", "cheaper", "is_taken"),
    [(1.04, 0.9, True), (1.04, 0.98, False), (1.06, 0.1, False)],
)
def test_asked_for_the_smallest_up_to_five_percent_must_save_as_much(
    larger: float, cheaper: float, is_taken: bool
):
    bench = workbench()
    floor = bench.floor(QUICK)
    bench.candidates = [floor]
    more = int((larger - 1) * floor.memory.total)
    memory = replace(floor.memory, temp=floor.memory.temp + more)
    other = replace(floor, memory=memory, cost=cheaper * floor.cost)
    bench.candidates.append(other)

    bench.planner = planning_nothing([])
    assert bench.near_floor(QUICK) is (other if is_taken else floor)


@pytest.mark.parametrize(("share", "tries"), [(0.02, 2), (0.009, 1)])
def test_near_the_smallest_all_the_room_is_aimed_at_where_much_less_leads_nowhere(
    share: float, tries: int, monkeypatch: pytest.MonkeyPatch
):
    bench, asked = workbench(), []
    floor = bench.floor(QUICK)

    bench.planner = planning_nothing(asked)
    room = int(1.05 * floor.memory.total) - bench.unplanned.fixed
    surplus = int(share * room)
    monkeypatch.setattr(bench, "_expected_surplus", lambda room: surplus)
    assert bench.near_floor(QUICK) in bench.candidates
    aims = [(room - surplus, (1.0, 0.985)), (room, (1.0,))][:tries]
    rooms = [int(share * aim) for aim, shares in aims for share in shares]
    assert asked == [room - bench.profile.standing for room in rooms]


def test_near_the_smallest_as_much_is_aimed_at_as_that_was_predicted_to_take():
    bench, asked = workbench(), []
    floor = bench.floor(QUICK)
    room = int(1.05 * floor.memory.total) - bench.unplanned.fixed
    bench.candidates = [replace(floor, predicted=int(1.02 * room))]

    bench.planner = planning_nothing(asked)
    assert bench.near_floor(QUICK) in bench.candidates
    assert max(asked) == asked[-1] == int(1.02 * room) - bench.profile.standing


@pytest.mark.parametrize(("dearer", "is_planned"), [(1.03, False), (1.01, True)])
def test_near_the_smallest_nothing_is_planned_if_even_more_bytes_cost_too_much(
    dearer: float, is_planned: bool
):
    bench, asked = workbench(), []
    floor = bench.floor(QUICK)
    worth = floor.bytes_times_cost / int(1.05 * floor.memory.total)
    more = replace(floor, cost=dearer * worth, predicted=2 * floor.predicted)
    bench.candidates = [floor, more]

    bench.planner = planning_nothing(asked)
    assert bench.near_floor(QUICK) in bench.candidates
    assert bool(asked) == is_planned


def test_near_the_smallest_plans_start_from_what_was_met_on_the_way_down():
    bench, asked = workbench(), []
    bench.floor(QUICK)
    met = planner.program_order(bench.problem)
    bench._nearby = (met,)

    def plan(problem, pool, effort, starts, ways_down):
        asked.append(starts)
        found = planner.plan(problem, pool, effort, [], ways_down, is_packed=True)
        return replace(found, cost=0.1 * found.cost)

    bench.planner = Planner(plan, PLANNERS["coop"].smallest)
    known = len(bench.candidates)
    bench.near_floor(QUICK)
    assert asked
    assert all(starts[0] == met for starts in asked)
    assert len(bench.candidates) == known + 1


def test_near_the_smallest_of_several_plans_the_least_bytes_times_cost_is_compiled():
    bench, found, costs = workbench(), [], [0.9, 0.2]
    bench.floor(QUICK)

    def plan(problem, pool, effort, starts, ways_down):
        planned = planner.plan(problem, pool, effort, [], ways_down, is_packed=True)
        found.append(replace(planned, cost=costs[len(found)] * planned.cost))
        return found[-1]

    bench.planner = Planner(plan, PLANNERS["coop"].smallest)
    known = len(bench.candidates)
    bench.near_floor(QUICK)
    assert len(found) == len(costs)
    assert [c.positions for c in bench.candidates[known:]] == [found[1].positions]


def test_near_the_smallest_after_a_miss_as_much_less_than_that_plan_is_aimed_at(
    monkeypatch: pytest.MonkeyPatch,
):
    """A plan may leave some of what was aimed at, and XLA adds to what it takes."""
    bench, aims, unused = workbench(), [], 1000
    floor = bench.floor(QUICK)
    room = int(1.05 * floor.memory.total) - bench.unplanned.fixed
    over = room // 50

    def cheapest(aim, shares, effort):
        aims.append(aim)
        return SimpleNamespace(size=aim - unused, cost=0.1 * floor.cost)

    def compiled(planned):
        memory = replace(floor.memory, temp=room + over)
        return replace(floor, memory=memory, predicted=planned.size)

    monkeypatch.setattr(bench, "_cheapest_near", cheapest)
    monkeypatch.setattr(bench, "_compile", compiled)
    bench.near_floor(QUICK)
    first, second = aims
    assert second == first - unused - over - room // 200


def test_where_there_can_be_a_watershed_the_smallest_plans_have_none():
    bench = workbench()
    problem = replace(bench.problem, has_watershed=True, has_durations=False)
    bench._sought[-1].profile = replace(bench.profile, problem=problem)
    floor = bench.floor(QUICK)
    assert floor is not bench.baseline
    assert not floor.profile.problem.has_watershed
    assert not bench.describe(floor, None).problem.has_watershed
    budget = (floor.memory.total + bench.unplanned.total) // 2
    assert bench.fit(budget, QUICK).profile.problem.has_watershed
    assert bench.floor(QUICK) is floor


def test_what_was_the_smallest_is_not_refused_as_a_budget():
    least = workbench().floor(QUICK).memory.total
    assert workbench().fit(least, QUICK).memory.total <= least


@pytest.mark.parametrize(
    ("dearer", "left", "tries"),
    [
        (1.1, [0.02], 2),  # a tenth more time, 2 % of the room left: 0.7 of that pays
        (1.1, [0.009], 1),
        (1.02, [0.02], 1),
        (1.1, [0.02, -0.01, 0.012], 3),  # halfway to what missed would gain too little
        (1.1, [-0.01, 0.004], 2),
        (1.1, [-0.01] * 9, 3),  # the smallest is tried instead
    ],
)
def test_what_is_left_is_aimed_at_where_that_pays(
    dearer: float, left: list[float], tries: int, monkeypatch: pytest.MonkeyPatch
):
    bench, room, aims = workbench(), 1_000_000, []

    def measured(planned, aim, room, in_stages):
        share = left[len(aims)] if len(aims) < len(left) else 0.0
        aims.append(aim)
        memory = replace(bench.unplanned, temp=int((1 - share) * room))
        cost = dearer * bench.baseline.cost
        return replace(bench.baseline, memory=memory, cost=cost, predicted=aim)

    monkeypatch.setattr(bench, "_plan", lambda *of: of)
    monkeypatch.setattr(bench, "_measured", measured)
    bench._approach(room, QUICK)
    assert len(aims) == tries


def test_after_a_plan_that_was_packed_badly_comes_one_that_owes_nothing_to_it(
    monkeypatch: pytest.MonkeyPatch,
):
    bench, room, tried = workbench(), 1_000_000, []

    def measured(planned, aim, room, in_stages):
        temp = int((1.1, 1.02, 1.0)[len(tried)] * room)
        tried.append((aim, planned[-1]))
        memory = replace(bench.unplanned, temp=temp)
        return replace(bench.baseline, memory=memory, predicted=aim)

    monkeypatch.setattr(bench, "_plan", lambda *of: of)
    monkeypatch.setattr(bench, "_measured", measured)
    bench._approach(room, QUICK)
    (first, *_), (second, afresh), (third, known) = tried
    assert second == first - 5_000
    assert third == second - 20_000 - 5_000
    assert (afresh, known) == ([], None)


@pytest.mark.parametrize(
    ("taken", "staged"),
    [
        ([1.05, 1.0], [0, 1]),
        ([1.05, 1.04, 1.0], [0, 1, 1]),  # a little better: so are the next
        ([1.05, 1.06, 1.04, 1.0], [0, 1, 0, 0]),  # no better: not again
        ([1.01, 1.0], [0, 0]),  # as predicted, but for a hundredth
    ],
)
def test_what_is_packed_badly_is_compiled_in_stages_once(
    taken: list[float], staged: list[bool], monkeypatch: pytest.MonkeyPatch
):
    bench, room, tried = workbench(), 1_000_000, []
    problem = replace(bench.problem, has_durations=False)
    bench._sought[-1].profile = replace(bench.profile, problem=problem)

    def measured(planned, aim, room, in_stages=False):
        memory = replace(bench.unplanned, temp=int(taken[len(tried)] * room))
        tried.append(in_stages)
        return replace(bench.baseline, memory=memory, predicted=aim)

    monkeypatch.setattr(bench, "_plan", lambda *of: of)
    monkeypatch.setattr(bench, "_measured", measured)
    bench._approach(room, QUICK)
    assert tried == staged


def test_plans_for_more_than_the_smallest_are_left_until_it_is_too_large(
    monkeypatch: pytest.MonkeyPatch,
):
    least = workbench().floor(QUICK).memory.total
    bench, relaxed = workbench(), []
    monkeypatch.setattr(bench, "_approach", lambda room, effort: None)
    monkeypatch.setattr(bench, "_relax", relaxed.append)
    bench.fit(least, QUICK)
    assert not relaxed
    with pytest.raises(BudgetError):
        bench.fit(bench.unplanned.fixed + 1, QUICK)
    assert relaxed


# With the step as written and what is handed out, which after probes is one more.
@pytest.mark.parametrize("has_probes", [True, False])
@pytest.mark.parametrize(("missed", "bisections"), [(1, 2), (2, 1), (3, 1), (6, 1)])
def test_six_programs_are_compiled_for_a_budget_at_most_but_one_is_bisected(
    missed: int, bisections: int, has_probes: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(FlatStep, "has_probes", has_probes)
    missed += not has_probes
    bench, found = workbench(), []
    floor = bench.floor(QUICK)
    room = floor.memory.temp
    memory = replace(floor.memory, temp=2 * room)
    bench.candidates = [replace(floor, memory=memory) for _ in range(missed)]
    monkeypatch.setattr(
        bench, "_seek_smallest", lambda effort: bench.candidates.append(floor)
    )
    monkeypatch.setattr(bench, "_bisect", lambda room, effort, n: found.append(n))
    bench._come_from_below(room, QUICK, 0)
    assert found == [bisections]


class Unlucky(Pretended):
    """XLA takes twice what is planned, but for the last plans that are tried."""

    factor = 2.0

    def _try_others(self, room, effort):
        self.factor = 1.0
        self.candidates.clear()
        super()._try_others(room, effort)


def test_where_xla_adds_to_the_smallest_others_are_tried_before_it_is_refused(
    monkeypatch: pytest.MonkeyPatch,
):
    bench = Unlucky(small_flat_step())
    least = PLANNERS["coop"].smallest(bench.problem, QUICK, {})
    budget = bench.unplanned.fixed + bench.profile.standing + int(1.3 * least.size)
    found = bench.fit(budget, QUICK)
    assert found.memory.total <= budget
    assert found is bench.candidates[-1]
    monkeypatch.setattr(solve, "_SHARES_OF_REST", ())
    with pytest.raises(BudgetError):
        Unlucky(small_flat_step()).fit(budget, QUICK)


def test_where_xla_takes_less_than_the_model_more_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the model the room is out of reach; half of what it predicts is not."""
    monkeypatch.setattr(Pretended, "factor", 0.5)
    bench = Pretended(small_flat_step())
    floor = bench.floor(QUICK)
    budget = bench.unplanned.fixed + int(0.9 * floor.predicted)
    found = bench.fit(budget, QUICK)
    assert found.memory.total <= budget
    assert found.predicted > 1.2 * floor.predicted
    assert found.cost < floor.cost


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
