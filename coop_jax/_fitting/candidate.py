"""Programs for a step, compiled and measured, and how far smaller ones were sought."""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from .._measure import MemoryUse
from .._planning.planner import Planned, Positions, WaysDown
from .._planning.types import Schedule
from .._program.cost import TRANSCENDENTAL, program_flops
from .._program.profile import Profile
from .._program.trace import Program

_FAR_OFF = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A compiled program and what it measured.

    Attributes:
      compiled: the program to run; None if it was compiled for its bytes alone.
      predicted: bytes of the temporary block by the assignment model.
      cost: seconds by the cost model.
      profile: what was planned: the step with in-place calls or without.
      operations: XLA's own count and that of in-place calls, which it leaves out; 0
        where it does not tell programs apart.
      in_stages: whether its parts are cut into stages.
    """

    function: Callable[..., list[Any]]
    compiled: Any
    memory: MemoryUse
    schedule: Schedule
    positions: tuple[tuple[int, ...], ...]
    predicted: int
    cost: float
    profile: Profile
    operations: float = 0.0
    in_stages: bool = False

    @property
    def surplus(self) -> int:
        """Bytes XLA used beyond the model's."""
        return self.memory.temp - self.predicted

    @property
    def is_far_off(self) -> bool:
        """Whether a plan for a little more may well measure less."""
        return self.surplus > _FAR_OFF * self.predicted

    @property
    def bytes_times_cost(self) -> float:
        """Less is better where both matter, as near the fewest bytes."""
        return self.memory.total * self.cost

    def arithmetic(self, program: Program) -> float:
        """Flops over those of `program`, the step that it was planned for."""
        units, problem = self.profile.units, self.profile.problem

        def flops(schedule: Schedule) -> float:
            ran = [(*units[op].inlined, units[op].root) for op in schedule]
            return program_flops(program, list(itertools.chain.from_iterable(ran)))

        extra = flops(self.schedule) - flops(problem.program_order)
        return 1 + extra / max(program_flops(program), 1.0)


def called_flops(profile: Profile, schedule: Schedule) -> float:
    """Flops of a program's in-place calls, by XLA's rule: exponentials are none."""
    equations = profile.program.equations
    called = [profile.units[op] for op in schedule if op in profile.calls]
    ran = (k for unit in called for k in (*unit.inlined, unit.root))
    counted = [k for k in ran if equations[k].primitive.name not in TRANSCENDENTAL]
    return program_flops(profile.program, counted)


def nearest(
    candidates: Iterable[Candidate], profile: Profile, room: int
) -> list[Positions]:
    """Plans of a profile's ops to start from: next above and below `room` bytes."""
    mine = (c for c in candidates if c.profile.units is profile.units)
    known = sorted(mine, key=lambda c: c.predicted)
    above = [c.positions for c in known if c.predicted > room]
    below = [c.positions for c in known if c.predicted <= room]
    return above[:1] + below[-1:]


@dataclass(slots=True, eq=False)
class Sought:
    """How far down plans of one profile were sought.

    Attributes:
      profile: the step with in-place calls or without.
      least_pool: smallest pool reached, if it was looked for.
      smallest: the plan for the smallest pool, until it is compiled.
      ways_down: those that the planner has gone.
    """

    profile: Profile
    least_pool: int = 1
    smallest: Planned | None = None
    ways_down: WaysDown = field(default_factory=dict)

    @property
    def least_temp(self) -> int:
        """Bytes of temporaries with that pool, by the model."""
        return self.least_pool + self.profile.standing
