"""Parts cut so that XLA:GPU makes no kernel of a whole chain."""

import dataclasses
import random
from collections import Counter
from itertools import chain

import jax
import jax.numpy as jnp
import pytest
from validate_test import random_problem

from coop_jax._fitting.compile import flat_step
from coop_jax._fitting.cutting import cut_into_parts
from coop_jax._fitting.long_kernels import (
    MANY_EQUATIONS,
    MOST_ALIKE,
    cut_long_kernels,
)
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
    found = cut_long_kernels(recurrence(LARGE), part, set(), ten, part, 30)
    assert found == [[0, 1, 2], [3, 4, 5]]
    assert cut_long_kernels(recurrence(LARGE), part, set(), ten, part, 60) == [part]
    # A single op is left as it is, however much it stands for.
    assert cut_long_kernels(recurrence(LARGE), [0], set(), ten, part, 1) == [[0]]


def test_a_chain_that_repeats_itself_is_cut_into_kernels_that_are_alike() -> None:
    part, alike = [*range(6)], ["carry"] * 6
    found = cut_long_kernels(recurrence(LARGE), part, set(), [20] * 6, alike)
    assert found == [[0, 1], [2, 3], [4, 5]]
    # Not while it is short.
    found = cut_long_kernels(recurrence(LARGE), part, set(), [13] * 6, alike)
    assert found == [[0, 1, 2], [3, 4, 5]]
    # An addition or a product by itself may come any number of times.
    assert cut_long_kernels(recurrence(LARGE), part, set(), [1] * 6, alike) == [part]


def gated(overwritten: bool = False) -> Problem:
    """Four carries, each of the one before and of its gate, which comes first."""
    gates = tuple(Op(f"gate {k}", (9 + k,), (5 + k,), 1.0) for k in range(4))
    carries = tuple(Op(f"carry {k}", (k, 5 + k), (k + 1,), 1.0) for k in range(4))
    ops = [op for step in zip(gates, carries, strict=True) for op in step]
    values = [
        Value("start", LARGE, is_argument=True),
        *(Value(f"carry {k}", LARGE, is_output=True) for k in range(4)),
        *(Value(f"gate {k}", LARGE, is_output=True) for k in range(4)),
        *(Value(f"input {k}", LARGE, is_argument=True) for k in range(4)),
    ]
    if overwritten:
        ops.insert(5, Op("update", (11, 5), (13,), 1.0))
        values.append(Value("updated", LARGE, is_output=True, overwrites=11))
    return Problem(tuple(ops), tuple(values))


def test_what_leads_to_the_next_kernel_alone_goes_along() -> None:
    kinds = ["gate", "carry"] * 4
    found = cut_long_kernels(gated(), [*range(8)], set(), [9] * 8, kinds)
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7]]
    # A carry that leaves no room for its gate beside it goes on alone.
    found = cut_long_kernels(gated(), [*range(8)], set(), [9] * 8, kinds, 10)
    assert found == [[0], [1, 2], [3, 4], [5, 6], [7]]


def test_what_reads_an_argument_runs_before_that_is_overwritten() -> None:
    problem = gated(overwritten=True)
    assert problem.ops[4].inputs == (11,) and problem.ops[5].name == "update"
    kinds = ["gate", "carry"] * 2 + ["gate", "update", "carry", "gate", "carry"]
    found = cut_long_kernels(problem, [*range(9)], set(), [9] * 9, kinds)
    assert found == [[0, 1, 2, 3, 4, 5], [6, 7, 8]]


def test_kernels_of_their_own_and_small_values_end_a_chain() -> None:
    part, ten = [*range(6)], [10] * 6
    found = cut_long_kernels(recurrence(LARGE), part, {2}, ten, part, 30)
    assert found == [part]
    assert cut_long_kernels(recurrence(16), part, set(), ten, part, 30) == [part]


def test_what_a_kernel_of_its_own_reads_is_not_in_one_with_what_reads_that() -> None:
    # A residual stream: 0, 2, 4 add to it what 1 and 3 make of it.
    ops = [Op("enters", (0,), (1,), 1.0)]
    for k in range(1, 5, 2):
        ops.append(Op("product", (k,), (k + 1,), 1.0))
        ops.append(Op("sum", (k, k + 1), (k + 2,), 1.0))
    values = [Value("start", LARGE, is_argument=True)]
    values += [Value(f"value {k}", LARGE, is_output=True) for k in range(5)]
    stream, part, ten = Problem(tuple(ops), tuple(values)), [*range(5)], [10] * 5
    assert cut_long_kernels(stream, part, {1, 3}, ten, part, 20) == [part]
    assert cut_long_kernels(stream, part, set(), ten, part, 20) == [[0, 1], [2, 3], [4]]


def test_chains_side_by_side_are_not_counted_together() -> None:
    both, ten = recurrence(LARGE), [10] * 6
    apart = [*range(3), *range(4, 6)]  # nothing inside makes what carry 4 reads
    assert cut_long_kernels(both, apart, set(), ten, [*range(6)], 30) == [apart]


@pytest.mark.parametrize("seed", range(50))
def test_nothing_is_lost_or_early_and_no_kernel_is_too_long(seed: int) -> None:
    rng, small = random.Random(seed), random_problem(seed, length=30)
    values = tuple(dataclasses.replace(v, size=LARGE) for v in small.values)
    problem = dataclasses.replace(small, values=values)
    part = list(problem.program_order)
    equations = [rng.randint(1, 20) for _ in part]
    kinds = [rng.randint(1, 2) for _ in part]
    found = cut_long_kernels(problem, part, set(), equations, kinds, 60)
    assert sorted(chain(*found)) == part
    place = {op: at for at, op in enumerate(chain(*found))}
    for op in part:
        reads = problem.ops[op].inputs
        assert all(place.get(problem.producer[v], -1) < place[op] for v in reads)
        for later in part[part.index(op) + 1 :]:
            written = {problem.values[v].overwrites for v in problem.ops[later].outputs}
            assert written.isdisjoint(reads) or place[op] < place[later]
    for piece in found:
        for op in (op for op in piece if problem.ops[op].outputs):
            inside, todo = set(), [op]
            while todo:
                one = todo.pop()
                if one in piece and one not in inside:
                    inside.add(one)
                    todo += [problem.producer[v] for v in problem.ops[one].inputs]
            alike = Counter(kinds[k] for k in inside if equations[k] > 1)
            repeats = max(alike.values(), default=0) > MOST_ALIKE
            most = MANY_EQUATIONS if repeats else 60
            assert inside == {op} or sum(equations[k] for k in inside) <= most


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
    assert max(counts) <= 1.1 * MANY_EQUATIONS


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
