"""In-place calls in compiled programs and in plans."""

import dataclasses
import logging
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from benchmarks.float64 import evaluate, relative_error
from benchmarks.inplace import (
    CASES,
    arguments,
    as_call,
    dropout,
    layer_norm,
    softmax,
    surrounded,
    temporaries,
)
from coop_jax._fitting.compile import flat_step
from coop_jax._fitting.emit import emit
from coop_jax._fitting.overwritten import overwritten_operands
from coop_jax._fitting.solve import Workbench
from coop_jax._native import inplace as _inplace
from coop_jax._planning.planner import Effort
from coop_jax._planning.policies import PLANNERS, Planner
from coop_jax._program.profile import profile
from coop_jax._program.scopes import scope

needs_library = pytest.mark.skipif(
    not _inplace.library_path().exists(),
    reason="the native library was not built: it needs a C++ compiler",
)


def planned(chain, dtype=jnp.float32):
    """A compiled step whose chain is an in-place call, and its profile."""
    args = arguments(dtype, 256, 512)
    step = flat_step(jax.jit(surrounded(chain)).trace(*args), jax.tree.leaves(args))
    written = lambda *values: step.program.evaluate(values, scope)  # noqa: E731
    _, buffers = step.compile_with_buffers(written)
    found = profile(step.program, buffers, 0, "cpu", inplace=True)
    positions = tuple((op,) for op in range(len(found.problem.ops)))
    return step.compile_with_buffers(emit(found, positions)), found


@pytest.fixture
def words_in_loops(monkeypatch) -> None:
    """Random words are drawn as JAX does for CPU, and XLA holds them."""
    monkeypatch.setattr("coop_jax._fitting.compile.in_line", lambda program: program)


# Compiled programs


@needs_library
@pytest.mark.usefixtures("words_in_loops")
@pytest.mark.parametrize("chain", [softmax, layer_norm, dropout])
def test_the_call_writes_where_its_operand_was_and_nothing_is_copied(chain) -> None:
    assert _inplace.is_available("cpu")
    (compiled, buffers), found = planned(chain)
    assert len(found.calls) == 1
    text = compiled.as_text()
    (call,) = re.findall(r".*custom_call_target=\"coop_jax_inplace\".*", text)
    assert "output_to_operand_aliasing={{}: (" in call
    entry = text[text.index("ENTRY") :]
    assert not re.search(r" copy\(| copy-start\(", entry)
    size = 256 * 512 * 4
    places = {(b.allocation, b.offset) for b in buffers if b.size == size}
    assert len(places) == 1


@needs_library
def test_a_donated_operand_is_the_result() -> None:
    assert _inplace.is_available("cpu")
    args = [jax.random.normal(jax.random.key(0), (64, 64)), *[jnp.ones(64)] * 2]
    call = as_call(softmax, [*args, jax.random.key(0)])
    assert call is not None
    compiled = jax.jit(call, donate_argnums=0).lower(*args, jax.random.key(0)).compile()
    before = args[0].unsafe_buffer_pointer()
    after = compiled(*args, jax.random.key(0)).unsafe_buffer_pointer()
    assert before == after


@needs_library
def test_an_operand_that_is_read_later_is_copied() -> None:
    assert _inplace.is_available("cpu")
    x = jax.random.normal(jax.random.key(0), (64, 64))
    call = as_call(softmax, [x, x[0], x[0], jax.random.key(0)])
    assert call is not None
    both = jax.jit(lambda x: (call(x, x[0], x[0], jax.random.key(0)), x + 1))(x)
    np.testing.assert_allclose(both[0], jax.nn.softmax(x), rtol=1e-5)
    np.testing.assert_array_equal(both[1], x + 1)


@needs_library
def test_the_call_can_be_vectorized() -> None:
    assert _inplace.is_available("cpu")
    x = jax.random.normal(jax.random.key(0), (3, 8, 16))
    call = as_call(lambda x: jax.nn.softmax(x), [x[0]])
    assert call is not None
    np.testing.assert_allclose(jax.vmap(call)(x), jax.nn.softmax(x), rtol=1e-5)


@needs_library
@pytest.mark.parametrize("rows", [512, 4096])
def test_calls_of_one_program_share_the_threads(rows: int) -> None:
    """Of small operands a caller takes its share, large ones it leaves to others."""
    assert _inplace.is_available("cpu")
    keys = jax.random.split(jax.random.key(0), 4)
    values = [jax.random.normal(key, (rows, 512)) for key in keys]
    call = as_call(softmax, (values[0], values[0][0], values[0][0], keys[0]))
    assert call is not None

    def step(*operands):
        return [call(x, x[0], x[0], keys[0]) for x in operands]

    compiled = jax.jit(step).lower(*values).compile()
    text = compiled.as_text()
    assert text is not None and text.count('target="coop_jax_inplace"') == 4
    want = [np.asarray(jax.nn.softmax(x)) for x in values]
    for _ in range(10):
        for x, y in zip(want, compiled(*values), strict=True):
            np.testing.assert_allclose(y, x, rtol=2e-5, atol=1e-7)


@needs_library
def test_a_wrong_buffer_is_refused_by_name() -> None:
    assert _inplace.is_available("cpu")
    x = jnp.ones((8, 16))
    call = as_call(lambda x: jax.nn.softmax(x), [x])
    assert call is not None
    made = call.made
    for shape, dtype, said in (
        ((16, 8), jnp.float32, r"f32\[16,8\].*takes f32\[8,16\]"),
        ((8, 16, 1), jnp.float32, r"f32\[8,16,1\]"),
        ((8, 16), jnp.int32, r"s32\[8,16\]"),
        ((8, 16), jnp.int8, "no program knows"),
    ):
        wrong = dataclasses.replace(
            made, operands=(dataclasses.replace(made.operands[0], shape=shape),)
        )
        with pytest.raises(jax.errors.JaxRuntimeError, match=f"INVALID.*{said}"):
            _inplace.call(wrong, [jnp.ones(shape, dtype)])
    cut = dataclasses.replace(made, words=made.words[:-3])
    with pytest.raises(jax.errors.JaxRuntimeError, match="truncated"):
        _inplace.call(cut, [x])


# Bytes


@needs_library
@pytest.mark.parametrize("name", ["softmax", "layer norm", "cast, softmax, cast"])
def test_calls_take_fewer_bytes_than_xla_alone(name: str) -> None:
    assert _inplace.is_available("cpu")
    plain, called = temporaries(*CASES[name])
    assert called is not None
    assert called <= 0.55 * plain


@needs_library
@pytest.mark.parametrize(
    "name", ["gelu", "bias, gelu (erf)", "batch norm, saved statistics",
             "cast chain, bfloat16", "dropout"]
)  # fmt: skip
def test_what_xla_computes_in_place_is_left_to_it(name: str) -> None:
    assert temporaries(*CASES[name])[1] is None


@needs_library
@pytest.mark.usefixtures("words_in_loops")
@pytest.mark.parametrize(("chain", "on_gpu"), [(softmax, 1), (dropout, 0)])
def test_on_gpu_a_call_is_for_what_xla_makes_one_kernel_of(chain, on_gpu) -> None:
    args = arguments(jnp.float32, 256, 512)
    step = flat_step(jax.jit(surrounded(chain)).trace(*args), jax.tree.leaves(args))
    written = lambda *values: step.program.evaluate(values, scope)  # noqa: E731
    _, buffers = step.compile_with_buffers(written)
    found = {
        platform: profile(step.program, buffers, 0, platform, inplace=True)
        for platform in ("cpu", "gpu")
    }
    assert len(found["cpu"].calls) == 1
    assert len(found["gpu"].calls) == on_gpu


@needs_library
def test_only_an_operand_that_is_not_read_again_is_overwritten() -> None:
    _, found = planned(softmax)
    (call,) = found.calls
    source = found.problem.producer[found.problem.ops[call].inputs[0]]
    last = len(found.problem.ops)
    once = [[op] for op in range(last)]
    assert (call, call) in overwritten_operands(found, once)
    # A second run needs the operand once more, unless that is computed again first.
    assert (call, call) not in overwritten_operands(found, [*once, [call]])
    again = overwritten_operands(found, [*once, [source, call]])
    assert {(call, call), (last, call)} <= set(again)


# Plans

LAYERS, ROWS, WIDTH = 2, 512, 128
SHAPES = ((WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH))


def train_step(weights, x, key):
    def loss_of(weights):
        y = x
        for i, (w, v) in enumerate(weights):
            scores = jax.nn.softmax(y @ w)
            keep = jax.random.bernoulli(jax.random.fold_in(key, i), 0.9, scores.shape)
            y = y + jnp.where(keep, scores, 0) / 0.9 @ v
        return jnp.mean(y**2)

    loss, grads = jax.value_and_grad(loss_of)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), loss


def step_arguments():
    keys = jax.random.split(jax.random.key(0), 2 * LAYERS)
    weights = [
        tuple(
            jax.random.normal(k, shape) for k, shape in zip(pair, SHAPES, strict=True)
        )
        for pair in zip(keys[::2], keys[1::2], strict=True)
    ]
    return weights, jax.random.normal(keys[0], (ROWS, WIDTH)), jax.random.key(1)


@needs_library
@pytest.mark.usefixtures("words_in_loops")
def test_calls_lower_the_floor_and_change_no_result(tmp_path) -> None:
    args = step_arguments()
    plain = coop_jax.remat(train_step, "min", inplace=False)
    auto = coop_jax.remat(train_step, "min")
    before, after = plain.plan(*args), auto.plan(*args)
    assert not before.has_calls and after.has_calls
    assert after.measured.total < before.measured.total
    for mine, theirs in zip(
        jax.tree.leaves(auto(*args)), jax.tree.leaves(train_step(*args)), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    # A budget that only calls reach is met with them, and the plan is kept as it is.
    between = (before.measured.total + after.measured.total) // 2
    planned = coop_jax.remat(train_step, between).plan(*args)
    assert planned.has_calls and planned.measured.total <= between
    planned.save(tmp_path / "plan.json")
    loaded = coop_jax.load_plan(tmp_path / "plan.json")
    again = coop_jax.remat(train_step, plan=loaded)
    assert again.plan(*args) == planned
    np.testing.assert_allclose(again(*args)[1], train_step(*args)[1], rtol=1e-5)


@needs_library
def test_calls_are_as_close_to_float64_as_the_step_as_written() -> None:
    args = step_arguments()
    exact = evaluate(train_step, *args)
    written = relative_error(jax.jit(train_step)(*args), exact)
    planned = coop_jax.remat(train_step, 0.9, inplace=True)
    assert planned.plan(*args).has_calls
    assert relative_error(planned(*args), exact) <= 1.5 * written


def workbench(inplace):
    args = step_arguments()
    step = flat_step(jax.jit(train_step).trace(*args), jax.tree.leaves(args))
    return Workbench(step, inplace=inplace)


@needs_library
@pytest.mark.parametrize("are_smaller", [True, False])
def test_of_the_smallest_with_calls_and_without_one_is_compiled(are_smaller) -> None:
    bench, sizes = workbench("auto"), {}

    def smallest(problem, effort, ways_down):
        has_calls = problem is not bench.baseline.profile.problem
        more = 10**9 if has_calls != are_smaller else 0
        found = PLANNERS["coop"].smallest(problem, effort, ways_down)
        sizes[has_calls] = found.size + more
        return dataclasses.replace(found, size=found.size + more)

    bench.planner = dataclasses.replace(bench.planner, smallest=smallest)
    bench.floor(Effort(rounds=2))
    assert sizes.keys() == {False, True}
    compiled = {bool(candidate.profile.calls) for candidate in bench.candidates}
    assert compiled == {are_smaller}


@needs_library
def test_before_a_budget_is_refused_the_other_smallest_is_compiled() -> None:
    bench = workbench("auto")

    def smallest(problem, effort, ways_down):
        found = PLANNERS["coop"].smallest(problem, effort, ways_down)
        if problem is not bench.baseline.profile.problem:
            return found
        # Smaller by the model, but what XLA makes of it is the step as written.
        home = tuple((k,) for k in problem.program_order)
        return dataclasses.replace(
            found, size=1, positions=home, schedule=problem.program_order
        )

    def plan(problem, pool, effort, starts, ways_down):
        found = PLANNERS["coop"].plan(problem, pool, effort, starts, ways_down)
        return dataclasses.replace(found, fits=False)

    bench.planner = Planner(plan, smallest)
    budget = int(0.75 * bench.unplanned.total)
    found = bench.fit(budget, Effort(rounds=2))
    assert found.memory.total <= budget and found.profile.calls
    assert {bool(candidate.profile.calls) for candidate in bench.candidates} == {
        False,
        True,
    }


@needs_library
def test_a_budget_met_without_calls_is_met_without() -> None:
    args = step_arguments()
    assert not coop_jax.remat(train_step, 0.9).plan(*args).has_calls


@needs_library
def test_what_calls_compute_counts_as_operations() -> None:
    bench = workbench(True)
    found = bench.fit(int(0.9 * bench.unplanned.total), Effort())
    alone = bench.finish(found).compiled.cost_analysis()["flops"]
    assert alone < found.operations
    assert found.operations == pytest.approx(bench.baseline.operations, rel=0.1)


def test_the_choice_is_checked_at_once() -> None:
    with pytest.raises(ValueError, match="inplace 'yes'"):
        coop_jax.remat(train_step, 0.9, inplace="yes")


# Without the library


@pytest.fixture
def no_library(monkeypatch, tmp_path):
    monkeypatch.setattr(_inplace, "library_path", lambda *_: tmp_path / "lib.so")
    _inplace.why_unavailable.cache_clear()
    yield
    _inplace.why_unavailable.cache_clear()


def test_without_the_library_plans_have_no_calls_and_it_is_said_once(
    no_library, caplog
) -> None:
    args = step_arguments()
    with caplog.at_level(logging.WARNING, "coop_jax"):
        for _ in range(2):
            assert not coop_jax.remat(train_step, 0.8).plan(*args).has_calls
    (record,) = [r for r in caplog.records if "in-place" in r.message]
    assert "was not built" in record.message
    with pytest.raises(RuntimeError, match="needs the native library"):
        coop_jax.remat(train_step, 0.8, inplace=True).plan(*args)


@needs_library
def test_a_library_of_a_newer_interface_is_not_registered(monkeypatch) -> None:
    monkeypatch.setattr(_inplace, "_runtime_minor", lambda: 2)
    _inplace.why_unavailable.cache_clear()
    try:
        assert "FFI interface" in str(_inplace.why_unavailable("cpu"))
    finally:
        _inplace.why_unavailable.cache_clear()


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
