"""Saved plans: nothing is lost on the way, and what does not apply is refused."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import coop_jax
from coop_jax._fitting import saved
from coop_jax._fitting.compile import flat_step
from coop_jax._plan import Plan
from coop_jax._plan_file import _fields, from_text, to_text
from coop_jax._program.origin import Origin, differences, origin_of, program_digest
from coop_jax._program.profile import profile

ROOT = Path(__file__).absolute().parent.parent
PAGE = (ROOT / "docs" / "plan_format.md").read_text()
SHAPES = (
    [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 6,
    jax.ShapeDtypeStruct((512, 64), jnp.float32),
)


def train_step(weights, x, rate=0.1):
    def loss_of(weights):
        y = x
        for w in weights:
            y = jnp.tanh(y @ w)
        return jnp.mean(y**2)

    loss, grads = jax.value_and_grad(loss_of)(weights)
    return [w - rate * g for w, g in zip(weights, grads, strict=True)], loss


def arrays() -> tuple[list[jax.Array], jax.Array]:
    keys = jax.random.split(jax.random.key(0), 7)
    weights = [jax.random.normal(key, (64, 64)) / 8 for key in keys[1:]]
    return weights, jax.random.normal(keys[0], (512, 64))


@pytest.fixture(scope="module")
def plan() -> Plan:
    step = coop_jax.remat(train_step, 0.7, donate_argnums=0, time_limit=0.3)
    return step.plan(*SHAPES)


def test_a_plan_is_the_same_after_saving_and_loading(plan, tmp_path) -> None:
    plan.save(tmp_path / "plan.json")
    assert coop_jax.load_plan(tmp_path / "plan.json") == plan
    again = dataclasses.replace(plan, floor=None)
    assert from_text(to_text(again)) == again


def test_a_loaded_plan_runs_without_searching(plan, tmp_path, monkeypatch) -> None:
    plan.save(tmp_path / "plan.json")

    def search(*_: Any) -> None:
        raise AssertionError("planned again")

    monkeypatch.setattr("coop_jax._fitting.fit.LoopWorkbench", search)
    loaded = coop_jax.load_plan(tmp_path / "plan.json")
    step = coop_jax.remat(train_step, plan=loaded, donate_argnums=0)
    assert step.plan(*SHAPES) == plan
    assert coop_jax.measure(step, *SHAPES) == plan.measured
    expected = jax.jit(train_step)(*arrays())
    assert jax.tree.all(jax.tree.map(jnp.allclose, step(*arrays()), expected))


@pytest.mark.parametrize("has_watershed", [True, False])
def test_a_loaded_plan_has_a_watershed_only_if_it_was_planned_with_one(
    has_watershed: bool, plan, monkeypatch
) -> None:
    emitted = []

    def with_one(*of: Any, **options: Any) -> Any:
        found = profile(*of, **options)
        problem = dataclasses.replace(found.problem, has_watershed=True)
        return dataclasses.replace(found, problem=problem)

    monkeypatch.setattr(saved, "profile", with_one)
    monkeypatch.setattr(saved, "emit", lambda found, *_: emitted.append(found))
    problem = dataclasses.replace(plan.problem, has_watershed=has_watershed)
    trace = jax.jit(train_step, donate_argnums=0).trace(*SHAPES)
    step = flat_step(trace, jax.tree.leaves(SHAPES))
    saved._function(step, dataclasses.replace(plan, problem=problem))
    assert [found.problem.has_watershed for found in emitted] == [has_watershed]


def test_a_step_that_fits_as_written_is_saved_too(tmp_path) -> None:
    plan = coop_jax.remat(train_step, "1GiB", donate_argnums=0).plan(*SHAPES)
    plan.save(tmp_path / "plan.json")
    loaded = coop_jax.load_plan(tmp_path / "plan.json")
    assert not loaded.is_planned
    step = coop_jax.remat(train_step, plan=loaded, donate_argnums=0)
    assert coop_jax.measure(step, *SHAPES) == plan.measured


def narrower(*args):
    return train_step(*args)[0]


def faster(weights, x):
    return train_step(weights, x, rate=0.2)


@pytest.mark.parametrize(
    ("step", "shapes", "options", "reason"),
    [
        (faster, SHAPES, {"donate_argnums": 0}, "computes something else"),
        (narrower, SHAPES, {"donate_argnums": 0}, "computes something else"),
        (train_step, SHAPES, {}, r"Array 0 was float32\[64,64\] donated when"),
        (
            train_step,
            (SHAPES[0], jax.ShapeDtypeStruct((256, 64), jnp.float32)),
            {"donate_argnums": 0},
            r"Array 6 was float32\[512,64\] .* here it is float32\[256,64\]",
        ),
        (train_step, (SHAPES[0][:5], SHAPES[1]), {"donate_argnums": 0}, "7 arrays"),
    ],
)
def test_a_plan_of_another_step_is_refused(plan, step, shapes, options, reason) -> None:
    with pytest.raises(coop_jax.PlanError, match=reason):
        coop_jax.remat(step, plan=plan, **options).plan(*shapes)


def origin(**changed: Any) -> Origin:
    same = Origin("digest", ("float32[2]",), "cpu", "cpu", ("coop_jax 1", "jax 2"))
    return dataclasses.replace(same, **changed)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"versions": ("coop_jax 1", "jax 3")}, "made with jax 2; this is jax 3"),
        ({"platform": "gpu", "device": "H200"}, "for cpu (cpu); this step runs on gpu"),
        ({"program": "other"}, "computes something else"),
    ],
)
def test_every_difference_is_named(changed, said) -> None:
    assert differences(origin(), origin()) == []
    (reason,) = differences(origin(), origin(**changed))
    assert said in reason


def test_a_plan_that_xla_gives_more_bytes_is_refused(plan) -> None:
    tight = dataclasses.replace(
        plan, budget=1, measured=dataclasses.replace(plan.measured, temp=1)
    )
    with pytest.raises(coop_jax.PlanError, match="no longer fits"):
        coop_jax.remat(train_step, plan=tight, donate_argnums=0).plan(*SHAPES)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda c: [], "coop_jax plan"),
        (lambda c: c | {"format": "other"}, "coop_jax plan"),
        (lambda c: c | {"version": 99}, "version 99"),
        (lambda c: c | {"plan": {}}, "`plan` has not the fields budget"),
        (lambda c: _with(c, "flops", "many"), "`plan.flops` is not a number: 'many'"),
        (lambda c: _with(c, "positions", [["a"]]), "`plan.positions\\[0\\]\\[0\\]`"),
        (lambda c: _with(c, "positions", []), "changed by hand"),
        (lambda c: _with(c, "in_stages", True), "changed by hand"),
        (lambda c: _with(c, "actions", {"columns": 1}), "table of columns and rows"),
        (
            lambda c: _with(c, "actions", {"columns": ["name"], "rows": [[1, 2]]}),
            "`plan.actions\\[0\\]` has not 1 items",
        ),
        (lambda c: _with(c, "compiles", True), "`plan.compiles` is not an integer"),
    ],
)
def test_a_spoilt_file_is_refused_with_its_place(plan, spoil, reason) -> None:
    content = json.loads(to_text(plan))
    with pytest.raises(coop_jax.PlanError, match=reason):
        from_text(json.dumps(spoil(content)))


def _with(content: dict, field: str, value: Any) -> dict:
    return content | {"plan": content["plan"] | {field: value}}


def test_every_cut_of_a_file_is_refused(plan, tmp_path) -> None:
    text = to_text(plan)
    for length in range(0, len(text), len(text) // 50):
        (tmp_path / "cut.json").write_text(text[:length])
        with pytest.raises(coop_jax.PlanError, match="cut short"):
            coop_jax.load_plan(tmp_path / "cut.json")
    (tmp_path / "binary").write_bytes(b"\x80\x00")
    with pytest.raises(coop_jax.PlanError, match="not a saved plan"):
        coop_jax.load_plan(tmp_path / "binary")


def test_the_page_on_the_format_lists_every_field() -> None:
    listed = {
        name: re.findall(r"`(\w+)`", " ".join(re.findall(r"^\|([^|]*)\|", text, re.M)))
        for name, text in re.findall(r"^#+ `(\w+)`\n(.*?)(?=^#)", PAGE, re.M | re.S)
    }
    assert listed == {kind.__name__: list(_fields(kind)) for kind in kinds(Plan)}


def kinds(kind: type) -> set[type]:
    """The dataclasses that one is made of, itself included."""
    found, unread = {kind}, [*_fields(kind).values()]
    while unread:
        wanted = unread.pop()
        if dataclasses.is_dataclass(wanted) and isinstance(wanted, type):
            found |= kinds(wanted)
        unread += typing.get_args(wanted)
    return found


def test_the_cache_plans_once_for_all_processes(tmp_path) -> None:
    def planned(**options: Any) -> Plan:
        step = coop_jax.remat(
            train_step,
            0.7,
            donate_argnums=0,
            cache_dir=tmp_path,
            time_limit=0.3,
            **options,
        )
        return step.plan(*SHAPES)

    first = planned()
    (file,) = tmp_path.iterdir()
    assert planned() == first
    planned(policy="coop-online")
    assert len(list(tmp_path.iterdir())) == 2
    file.write_text(file.read_text()[:1000])
    again = planned()
    assert again.origin == first.origin and again.is_planned
    assert coop_jax.load_plan(file) == again


def test_the_cache_joins_that_of_jax(tmp_path) -> None:
    source = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import jax
import coop_jax
from tests.plan_file_test import SHAPES, train_step
step = coop_jax.remat(train_step, 0.7, donate_argnums=0, time_limit=0.3)
plan = step.plan(*SHAPES)
print(plan.fingerprint, plan.origin.program)
"""
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, "-c", source],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "coop_jax").iterdir()
    plan = coop_jax.load_plan(file)
    assert plan.origin is not None
    # Another process finds the same program and the same plan.
    assert done.stdout.split() == [plan.fingerprint, plan.origin.program]
    assert plan.origin == origin_of(flattened(train_step))


def flattened(step: Any) -> Any:
    traced = jax.jit(step, donate_argnums=0).trace(*SHAPES)
    return flat_step(traced, jax.tree.leaves(SHAPES))


def test_the_digest_follows_what_is_computed() -> None:
    def digest(step: Any) -> str:
        return program_digest(flattened(step).program)

    def renamed(weights, values):
        return train_step(weights, values)

    assert digest(renamed) == digest(train_step)
    assert digest(faster) != digest(train_step)


def test_the_digest_does_not_follow_what_numpy_prints() -> None:
    def scaled(factor: float) -> Any:
        return lambda weights, values: (
            [factor * w for w in weights],
            lax.scan(lambda c, _: (factor * c, None), values, None, length=3),
        )

    def digest(factor: float) -> str:
        return program_digest(flattened(scaled(factor)).program)

    expected = digest(0.9995)
    with np.printoptions(precision=3, suppress=True, legacy="1.13"):
        assert digest(0.9995) == expected
    assert digest(0.99950003) != expected


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
