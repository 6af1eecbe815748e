"""Loops and branches that hold a whole gradient are planned inside."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import coop_jax
from coop_jax._loops.bodies import bodies_of
from coop_jax._loops.body_plans import flops_with
from coop_jax._loops.loop_report import BodyPlan
from coop_jax._program.cost import program_flops
from coop_jax._program.flatten import flatten
from coop_jax._program.hlo import OwnedBuffer
from coop_jax._program.profile import profile
from coop_jax._program.regions import by_place, evaluate, inside_of, named

ROWS, WIDTH, LAYERS = 512, 64, 10
KEYS = jax.random.split(jax.random.key(0), LAYERS + 1)
WEIGHTS = [jax.random.normal(key, (WIDTH, WIDTH)) / 8 for key in KEYS[1:]]
X = jax.random.normal(KEYS[0], (ROWS, WIDTH))


def loss(weights: Any, x: Any) -> Any:
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return jnp.mean(x**2)


def update(weights: Any, x: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(weights, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value


def until(weights: Any, x: Any, n: Any) -> Any:
    def body(state: Any) -> Any:
        at, weights, _ = state
        return (at + 1, *update(weights, x))

    start = (0, weights, jnp.zeros(()))
    return lax.while_loop(lambda state: state[0] < n, body, start)[1:]


def now_and_then(weights: Any, x: Any, n: Any) -> Any:
    return lax.cond(
        n % 2 == 1,
        lambda weights: update(weights, x),
        lambda weights: (weights, loss(weights, x)),
        weights,
    )


def one_of_three(weights: Any, x: Any, n: Any) -> Any:
    branches = [
        lambda weights: update(weights, x),
        lambda weights: (weights, jnp.zeros(())),
        lambda weights: update(weights, -2 * x),
    ]
    return lax.switch(n % 3, branches, weights)


def now_and_then_in_a_loop(weights: Any, x: Any, n: Any) -> Any:
    def body(state: Any) -> Any:
        at, weights, _ = state
        return (at + 1, *now_and_then(weights, x, at))

    start = (0, weights, jnp.zeros(()))
    return lax.while_loop(lambda state: state[0] < n, body, start)[1:]


STEPS = [until, now_and_then, one_of_three, now_and_then_in_a_loop]


def close(found: Any, expected: Any) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("step", STEPS)
def test_a_gradient_inside_is_planned(step: Callable) -> None:
    planned = coop_jax.remat(step, 0.7)
    plan = planned.plan(WEIGHTS, X, 3)
    assert plan.budget is not None and plan.measured.total <= plan.budget
    assert plan.bodies and any(body.recomputed for body in plan.bodies)
    assert 1 < plan.flops < 1.4
    for n in range(4):
        close(planned(WEIGHTS, X, n), jax.jit(step)(WEIGHTS, X, n))


@pytest.mark.parametrize("step", [until, one_of_three])
def test_a_plan_of_what_is_inside_can_be_saved(step: Callable, tmp_path: Path) -> None:
    made = coop_jax.remat(step, 0.7).plan(WEIGHTS, X, 3)
    made.save(tmp_path / "plan.json")
    plan = coop_jax.load_plan(tmp_path / "plan.json")
    again = coop_jax.remat(step, plan=plan)
    assert again.plan(WEIGHTS, X, 3).measured == made.measured
    close(again(WEIGHTS, X, 2), jax.jit(step)(WEIGHTS, X, 2))


def test_what_each_reader_computes_itself_counts_once() -> None:
    def step(x: Any) -> Any:
        def body(x: Any, _: None) -> Any:
            doubled = 2 * x
            first, second = doubled @ WEIGHTS[0], doubled @ WEIGHTS[1]
            return first * second, None

        return lax.scan(body, x, length=5)[0]

    program = flatten(jax.jit(step).trace(X).jaxpr, [False])
    (k,) = (k for k, e in enumerate(program.equations) if e.primitive.name == "scan")
    ((place, body),) = inside_of(program, program.equations[k], (k,))
    ops = profile(body, (), 0, "cpu").problem.ops
    once = tuple((i,) for i in range(len(ops)))
    assert [op.name for op in ops] == ["dot_general", "dot_general", "mul"]
    written = BodyPlan(place, "", 5, 0, 0, 0, once, 0.0, ())
    again = replace(written, recomputed=1, positions=((0, 2), (1,), (2,)))
    product, doubling = 2 * ROWS * WIDTH**2, ROWS * WIDTH
    flops = program_flops(program)
    assert flops_with(program, [written], "cpu") == flops
    assert flops_with(program, [again], "cpu") == flops + 5 * (product + doubling)


def test_only_branches_over_the_room_are_planned() -> None:
    plan = coop_jax.remat(one_of_three, 0.7).plan(WEIGHTS, X, 3)
    assert sorted(body.place[1] for body in plan.bodies) == [0, 2]


def test_what_does_not_fit_is_named_with_what_it_takes_inside() -> None:
    with pytest.raises(coop_jax.BudgetError, match=r"inside cond .*now_and_then"):
        coop_jax.remat(now_and_then, 0.2).plan(WEIGHTS, X, 3)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("n", range(4))
def test_other_bodies_run_in_the_place_of_a_loops_own(step: Callable, n: int) -> None:
    closed = jax.jit(step).trace(WEIGHTS, X, n).jaxpr
    program = flatten(closed, [False] * len(closed.jaxpr.invars))
    assert [e.primitive.name for e in program.equations if bodies_of(e)]
    arguments = [*WEIGHTS, X, n]
    close(evaluate(program, arguments), program.evaluate(arguments))


def test_names_inside_a_body_are_of_its_own_equations() -> None:
    body, other = "jit(f)/coop_eqn_7/while/body/coop_row_", "jit(f)/coop_eqn_3/dot"
    buffer = OwnedBuffer(
        f"{body}2/transpose",
        "copy",
        64,
        allocation=0,
        offset=0,
        is_temporary=True,
        turned_for=f"{body}4/dot",
        read_inside=(f"{body}5/add", other),
    )
    around = replace(buffer, op_name=other, turned_for="", read_inside=())
    for_around = replace(buffer, turned_for=other, read_inside=())
    (first, second) = named(by_place([buffer, around, for_around]), (7,))
    assert first.op_name == second.op_name == "coop_eqn_2"
    assert first.turned_for == "coop_eqn_4"
    assert first.read_inside == ("coop_eqn_5", "")
    assert second.turned_for == ""


def test_what_is_turned_around_inside_a_body_is_planned() -> None:
    """Attention in chunks, transposed: of two loops, which equations have many."""
    heads, words, width = 2, 256, 32
    weight = jax.random.normal(KEYS[0], (width, 3 * width)) / 8
    x = jax.random.normal(KEYS[1], (words, width))

    def attend(queries: Any, keys: Any, values: Any) -> Any:
        def one(chunk: Any) -> Any:
            scores = jnp.einsum("qhd,khd->hqk", chunk, keys)
            return jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores), values)

        chunks = queries.reshape(8, words // 8, heads, width // heads)
        return lax.map(jax.checkpoint(one), chunks).reshape(words, width)

    def step(weight: Any, x: Any) -> Any:
        def loss(weight: Any) -> Any:
            y = x
            for _ in range(3):
                parts = jnp.split(jnp.tanh(y) @ weight, 3, -1)
                y += attend(*(p.reshape(words, heads, width // heads) for p in parts))
            return jnp.mean(y**2)

        value, grad = jax.value_and_grad(loss)(weight)
        return weight - 0.1 * grad, value

    planned = coop_jax.remat(step, "min")
    for found, expected in zip(
        planned(weight, x), jax.jit(step)(weight, x), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_what_has_effects_has_no_bodies() -> None:
    def printed(x: Any) -> Any:
        jax.debug.print("{}", x[0])
        return x * 2

    def step(x: Any) -> Any:
        x = lax.fori_loop(0, x.shape[0], lambda _, x: printed(x), x)
        return lax.cond(x[0] > 0, printed, jnp.sin, x)

    program = flatten(jax.jit(step).trace(jnp.ones(3)).jaxpr, [False])
    names = [e.primitive.name for e in program.equations]
    assert "cond" in names and not any(map(bodies_of, program.equations))


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
