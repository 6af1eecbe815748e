"""What XLA holds alive where a planned step is fullest, beside what the plan says.

    JAX_PLATFORMS=cpu python -m benchmarks.alive --model swin --share 0.5
    JAX_PLATFORMS=cpu python -m benchmarks.alive --model swin --backend h200 \
        --size paper --share 0.5

The step is planned for that share of its temporary bytes as written and compiled, once.
The bytes alive and packed by the plan, and by XLA, tell whether the two differ in what
is alive or only in where it lies. Then all sizes of which one of them holds more
arrays, and these, at the step of the plan whose operation XLA was at. An array that
XLA holds and the plan does not is the first thing to explain when a prediction is off.
"""

import argparse
import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from coop_jax._fitting.compile import FlatStep, flat_step
from coop_jax._fitting.emit import emit
from coop_jax._measure import memory_use
from coop_jax._planning.buffer_assignment import packed, schedule_tenancies
from coop_jax._planning.planned import Planned
from coop_jax._planning.planner import Effort
from coop_jax._planning.policies import PLANNERS
from coop_jax._planning.types import Schedule
from coop_jax._planning.validate import live_bytes
from coop_jax._program.hlo import dump_directory, dump_options, dumped
from coop_jax._program.profile import Profile, profile

from . import h200
from .heap_trace import Fullest, fullest
from .models import MODELS, build

_MB = 1e6
_NAMES = 6

type BySize = Mapping[int, Sequence[str]]
"""Names of arrays by their bytes."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Arrays of one size, of which one side holds more.

    Attributes:
      size: bytes of each.
      plan: what the plan alone holds.
      xla: what XLA alone holds.
    """

    size: int
    plan: tuple[str, ...]
    xla: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """How many more XLA holds; negative where the plan does."""
        return self.size * (len(self.xla) - len(self.plan))


def differences(plan: BySize, xla: BySize, least: int = 0) -> list[Difference]:
    """Sizes of which one side holds more by `least` bytes, what differs most first."""
    found = [
        Difference(
            size,
            _more(plan.get(size, ()), xla.get(size, ())),
            _more(xla.get(size, ()), plan.get(size, ())),
        )
        for size in plan.keys() | xla.keys()
    ]
    differing = [each for each in found if abs(each.bytes) > least]
    return sorted(differing, key=lambda each: (-abs(each.bytes), -each.size))


def _more(mine: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted((Counter(mine) - Counter(others)).elements()))


def held_by_plan(profile: Profile, schedule: Schedule, step: int) -> BySize:
    """What a plan holds at a step: operations, with where they are in the model."""
    buffers, tenancies = schedule_tenancies(profile.problem, schedule)
    found: dict[int, list[str]] = defaultdict(list)
    for each in tenancies:
        if each.start <= step < each.end:
            what = " (workspace)" if each.value is None else ""
            found[buffers[each.buffer].size].append(_path(profile, each.op) + what)
    return found


def held_by_xla(found: Fullest, paths: Mapping[str, str]) -> BySize:
    """The same of a module, by the paths of its instructions."""
    held: dict[int, list[str]] = defaultdict(list)
    for each in found.held:
        held[each.size].append(paths.get(each.instruction) or each.instruction)
    return held


def instruction_paths(hlo: str) -> dict[str, str]:
    """Where each instruction of a module is in the model, by its metadata.

    Args:
      hlo: `compiled.as_text()`.
    """
    named = r'^\s*(?:ROOT )?%?([\w.\-]+) = .*?op_name="([^"]*)"'
    return {
        match[1]: _of_model(match[2]) for match in re.finditer(named, hlo, re.MULTILINE)
    }


def _of_model(op_name: str) -> str:
    """A path without the names of functions that were compiled or planned."""
    return re.sub(r"^(?:jit\([^/]*\)/|coop_\w+/)*", "", op_name)


def _path(profile: Profile, op: int) -> str:
    equation = profile.program.equations[profile.units[op].root]
    return f"{equation.scope}/{equation.primitive.name}".lstrip("/")


def step_at(profile: Profile, schedule: Schedule, path: str) -> int:
    """The fullest step of this path, or without one the fullest of all."""
    alive = live_bytes(profile.problem, schedule)
    steps = [s for s, op in enumerate(schedule) if _path(profile, op) == path]
    return max(steps or range(len(schedule)), key=alive.__getitem__)


def _flat_step(model: str, size: str, backend: str) -> FlatStep:
    built = build(model, size)
    args = built.abstract_args()
    options: dict[str, Any] = {}
    if backend == "h200":
        args = h200.on_device(args)
        options = {"compiler_options": h200.COMPILER_OPTIONS}
    jitted = jax.jit(built.step, donate_argnums=built.donate_argnums, **options)
    step = flat_step(jitted.trace(*args), jax.tree.leaves(args))
    return dataclasses.replace(step, jit_options=step.jit_options | options)


def _planned(step: FlatStep, share: float) -> tuple[Profile, Planned]:
    compiled, buffers = step.compile_with_buffers(step.as_written())
    memory = memory_use(compiled)
    found = profile(step.program, buffers, memory.fixed, step.platform)
    room = int(share * memory.temp) - found.standing
    plan = PLANNERS["coop"].plan(found.problem, room, Effort(), [], {})
    if not plan.fits:
        print(f"No plan fits {share} of {memory.temp / _MB:,.1f} MB: what follows is")
        print("of the smallest that was found.")
    return found, plan


def report(step: FlatStep, found: Profile, plan: Planned) -> None:
    """Compiles a plan and prints what the two hold."""
    lowered = step.lower(emit(found, plan.positions))
    with dump_directory() as directory:
        compiled = lowered.compile(compiler_options=dump_options(directory))
        trace = fullest(dumped(directory))
    paths = instruction_paths(compiled.as_text())
    standing, schedule = found.standing, plan.schedule
    block = packed(found.problem, schedule)
    # What XLA makes of its own, such as a turned operand, has no name.
    at = next((paths[name] for name in trace.came if paths.get(name)), "")
    step_of_plan = step_at(found, schedule, at)
    temp = memory_use(compiled).temp
    print(f"{'MB':10} {'alive':>10} {'packed':>10}")
    alive, size = block.live_peak + standing, block.peak + standing
    print(f"{'plan':10} {alive / _MB:10,.1f} {size / _MB:10,.1f}")
    print(f"{'XLA':10} {trace.bytes / _MB:10,.1f} {temp / _MB:10,.1f}")
    print(f"XLA is fullest at {trace.came[0]}, by {at}")
    least = trace.bytes // 1000
    plan_holds = held_by_plan(found, schedule, step_of_plan)
    for each in differences(plan_holds, held_by_xla(trace, paths), least):
        count = f"{len(each.plan)} by the plan alone, {len(each.xla)} by XLA alone"
        print(f"\n{each.size / _MB:,.2f} MB: {count}")
        for side, names in (("plan", each.plan), ("XLA", each.xla)):
            for name in names[:_NAMES]:
                print(f"  {side:5}{name}")
            if len(names) > _NAMES:
                print(f"  {side:5}and {len(names) - _NAMES} more")


def _share(text: str) -> float:
    if not 0 < float(text) <= 1:
        raise argparse.ArgumentTypeError("a share is above 0 and at most 1")
    return float(text)


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--size", choices=("small", "paper"), default="small")
    parser.add_argument("--backend", choices=("cpu", "h200"), default="cpu")
    parser.add_argument("--share", type=_share, default=0.5, help="of the temporaries")
    asked = parser.parse_args()
    step = _flat_step(asked.model, asked.size, asked.backend)
    report(step, *_planned(step, asked.share))


if __name__ == "__main__":
    main()
