"""Emission: XLA runs what a plan says, when it says it."""

import jax
import jax.numpy as jnp

from coop_jax._fitting.compile import flat_step
from coop_jax._fitting.emit import emit, late_updates
from coop_jax._measure import memory_use
from coop_jax._planning.types import Op, Problem, Value
from coop_jax._program.profile import profile, scope

# Op 0 reads argument 0, op 2 overwrites it, op 1 has to do with neither.
UPDATE = Problem(
    (
        Op("product", (0,), (1,), 1.0),
        Op("other", (1,), (2,), 1.0),
        Op("update", (0,), (3,), 1.0),
    ),
    (
        Value("argument", 0, is_argument=True),
        Value("product", 8),
        Value("other", 0, is_output=True),
        Value("updated", 0, is_output=True, overwrites=0),
    ),
)


def test_an_update_is_late_where_its_argument_is_read_out_of_place() -> None:
    assert late_updates(UPDATE, [[0], [1], [2]]) == set()
    assert late_updates(UPDATE, [[0], [0, 1], [2]]) == {2}
    assert late_updates(UPDATE, [[], [0, 1], [2]]) == {2}


def test_a_donated_weight_is_not_copied_for_what_reads_it_just_before_its_update():
    def step(w, x, v):
        hidden = x @ w
        passed = jnp.tanh(hidden @ v)
        new = w * 0.9
        return new, passed @ v + hidden

    weight = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
    x = jax.ShapeDtypeStruct((16, 1024), jnp.float32)
    args = (weight, x, weight)
    flat = flat_step(jax.jit(step, donate_argnums=0).trace(*args), args)
    program = flat.program
    compiled, buffers = flat.compile_with_buffers(
        lambda *values: program.evaluate(values, scope)
    )
    found = profile(program, buffers, memory_use(compiled).fixed, "cpu")
    names = [op.name for op in found.problem.ops]
    update = names.index("mul")
    positions: list[tuple[int, ...]] = [(k,) for k in range(len(names))]
    positions[names.index("dot_general")] += (update,)
    planned = memory_use(flat.compile(emit(found, positions)))
    assert planned.temp < 1024 * 1024 * 4, "XLA copied the weight"
