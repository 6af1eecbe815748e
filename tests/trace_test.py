"""Flattening: what is inlined, merged, dropped and kept; and it computes the same."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

from coop_jax._program import trace as _trace
from coop_jax._program.flatten import flatten
from coop_jax._program.repeating import is_recomputable
from coop_jax._program.trace import Literal, Program

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def flat(function: Callable, *args: Any) -> Program:
    traced = jax.jit(function).trace(*args)
    return flatten(traced.jaxpr, [False] * len(jax.tree.leaves(args)))


def names(program: Program) -> list[str]:
    return [
        "barrier" if equation.is_barrier else equation.primitive.name
        for equation in program.equations
    ]


def run(program: Program, *args: Any) -> list[Any]:
    evaluate = jax.jit(lambda *leaves: program.evaluate(leaves, "coop_eqn_{}".format))
    return evaluate(*jax.tree.leaves(args))


@jax.custom_jvp
def doubled(x):
    return x + x


@doubled.defjvp
def _doubled_jvp(primals, tangents):
    return doubled(primals[0]), 2 * tangents[0]


@jax.custom_vjp
def tripled(x):
    return x * 3


def _tripled_forward(x):
    return jnp.sin(x), None


def _tripled_backward(_, cotangent):
    return (cotangent * 5,)


tripled.defvjp(_tripled_forward, _tripled_backward)


def test_nested_calls_are_inlined() -> None:
    inner = jax.jit(lambda x: jnp.cos(x))
    program = flat(jax.jit(lambda x: doubled(inner(tripled(x)))), X)
    assert names(program) == ["mul", "cos", "add"]
    np.testing.assert_array_equal(run(program, X)[0], 2 * jnp.cos(3 * X))


def test_a_custom_gradient_is_the_one_that_is_traced() -> None:
    program = flat(jax.grad(lambda x: tripled(x).sum()), X)
    np.testing.assert_array_equal(run(program, X)[0], np.full_like(X, 5))


def test_a_checkpoint_keeps_its_barrier_and_loses_its_call() -> None:
    def loss(x):
        return jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x).sum()

    program = flat(jax.grad(loss), X)
    assert names(program).count("barrier") == 1
    assert names(program).count("cos") == 2
    # Without the barrier the second forward would be merged with the first.
    barrier = next(e for e in program.equations if e.is_barrier)
    after = program.equations[program.equations.index(barrier) + 1]
    assert set(after.variables) <= set(barrier.outputs)
    assert [program.avals[v] for v in barrier.outputs] == [
        program.avals[v] for v in barrier.variables
    ]
    np.testing.assert_array_equal(run(program, X)[0], jax.jit(jax.grad(loss))(X))


def test_a_checkpoint_that_allows_merging_has_no_barrier() -> None:
    def loss(x):
        return jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)), prevent_cse=False)(x).sum()

    assert "barrier" not in names(flat(jax.grad(loss), X))


def test_a_barrier_of_the_user_stays() -> None:
    assert names(flat(lambda x: lax.optimization_barrier(x) + 1, X)) == [
        "barrier",
        "add",
    ]


def test_a_barrier_holds_no_literals() -> None:
    def held(x):
        x, half = lax.optimization_barrier((x * 2, 0.5))
        return x * half, half

    program = flat(held, X)
    assert names(program) == ["mul", "barrier", "convert_element_type", "mul"]
    assert len(program.equations[1].inputs) == 1
    assert isinstance(program.outputs[1], Literal)


def test_of_a_linear_solve_its_solver_is_left() -> None:
    matrix = jnp.array([[3.0, 1.0], [1.0, 2.0]])

    def loss(b, scale):
        found = lax.custom_linear_solve(
            lambda x: scale * (matrix @ x),
            b,
            lambda _, b: jnp.linalg.inv(matrix) @ b / scale,
            lambda _, b: jnp.linalg.inv(matrix.T) @ b / scale,
        )
        return jnp.sum(found**2)

    b = jnp.array([1.0, 2.0])
    for function in (loss, jax.grad(loss), jax.grad(loss, argnums=1)):
        program = flat(function, b, 2.0)
        assert "custom_linear_solve" not in names(program)
        (found,) = program.evaluate([b, 2.0])
        np.testing.assert_allclose(found, function(b, 2.0), rtol=1e-6)


def test_of_a_choice_by_platform_the_branch_that_all_take_is_left() -> None:
    def chosen(x):
        return jnp.diagonal(x) + jnp.sin(x[0])

    program = flat(jax.grad(lambda x: jnp.sum(chosen(x) ** 2)), jnp.eye(4))
    assert {"cond", "platform_index"}.isdisjoint(names(program))
    x = jnp.arange(16.0).reshape(4, 4)
    assert np.array_equal(run(flat(chosen, x), x)[0], jnp.diag(x) + jnp.sin(x[0]))


def test_a_choice_that_platforms_make_differently_stays_whole() -> None:
    def chosen(x):
        return lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos)

    program = flat(chosen, 1.0)
    assert "cond" in names(program)
    assert run(program, jnp.float32(1)) == [jax.jit(chosen)(jnp.float32(1))]


def test_equal_equations_are_merged() -> None:
    program = flat(lambda x: (jnp.sin(x) + 1) * (jnp.sin(x) + 1), X)
    assert names(program) == ["sin", "add", "mul"]
    assert program.equations[-1].inputs[0] == program.equations[-1].inputs[1]


def test_equations_that_differ_in_anything_are_not_merged() -> None:
    def function(x):
        return (
            jnp.sum(x, 0),
            jnp.sum(x, 1),
            jnp.maximum(x, 0.0),
            jnp.maximum(x, -0.0),
            lax.cumsum(x, 0),
        )

    expected = ["reduce_sum", "reduce_sum", "max", "max", "cumsum"]
    assert names(flat(function, X)) == expected


def test_constants_that_print_alike_are_not_merged() -> None:
    def function(x):
        return x * 0.999, x * 0.9995, x + 1e-9, x + 4e-9, x - 2.5e-4, x - 2.50003e-4

    with np.printoptions(precision=3, suppress=True):
        assert names(flat(function, X)) == ["mul", "mul", "add", "add", "sub", "sub"]


def test_draws_under_two_settings_are_not_merged() -> None:
    def draws(key):
        with jax.threefry_partitionable(True):
            first = jax.random.bits(key, (3, 5))
        with jax.threefry_partitionable(False):
            return first, jax.random.bits(key, (3, 5))

    key = jax.random.key(0)
    expected, found = jax.jit(draws)(key), run(flat(draws, key), key)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert (expected[0] != expected[1]).any()


def test_a_loop_or_branch_that_draws_runs_once_and_is_not_merged() -> None:
    def draw(total, _):
        return total + lax.rng_uniform(0.0, 1.0, (4,)), None

    def function(x):
        first, _ = lax.scan(draw, jnp.zeros(4), None, length=3)
        second, _ = lax.scan(draw, jnp.zeros(4), None, length=3)
        branches = lambda: lax.rng_uniform(0.0, 1.0, (4,)), lambda: jnp.zeros(4)
        return first - second, lax.cond(x[0] > 0, *branches)

    program = flat(function, jnp.ones(4))
    loops = [e for e in program.equations if e.primitive.name in ("scan", "cond")]
    assert len(loops) == 3
    assert not any(map(is_recomputable, loops))


def test_merging_leaves_the_draws_of_a_stateful_generator_alone() -> None:
    def draw():
        return lax.rng_uniform(0.0, 1.0, (4,)), lax.rng_uniform(0.0, 1.0, (4,))

    assert names(flat(draw)) == ["rng_uniform", "rng_uniform"]


def test_dead_code_is_dropped_and_effects_are_kept() -> None:
    def function(x):
        jnp.cos(x)
        jax.debug.print("{}", x.sum())
        return x + 1

    reduction, effect, addition = names(flat(function, X))
    assert (reduction, addition) == ("reduce_sum", "add")
    assert effect.startswith("debug_")


def test_a_pure_callback_that_nothing_reads_is_dropped() -> None:
    def function(x):
        jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        return x + 1

    assert names(flat(function, X)) == ["add"]


def test_equal_effects_are_not_merged() -> None:
    def function(x):
        jax.debug.print("{}", x)
        jax.debug.print("{}", x)
        return x

    assert len(flat(function, 1.0).equations) == 2


def test_a_jit_that_asks_for_shardings_stays_whole_but_not_one_that_donates() -> None:
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    placed = jax.jit(lambda x: jnp.sin(x) + 1, out_shardings=device)
    donating = jax.jit(lambda x: jnp.sin(x) + 1, donate_argnums=0)
    plain = jax.jit(lambda x: jnp.sin(x) + 1)
    for called, expected in (
        (placed, ["cos", "jit"]),
        (donating, ["cos", "sin", "add"]),
        (plain, ["cos", "sin", "add"]),
    ):
        program = flat(lambda x, called=called: called(jnp.cos(x)), X)
        assert names(program) == expected
        np.testing.assert_allclose(run(program, X)[0], plain(jnp.cos(X)), rtol=1e-6)


def test_arrays_put_somewhere_together_are_put_one_by_one() -> None:
    host = jax.memory.Space.Host

    def function(xs: list[jax.Array]) -> tuple[list[jax.Array], jax.Array]:
        there = jax.device_put(xs, [jax.memory.Space.Device, host, host])
        return there, jnp.sin(there[0])

    # The first is where it is to be.
    program = flat(function, [X, X + 1, X + 2])
    assert names(program) == ["device_put", "device_put", "sin"]
    first, second, third, _ = program.outputs
    assert first == program.arguments[0]
    put = [program.avals[v] for v in (second, third) if not isinstance(v, Literal)]
    assert [aval.memory_space for aval in put] == [host, host]


def test_outputs_may_be_arguments_literals_and_repeats() -> None:
    program = flat(lambda x: (x, 2.0, x + 1, x + 1, None), X)
    assert program.outputs[0] == program.arguments[0]
    assert isinstance(program.outputs[1], Literal)
    assert program.outputs[2] == program.outputs[3]
    first, two, one_more, again = run(program, X)
    np.testing.assert_array_equal(first, X)
    assert two == 2.0
    np.testing.assert_array_equal(one_more, again)


def test_a_captured_array_is_one_constant() -> None:
    weight = jnp.asarray(X)
    inner = jax.jit(lambda x: x * weight)
    program = flat(lambda x: inner(x) + weight, X)
    assert len(program.constants) <= 1
    np.testing.assert_allclose(run(program, X)[0], X * X + X, rtol=1e-6)


def test_equations_know_the_line_of_the_user() -> None:
    def function(x):
        return doubled(jnp.sin(x))

    sine, add = flat(function, X).equations
    assert "trace_test.py" in sine.location and "function)" in sine.location
    assert "trace_test.py" in add.location and "doubled)" in add.location


@pytest.mark.parametrize(
    ("file", "is_the_users"),
    [
        ("/home/me/train.py", True),
        (__file__, True),
        (jax.__file__, False),
        ("/usr/lib/python3/dist-packages/flax/linen/module.py", False),
        ("/home/me/.local/lib/python3.12/site-packages/optax/_src/base.py", False),
        (_trace.__file__, False),
        ("<string>", False),
    ],
)
def test_packages_are_not_the_users(file: str, is_the_users: bool) -> None:
    assert _trace.is_the_users(file) == is_the_users


def test_random_numbers_know_the_line_of_the_user() -> None:
    def function(key):
        return jax.random.normal(key, (4,))

    bits = [
        equation.location
        for equation in flat(function, jax.random.key(0)).equations
        if equation.primitive.name == "random_bits"
    ]
    assert len(bits) == 1
    assert "trace_test.py" in bits[0]


def test_names_of_the_user_reach_the_compiled_program() -> None:
    def function(x):
        with jax.named_scope("layer"):
            return jnp.sin(x)

    program = flat(function, X)
    evaluate = jax.jit(lambda x: program.evaluate([x], "coop_eqn_{}".format))
    compiled: Any = evaluate.lower(X).compile()
    assert "coop_eqn_0/layer/sin" in compiled.as_text()


def _scan(x):
    return lax.scan(lambda c, row: (jnp.sin(c + row), c.sum()), x[0], x)


def _while(x):
    def body(carry):
        i, y = carry
        return i + 1, jnp.cos(y)

    return lax.while_loop(lambda carry: carry[0] < 5, body, (0, x))


def _cond(x):
    return lax.cond(x[0, 0] > 0, jnp.sin, lambda x: x @ x.T @ x, x)


def _dropout(x):
    key = jax.random.key(7)
    kept = jax.random.bernoulli(key, 0.5, x.shape)
    noise = jax.random.normal(jax.random.fold_in(key, 1), x.shape)
    return jnp.where(kept, x, 0), noise, jax.random.split(key)


def _gradient(x):
    def loss(x):
        y = jax.checkpoint(lambda x: jnp.tanh(tripled(x)))(x)
        return (doubled(y) ** 2).mean(), jnp.argmax(y)

    return jax.value_and_grad(loss, has_aux=True)(x)


def _bfloat16(x):
    y = x.astype(jnp.bfloat16)
    return lax.dot_general(y, y.T, (((1,), (0,)), ((), ()))), lax.sort(y, dimension=0)


def _tree(tree):
    return {"b": tree["a"] + 1, "a": (tree["b"], [tree["a"].T])}


@pytest.mark.parametrize(
    "function",
    [_scan, _while, _cond, _dropout, _gradient, _bfloat16],
    ids=lambda function: function.__name__.strip("_"),
)
def test_evaluation_is_bit_identical_to_the_original(function: Callable) -> None:
    expected = jax.tree.leaves(jax.jit(function)(X))
    for out, reference in zip(run(flat(function, X), X), expected, strict=True):
        assert out.dtype == reference.dtype
        assert jnp.array_equal(out, reference)


def test_arguments_and_outputs_are_in_the_order_of_the_leaves() -> None:
    tree = {"b": X, "a": X + 1}
    expected = jax.tree.leaves(_tree(tree))
    for out, reference in zip(run(flat(_tree, tree), tree), expected, strict=True):
        np.testing.assert_array_equal(out, reference)


def test_effects_run_once_and_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[int] = []

    def function(x):
        for i in range(4):
            io_callback(lambda _, i=i: seen.append(i), None, x, ordered=True)
            x = jnp.sin(x)
        jax.debug.print("sum {}", x.sum())
        return x

    program = flat(function, X)
    seen.clear()
    run(program, X)
    jax.effects_barrier()
    assert seen == [0, 1, 2, 3]
    assert capfd.readouterr().out.count("sum ") == 1


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
