"""What XLA holds alive, by the trace of its heap, and how that is compared."""

import random

import jax
import jax.numpy as jnp
import pytest

from benchmarks.alive import Difference, differences, instruction_paths, step_at
from benchmarks.heap_trace import Fullest, Held, fullest
from coop_jax._fitting.compile import FlatStep, flat_step
from coop_jax._fitting.emit import emit
from coop_jax._planning.buffer_assignment import live_peak, schedule_buffers
from coop_jax._planning.planned import program_order
from coop_jax._program.hlo import dump_directory, dump_options, dumped
from coop_jax._program.hlo_messages import message_class
from coop_jax._program.profile import Profile, profile

ALLOC, FREE, SHARE = 0, 1, 2
WIDTH = 256
SQUARE = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)


def module(sizes: list[int], *traces: list[tuple[int, int, int]]) -> bytes:
    """A dump with these traces: (kind, buffer, whose bytes it takes over)."""
    hlo = message_class("Hlo")()
    for number, size in enumerate(sizes):
        hlo.buffer_assignment.logical_buffers.add(id=number, size=size)
    for events in traces:
        trace = hlo.buffer_assignment.heap_simulator_traces.add()
        for kind, buffer, first in events:
            trace.events.add(
                kind=kind,
                buffer_id=buffer,
                instruction_name=f"i{buffer}",
                share_with_canonical_id=first,
            )
    return hlo.SerializeToString()


def test_what_is_alive_where_most_is() -> None:
    events = [(ALLOC, 0, 0), (ALLOC, 1, 0), (FREE, 0, 0), (ALLOC, 2, 0), (FREE, 1, 0)]
    found = fullest(module([5, 1, 2], events))
    assert found == Fullest(6, (Held(5, "i0"), Held(1, "i1")), ("i1", "i0"))


def test_what_takes_bytes_over_holds_them_until_the_last_is_freed() -> None:
    events = [
        (ALLOC, 0, 0),
        (SHARE, 1, 0),
        (FREE, 0, 0),
        (SHARE, 2, 1),  # of what was itself given the bytes of 0
        (FREE, 1, 0),
        (ALLOC, 3, 0),
        (FREE, 2, 0),
        (ALLOC, 4, 0),
    ]
    found = fullest(module([4, 4, 4, 1, 3], events))
    assert found.bytes == 5
    assert found.held == (Held(4, "i0"), Held(1, "i3"))


def test_of_several_blocks_the_fullest_counts() -> None:
    found = fullest(module([1, 2, 3], [(ALLOC, 0, 0)], [(ALLOC, 1, 0), (ALLOC, 2, 0)]))
    assert found.bytes == 5
    assert fullest(module([1])) == Fullest(0, (), ())


def test_played_traces_are_what_an_interval_each_says() -> None:
    rng = random.Random(0)
    for _ in range(200):
        sizes = [rng.randint(1, 9) for _ in range(8)]
        events, alive, most = [], set[int](), 0
        todo = list(range(8))
        while todo or alive:
            if todo and (not alive or rng.random() < 0.6):
                events.append((ALLOC, todo[0], 0))
                alive.add(todo.pop(0))
            else:
                gone = rng.choice(sorted(alive))
                alive.remove(gone)
                events.append((FREE, gone, 0))
            most = max(most, sum(sizes[k] for k in alive))
        assert fullest(module(sizes, events)).bytes == most


def layers(x: jax.Array, weights: list[jax.Array]) -> list[jax.Array]:
    """Sums of gradients: XLA keeps what is alive in the place of larger outputs too."""

    def loss(weights: list[jax.Array]) -> jax.Array:
        hidden = x
        for weight in weights:
            hidden = jnp.tanh(hidden @ weight)
        return jnp.sum(hidden)

    return [jnp.sum(gradient**2) for gradient in jax.grad(loss)(weights)]


def test_a_planned_step_holds_what_its_plan_says() -> None:
    step, found = profiled_layers()
    problem = found.problem
    lowered = step.lower(emit(found, program_order(problem)))
    with dump_directory() as directory:
        compiled = lowered.compile(compiler_options=dump_options(directory))
        held = fullest(dumped(directory))
    expected = live_peak(schedule_buffers(problem, problem.program_order))
    # What is alive besides is a few scalars.
    assert expected <= held.bytes < expected + 1024
    paths = instruction_paths(compiled.as_text())
    assert any("tanh" in paths.get(name, "") for name in held.came)


def profiled_layers() -> tuple[FlatStep, Profile]:
    args = (SQUARE, [SQUARE] * 4)
    step = flat_step(jax.jit(layers).trace(*args), jax.tree.leaves(args))
    _, owned = step.compile_with_buffers(step.as_written())
    return step, profile(step.program, owned, 0, "cpu")


def test_sizes_of_which_one_side_holds_more() -> None:
    plan = {8: ["a", "b"], 4: ["c"], 2: ["d"]}
    xla = {8: ["b", "e", "e"], 4: ["f"], 1: ["g"]}
    found = differences(plan, xla)
    assert found == [
        Difference(8, ("a",), ("e", "e")),
        Difference(2, ("d",), ()),
        Difference(1, (), ("g",)),
    ]
    assert [each.bytes for each in found] == [8, -2, 1]
    assert differences(plan, xla, least=2) == found[:1]
    assert differences(plan, plan) == []


def test_the_fullest_step_of_a_path_or_of_all() -> None:
    _, found = profiled_layers()
    schedule = found.problem.program_order
    names = [found.problem.ops[op].name for op in schedule]
    at = step_at(found, schedule, "jvp()/dot_general")
    assert names[at] == "dot_general"
    assert at == max(k for k in range(at + 1) if names[k] == "dot_general")
    buffers = schedule_buffers(found.problem, schedule)
    anywhere = step_at(found, schedule, "no such path")
    spans = [(b.live_range.start, b.live_range.end, b.size) for b in buffers]
    alive = sum(size for start, end, size in spans if start <= anywhere < end)
    assert alive == live_peak(buffers)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
