"""Closes the loop: plan, emit, compile, read XLA's bytes, correct, until it fits.

    profile    compile the step as written; done if it fits and no plan does less
    fit        aim the planner at the budget less what XLA was seen to add
               compile; over the budget: aim lower, well under it: higher
    stages     packed badly, on a GPU: the same plan, in its own order inside of parts
    floor      no plan fits: the smallest pool the planner can reach, compiled; on a GPU
               without a watershed
    near       asked for the smallest: least bytes times cost within 5 % of that, of
               several plans
    bisect     between the floor and the nearest miss; aim anew if nothing missed
    others     the floor is over the budget, but not by the model: a few other plans

With `inplace="auto"` a budget that is missed, and the floor, are planned for the step
with in-place calls, if those can be compiled. The smallest is planned with calls and
without; the smaller by the model is compiled, the other if a budget is else refused.

Everything compiled for a step is remembered (`Workbench.candidates`), so that a second
budget starts from what the first one taught, and a cheaper program that fits is never
passed over.
"""

import dataclasses
import functools
from collections.abc import Sequence

from .._errors import BudgetError
from .._planning.planner import Effort, Planned, Positions
from .._program.profile import without_watershed
from .._program.shards import communicates
from .advice import advise
from .aiming import Aim, least_margin
from .bench import Bench
from .candidate import Candidate, Sought, nearest
from .describe import held_at_peak
from .progress import stage

_MOST_TRIES = 4
_MOST_MISSES = 3
_MOST_BISECTIONS = 2
_MOST_COMPILES = 6  # for a budget, unless it would be refused
_WORTH_LOOSENING = 0.0007  # share of the room to gain, times what the plan costs more
_FIRST_MARGIN = 1.02
_FLOOR_SLACKS = (1.05, 1.1)
_NEAR_FLOOR = 1.05
_MOST_NEARBY = 3
_NEAR_TRIES = ((1.0, 0.985), (1.0,))  # shares of the aim: a plan for each
_NEAR_OPS = 4500  # in all plans of a try: for long programs there is one
_NEAR_ENOUGH = 0.01  # of the room: with so much more, plans are the same
_TOO_DEAR = 1.02  # times what would do: more than refining takes off a quick plan
_SHARES_OF_REST = (1.0, 0.8, 0.6, 0.4, 0.2)
_MOST_OTHERS = 3
_WORTH_PLANNING = 0.999
_WRONG = 1.5  # times the bytes there are
_PACKED_BADLY = 0.03  # of the room, beyond what was predicted


class Workbench(Bench):
    """Looks for the programs that are asked for."""

    _sought_last: list[Sought] | None = None
    _unrelaxed: Planned | None = None
    _nearby: tuple[Positions, ...] = ()

    def fit(self, budget: int, effort: Effort) -> Candidate:
        """The cheapest program found that measures at most `budget` bytes.

        Raises:
          BudgetError: nothing that small was reached.
        """
        if self.unplanned.total <= budget:
            return self._where_it_fits(effort)
        room, known = budget - self.unplanned.fixed, len(self.candidates)
        self._sought = self._sought_first
        if room > 0:
            self._approach(room, effort)
            if not self._fitting(budget) and self._has_choice and self._plan_calls():
                self._approach(room, effort)
            if not self._fitting(budget):
                self._come_from_below(room, effort, known)
            if not self._fitting(budget):
                self._seek_other_floor(room, effort)
            if not self._fitting(budget):
                self._try_others(room, effort)
        fitting = self._fitting(budget)
        if not fitting:
            raise self.infeasible(budget, effort)
        return min(fitting, key=lambda c: (c.cost, c.memory.total))

    def floor(self, effort: Effort) -> Candidate:
        """The program with the fewest bytes that was reached."""
        self._seek_smallest(effort)
        self._relax(effort)
        return min((self.baseline, *self.candidates), key=lambda c: c.memory.total)

    def near_floor(self, effort: Effort) -> Candidate:
        """The least bytes times cost within 5 % of the fewest bytes."""
        floor = self.floor(effort)
        if floor is self.baseline:
            return floor
        budget = int(floor.memory.total * _NEAR_FLOOR)
        room = budget - self.unplanned.fixed
        aim = room - self._expected_surplus(room)
        # Plans for a little more were made when the floor was sought.
        is_more = room > _FLOOR_SLACKS[0] * floor.memory.temp
        worth = floor.bytes_times_cost / budget
        for shares in _NEAR_TRIES if is_more else ():
            if self._least_known_cost(aim, but=floor) > _TOO_DEAR * worth:
                break
            planned = self._cheapest_near(aim, shares, effort)
            if planned is None or planned.cost * budget > floor.bytes_times_cost:
                # XLA may add less than to the smallest, or take off as much.
                most = max(room, floor.predicted)
                if most - aim <= _NEAR_ENOUGH * room:
                    break
                aim = most
                continue
            found = self._compile(planned)
            if (over := found.memory.temp - room) <= 0:
                break
            aim = min(aim, found.predicted) - over - least_margin(room)
        return min(self._fitting(budget), key=lambda c: c.bytes_times_cost)

    def _cheapest_near(
        self, aim: int, shares: Sequence[float], effort: Effort
    ) -> Planned | None:
        """Of new plans for shares of `aim` bytes, the least bytes times cost.

        So far down fewer bytes may cost less as well, by where arrays find room.
        """
        shares = shares[: max(1, _NEAR_OPS // max(1, len(self.problem.ops)))]
        known = nearest(self.candidates, self.profile, aim)
        starts = [*self._nearby[:_MOST_NEARBY], *known]
        plans = [self._plan(int(share * aim), effort, starts) for share in shares]
        compiled = {c.positions for c in self.candidates}
        new = [p for p in plans if p and p.positions not in compiled]
        beside = self.unplanned.fixed + self.profile.standing
        return min(new, key=lambda p: (beside + p.size) * p.cost, default=None)

    def _least_known_cost(self, aim: int, but: Candidate) -> float:
        """Of the other plans compiled for at least as many bytes; 0 without any."""
        mine = (c for c in self.candidates if c.profile is self.profile)
        costs = (c.cost for c in mine if c.predicted >= aim and c is not but)
        return min(costs, default=0.0)

    def _seek_smallest(self, effort: Effort) -> None:
        """Plans for the smallest pool and compiles that, once."""
        if self._sought_last is not None:
            self._sought = self._sought_last
            return
        if self._has_choice:
            self._plan_calls()
        if self.problem.has_watershed:
            # Many places are as full, so what is not across it lies as chance has it.
            self._sought = [Sought(without_watershed(s.profile)) for s in self._sought]
        self._sought_last = self._sought
        # With in-place calls and without: either may reach further down.
        for sought in self._sought:
            stage("looking for the smallest plan")
            of = sought.profile.problem, effort, sought.ways_down
            found = self._timed(functools.partial(self.planner.smallest, *of))
            sought.least_pool, sought.smallest = found.size, found
        self._sought.sort(key=lambda sought: -sought.least_temp)
        self._compile_smallest()

    def _compile_smallest(self) -> None:
        least, self._sought[-1].smallest = self._sought[-1].smallest, None
        assert least is not None
        self._compile(least)
        self._unrelaxed, self._nearby = least, least.nearby

    def _relax(self, effort: Effort) -> None:
        """Compiles plans for a little more than the smallest: XLA may use less."""
        least, self._unrelaxed = self._unrelaxed, None
        if least is None:
            return
        found, known = self._compile(least), [least.positions]
        # Under such pressure the model's order of near ties is not XLA's.
        quick = dataclasses.replace(effort, rounds=0, moves=effort.moves // 4)
        for slack in _FLOOR_SLACKS:
            room = int(least.size * slack) + self.profile.standing
            efforts = (quick, effort) if found.is_far_off else (quick,)
            tries = (
                self._plan(room, each, [*known, *least.nearby]) for each in efforts
            )
            relaxed = next((p for p in tries if p and p.positions not in known), None)
            if relaxed is not None:
                known.append(relaxed.positions)
                found = self._compile(relaxed)
            if not found.is_far_off:
                break

    def _seek_other_floor(self, room: int, effort: Effort) -> None:
        """Compiles the larger of two smallest plans too, if it may fit."""
        other = self._sought[0]
        if len(self._sought) > 1 and other.smallest and other.least_temp <= room:
            self._sought.append(self._sought.pop(0))
            self._compile_smallest()
            self._relax(effort)

    def try_once(self, budget: int, effort: Effort) -> Candidate | None:
        """One planned program aimed at `budget` bytes, or None if no plan gets there.

        Unlike `fit` it neither corrects the aim nor goes down to the floor.
        """
        room = budget - self.unplanned.fixed
        return self._try(room - self._expected_surplus(room), room, effort)

    # The loop

    def _come_from_below(self, room: int, effort: Effort, known: int) -> None:
        """Starts from the smallest; the first `known` plans are of other budgets."""
        self._seek_smallest(effort)
        if all(c.memory.temp > room for c in self.candidates):
            self._relax(effort)
        if is_all_within := all(c.memory.temp <= room for c in self.candidates):
            self._approach(room, effort)
        # Beside the step as written and, after probes, what is handed out.
        most = _MOST_COMPILES - 1 - self.step.has_probes
        left = most - (len(self.candidates) - known)
        least = 0 if is_all_within else 1
        self._bisect(room, effort, min(max(left, least), _MOST_BISECTIONS))

    def _approach(self, room: int, effort: Effort) -> None:
        """Tries plans until one uses at most `room` bytes of temporaries.

        One that is packed badly is compiled in stages too, once; if that takes fewer
        bytes, so are those after it.
        """
        aim = Aim(room, self._expected_surplus(room))
        in_stages, has_other_order = False, not self.problem.has_durations
        for _ in range(_MOST_TRIES):
            # What was packed badly leads to more of the kind.
            starts = [] if aim.is_stray else None
            planned = self._plan(aim.bytes, effort, starts)
            if planned is None:
                return
            candidate = self._measured(planned, aim.bytes, room, in_stages)
            if has_other_order and _is_packed_badly(candidate, room):
                has_other_order = False
                again = self._measured(planned, aim.bytes, room, in_stages=True)
                in_stages = again.memory.temp < candidate.memory.temp
                candidate = again if in_stages else candidate
            over = candidate.memory.temp - room
            written = self.baseline.cost
            hope = (candidate.cost - written) * aim.rise(-over)
            if over > 0:
                aim.miss(over, aim.bytes - candidate.predicted)
                if aim.misses == _MOST_MISSES:
                    return
            elif hope > _WORTH_LOOSENING * written * room:
                aim.leave(-over)
            else:
                return

    def _where_it_fits(self, effort: Effort) -> Candidate:
        """The step as written, or a plan for which XLA counts fewer operations.

        XLA computes again in each reader what it fuses there, less so behind barriers.
        """
        written, most = self.baseline, self.unplanned
        planned = self._plan(most.temp, effort) if written.operations else None
        if planned is None or planned.cost > written.cost / _WORTH_PLANNING:
            return written
        found = self._compile(planned)
        is_less = found.operations < _WORTH_PLANNING * written.operations
        return found if is_less and found.memory.total <= most.total else written

    def _bisect(self, room: int, effort: Effort, tries: int) -> None:
        """Looks between the cheapest program that fits and the nearest that does not.

        Without this a near miss would cost as much as the floor.
        """
        for _ in range(tries):
            fitting = [c for c in self.candidates if c.memory.temp <= room]
            missing = [c for c in self.candidates if c.memory.temp > room]
            if not fitting or not missing:
                return
            below = min(fitting, key=lambda c: c.cost).predicted
            above = min(c.predicted for c in missing)
            if below >= above or self._try((below + above) // 2, room, effort) is None:
                return

    def _try_others(self, room: int, effort: Effort) -> None:
        """Tries plans that fit by the model and come from none that is known.

        Plans of as many bytes lose more or less in XLA's packing by chance.
        """
        least, known = self._sought[-1].least_temp, len(self.candidates)
        for share in _SHARES_OF_REST if least <= room else ():
            found = self._try(least + int(share * (room - least)), room, effort, [])
            is_enough = len(self.candidates) - known == _MOST_OTHERS
            if is_enough or (found and found.memory.temp <= room):
                return

    def _try(
        self,
        aim: int,
        room: int,
        effort: Effort,
        starts: list[Positions] | None = None,
    ) -> Candidate | None:
        """Plans for `aim` bytes of temporaries and compiles."""
        planned = self._plan(aim, effort, starts)
        return self._measured(planned, aim, room) if planned else None

    def _measured(
        self, planned: Planned, aim: int, room: int, in_stages: bool = False
    ) -> Candidate:
        """Compiles what was planned for `aim` bytes of temporaries, to take `room`."""
        candidate = self._compile(planned, in_stages)
        bytes_of = (room, aim, candidate.predicted, candidate.memory.temp)
        stage(
            "room for %s bytes of temporaries: aimed at %s, predicted %s, XLA used %s",
            *(f"{n:,}" for n in bytes_of),
        )
        return candidate

    def _expected_surplus(self, room: int) -> int:
        """What XLA adds to the model's bytes, by the nearest program compiled.

        Less than nothing where it makes up for what is out of reach by the model alone.
        """
        if not self.candidates:
            return int(room * (1 - 1 / _FIRST_MARGIN))
        nearest = min(self.candidates, key=lambda c: abs(c.memory.temp - room))
        all_fit = all(c.memory.temp <= room for c in self.candidates)
        is_beyond = room - least_margin(room) < self._sought[-1].least_temp
        least = nearest.surplus if all_fit and is_beyond else 0
        return max(least, nearest.surplus) + least_margin(room)

    def infeasible(
        self, budget: int, effort: Effort, looked_inside: bool = False
    ) -> BudgetError:
        """The error for a budget below everything reached.

        Of a step whose loops were planned inside if `looked_inside`.
        """
        floor = self.floor(effort)
        held = held_at_peak(floor.profile.problem, floor.schedule)
        fixed, communicating = self.unplanned.fixed, communicates(self.buffers)
        about = fixed, budget, held, communicating, looked_inside
        advice = advise(self.step, *about)
        if sum(size for _, size, _ in held) > _WRONG * floor.memory.temp:
            held = []  # XLA computes some of it inside of what reads it
        plan = self.describe(floor, budget)
        return BudgetError(budget, floor.memory.total, held, list(advice), plan)


def _is_packed_badly(candidate: Candidate, room: int) -> bool:
    """Whether it takes more than `room`, and much more than predicted."""
    is_over = candidate.predicted <= room < candidate.memory.temp
    return is_over and candidate.surplus > _PACKED_BADLY * room
