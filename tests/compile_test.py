"""Probes, which are compiled for their bytes alone."""

import contextlib
import gc

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import coop_jax
from coop_jax._fitting.compile import FlatStep, flat_step
from coop_jax._fitting.freeing import let_go
from coop_jax._fitting.solve import Workbench
from coop_jax._loops.loop_solve import LoopWorkbench
from coop_jax._measure import memory_use
from coop_jax._planning.planner import Effort

ROWS, WIDTH = 256, 64
W = jax.ShapeDtypeStruct((4, WIDTH, WIDTH), jnp.float32)
X = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
KEY = jax.eval_shape(jax.random.key, 0)


def scanned(ws, x, key):
    def loss_of(ws):
        return jnp.mean(lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, ws)[0])

    return jax.tree.map(lambda w, g: w - g, ws, jax.grad(loss_of)(ws))


def softmaxes(ws, x, key):
    def loss_of(ws):
        y = x
        for w in ws:
            y = jax.nn.softmax((y @ w).reshape(-1, 16)).reshape(y.shape)
            y = jnp.where(jax.random.bernoulli(key, 0.5, y.shape), y, 0)
        return jnp.mean(y)

    return ws - jax.grad(loss_of)(ws)


def sorted_images(ws, x, key):
    images = x.reshape(4, 16, 16, -1)
    kernels = ws[0].reshape(1, 1, 16, -1)
    y = lax.conv_general_dilated(
        images, kernels, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jnp.sort(y.reshape(-1, 16), axis=0)


def step_of(function) -> FlatStep:
    args = (W, X, KEY)
    return flat_step(jax.jit(function).trace(*args), jax.tree.leaves(args))


@pytest.mark.parametrize("function", [scanned, softmaxes, sorted_images])
def test_a_probe_takes_the_bytes_of_the_program(function):
    step = step_of(function)
    assert step.has_probes == (jax.default_backend() == "cpu")
    run = step.program.evaluate
    probe, program = (
        memory_use(compiled(lambda *values: run(values)))
        for compiled in (step.probe, step.compile)
    )
    assert probe == program


def test_a_program_that_is_handed_out_was_compiled_in_full():
    plan = coop_jax.remat(softmaxes, 0.8).plan(W, X, KEY)
    lowered = coop_jax.remat(softmaxes, plan=plan).lower(W, X, KEY)
    assert memory_use(lowered.compile()) == plan.measured
    assert plan.compiles >= 3


def test_programs_that_were_let_go_are_freed_and_can_be_finished():
    bench = Workbench(step_of(softmaxes))
    bench.fit(int(0.8 * bench.unplanned.total), Effort())
    bench.finish(bench.candidates[-1])
    gc.collect()
    before = live_executables()
    let_go([bench])
    gc.collect()
    assert live_executables() <= before - 2
    kept = bench.candidates[-1]
    assert bench.finish(kept).memory == kept.memory


def test_programs_of_rewritten_scans_are_let_go_too():
    bench = LoopWorkbench(step_of(scanned))
    for share in (0.8, 0.6, 0.4):
        with contextlib.suppress(coop_jax.BudgetError):
            bench.fit(int(share * bench.unplanned.total), Effort())
    gc.collect()
    before, benches = live_executables(), bench.programs.benches
    assert len(benches) > 1
    let_go(benches)
    gc.collect()
    assert live_executables() <= before - len(benches)


def live_executables() -> int:
    return len(jax.devices()[0].client.live_executables())


def test_a_program_larger_than_its_probe_is_not_handed_out(monkeypatch):
    """The full program of the first plan is made to miss; another plan takes over."""
    budget = int(0.8 * coop_jax.measure(softmaxes, W, X, KEY).total)
    compile_it, seen = FlatStep.compile, []

    def larger_at_first(step, function):
        compiled = compile_it(step, function)
        seen.append(compiled)
        return _Larger(compiled) if len(seen) == 1 else compiled

    monkeypatch.setattr(FlatStep, "compile", larger_at_first)
    plan = coop_jax.remat(softmaxes, budget).plan(W, X, KEY)
    assert len(seen) == 2
    assert plan.measured.total <= budget


class _Larger:
    """A compiled program that says it takes twice its temporaries."""

    def __init__(self, compiled):
        self._compiled = compiled

    def memory_analysis(self):
        return _Twice(self._compiled.memory_analysis())


class _Twice:
    def __init__(self, analysis):
        self._analysis = analysis

    def __getattr__(self, name):
        size = getattr(self._analysis, name)
        return 2 * size if name == "temp_size_in_bytes" else size


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
