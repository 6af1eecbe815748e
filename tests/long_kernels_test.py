"""Parts cut so that XLA:GPU makes no kernel of a whole chain."""

import dataclasses
import random
from itertools import chain

import jax
import jax.numpy as jnp
import pytest
from validate_test import random_problem

from coop_jax._fitting.compile import flat_step
from coop_jax._fitting.cutting import cut_into_parts
from coop_jax._fitting.long_kernels import MOST_EQUATIONS, cut_long_kernels
from coop_jax._planning.types import Op, Problem, Value
from coop_jax._program.hlo import OwnedBuffer
from coop_jax._program.profile import profile
from coop_jax._program.scopes import scope

LARGE = 1 << 20


def recurrence(size: int) -> Problem:
    """Six carries, each made of the one before and of an input of its own."""
    return Problem(
        tuple(Op(f"carry {k}", (k, 7 + k), (k + 1,), 1.0) for k in range(6)),
        (
            Value("start", LARGE, is_argument=True),
            *(Value(f"carry {k}", size, is_output=True) for k in range(6)),
            *(Value(f"gate {k}", LARGE, is_argument=True) for k in range(6)),
        ),
    )


def test_a_chain_is_cut_where_its_kernel_would_have_too_many_equations() -> None:
    part, ten = [*range(6)], [10] * 6
    assert cut_long_kernels(recurrence(LARGE), part, set(), ten, 30) == [
        [0, 1, 2],
        [3, 4, 5],
    ]
    assert cut_long_kernels(recurrence(LARGE), part, set(), ten, 60) == [part]
    # A single op is left as it is, however much it stands for.
    assert cut_long_kernels(recurrence(LARGE), [0], set(), ten, 1) == [[0]]


def test_kernels_of_their_own_and_small_values_end_a_chain() -> None:
    part, ten = [*range(6)], [10] * 6
    assert cut_long_kernels(recurrence(LARGE), part, {2}, ten, 30) == [part]
    assert cut_long_kernels(recurrence(16), part, set(), ten, 30) == [part]


def test_chains_side_by_side_are_not_counted_together() -> None:
    both = recurrence(LARGE)
    apart = [*range(3), *range(4, 6)]  # nothing inside makes what carry 4 reads
    assert cut_long_kernels(both, apart, set(), [10] * 6, 30) == [apart]


@pytest.mark.parametrize("seed", range(50))
def test_all_of_a_part_stays_in_order_and_no_kernel_is_too_long(seed: int) -> None:
    rng, small = random.Random(seed), random_problem(seed, length=30)
    values = tuple(dataclasses.replace(v, size=LARGE) for v in small.values)
    problem = dataclasses.replace(small, values=values)
    part = list(problem.program_order)
    equations = [rng.randint(1, 9) for _ in part]
    found = cut_long_kernels(problem, part, set(), equations, 12)
    assert list(chain(*found)) == part
    for piece in found:
        for op in (op for op in piece if problem.ops[op].outputs):
            inside, todo = set(), [op]
            while todo:
                one = todo.pop()
                if one in piece and one not in inside:
                    inside.add(one)
                    todo += [problem.producer[v] for v in problem.ops[one].inputs]
            assert inside == {op} or sum(equations[k] for k in inside) <= 12


def test_carries_computed_again_in_a_row_are_several_parts_on_gpu() -> None:
    def there_and_back(carry: jax.Array, *gates: jax.Array) -> jax.Array:
        carries = [carry]
        for gate in gates:
            carries.append(jnp.tanh(gate * carries[-1] + (1 - gate)))
        total = carries.pop()
        while carries:
            total = jnp.tanh(total * carries.pop())
        return total

    args = [jax.ShapeDtypeStruct((512, 512), jnp.float32)] * 41
    program = flat_step(jax.jit(there_and_back).trace(*args), args).program
    size = 512 * 512 * 4
    buffers = [
        OwnedBuffer(scope(k), "fusion", size, 0, k * size, True)
        for k, equation in enumerate(program.equations)
        if equation.primitive.name == "tanh"
    ]
    found = profile(program, buffers, 0, "gpu")
    assert len(found.units) == 80
    again = [*((op, 40) for op in range(39)), *((op,) for op in range(39, 80))]
    cut = cut_into_parts(found, again, set(), set())
    assert list(chain(*cut)) == [*range(40), *range(39), *range(40, 80)]
    counts = [sum(len(found.units[op].inlined) + 1 for op in part) for part in cut]
    # A part may have more than one kernel.
    assert max(counts) < 1.1 * MOST_EQUATIONS


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
