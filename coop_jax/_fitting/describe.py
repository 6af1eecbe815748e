"""Names for what a plan speaks of: each value and each argument, as users know them."""

import re
from collections.abc import Sequence
from typing import Any

import jax

from .._plan import Action, Argument
from .._planning.buffer_assignment import taken_over
from .._planning.order import longest_in_order
from .._planning.types import OpId, Problem, Schedule
from .._planning.validate import live_bytes, live_ranges
from .._program.cost import nbytes
from .._program.origin import type_name
from .._program.profile import Profile
from .compile import FlatStep

_TRANSFORM = re.compile(r"\b[\w.]+\(([^()]*)\)")


def list_actions(
    profile: Profile, positions: Sequence[Sequence[int]], schedule: Schedule
) -> tuple[Action, ...]:
    """What a plan does with every value that owns bytes in the pool.

    Args:
      profile: of the step.
      positions: where each op runs; empty if the step is left as written.
      schedule: the same as a list of ops.
    """
    problem = profile.problem
    in_place = taken_over(problem, schedule)
    stays = longest_in_order([runs[0] for runs in positions])
    found = []
    for v, value in enumerate(problem.values):
        op = problem.producer[v]
        if op < 0 or not value.size:
            continue
        runs = positions[op] if positions else (op,)
        if len(runs) > 1:
            kind = "recomputed"
        else:
            kind = "kept" if not positions or op in stays else "moved"
        scope = str(profile.program.equations[profile.units[op].root].scope)
        found.append(
            Action(
                value.name,
                value.size,
                kind,
                len(runs),
                value=v,
                type=type_name(profile.program.avals[profile.variable_of[v]]),
                scope=without_transforms(scope),
                is_backward="transpose(" in scope,
                cost=problem.ops[op].cost,
                is_in_place=v in in_place,
            )
        )
    return tuple(found)


def list_arguments(step: FlatStep, problem: Problem) -> tuple[Argument, ...]:
    """The step's arguments, in order, with the part each plays."""
    paths, _ = jax.tree_util.tree_flatten_with_path(step.traced.args_info)
    names = [_argument_name(path) for path, _ in paths]
    # Arguments come first among a problem's values.
    first_read = [len(problem.ops)] * len(problem.values)
    for op in range(len(problem.ops) - 1, -1, -1):
        for v in problem.ops[op].inputs:
            first_read[v] = op
    donated = set(step.donated)
    return tuple(
        Argument(
            name,
            type_name(aval := step.program.avals[variable]),
            # Inside a map types are those of one device.
            nbytes(aval) if step.program.mapped else _bytes_per_device(aval, leaf),
            _role(i in donated, first_read[i], len(problem.ops)),
        )
        for i, (name, variable, leaf) in enumerate(
            zip(names, step.program.arguments, step.leaves, strict=False)
        )
    )


def held_at_peak(problem: Problem, schedule: Schedule) -> list[tuple[str, int, str]]:
    """What a schedule holds where most bytes are alive.

    Returns:
      Name, bytes and the user's line of each value, and of what an op takes inside.
    """
    alive = live_bytes(problem, schedule)
    peak = max(range(len(alive)), key=alive.__getitem__, default=0)
    held = [
        (problem.values[v].name, problem.values[v].size)
        for v, where in live_ranges(problem, schedule)
        if where.start <= peak < where.end and problem.values[v].size
    ]
    held += [
        (f"inside {_first_name(problem, op)}", problem.ops[op].workspace)
        for op in schedule[peak : peak + 1]
        if problem.ops[op].workspace
    ]
    return [
        (name.partition(" at ")[0], size, name.partition(" at ")[2])
        for name, size in held
    ]


def without_transforms(scope: str) -> str:
    """Name scopes without the transformations that JAX notes around them."""
    while (plain := _TRANSFORM.sub(r"\1", scope)) != scope:
        scope = plain
    return "/".join(part for part in scope.split("/") if part)


def _first_name(problem: Problem, op: OpId) -> str:
    """Of what an op computes: `primitive at location`."""
    outputs = problem.ops[op].outputs
    return problem.values[outputs[0]].name if outputs else problem.ops[op].name


def _argument_name(path: tuple) -> str:
    """Path of a leaf: `[0].params['w']` for positional ones, `['x']` for named ones."""
    return jax.tree_util.keystr(path[1:])


def _role(is_donated: bool, first_read: int, ops: int) -> str:
    if not is_donated:
        return "inputs"
    # Only the update reads the optimizer's state; the forward pass needs parameters.
    return "parameters" if first_read < ops // 2 else "optimizer state"


def _bytes_per_device(aval: Any, leaf: Any) -> int:
    sharding = getattr(leaf, "sharding", None)
    if sharding is None or not getattr(aval, "shape", ()):
        return nbytes(aval)
    return nbytes(aval.update(shape=sharding.shard_shape(aval.shape)))
