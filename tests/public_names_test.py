"""Every public name explains itself, and its examples run."""

import doctest
import inspect
import pydoc
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import coop_jax
from tests.small_step import OPTIONS, SHAPES, train_step

PUBLIC = sorted(
    name
    for name, value in vars(coop_jax).items()
    if not name.startswith("_") and not inspect.ismodule(value)
)


def documented() -> Iterator[tuple[str, Any]]:
    """Public functions and classes, and the public methods of the classes."""
    for name in PUBLIC:
        value = getattr(coop_jax, name)
        yield name, value
        if inspect.isclass(value):
            for method, function in vars(value).items():
                if not method.startswith("_") and inspect.isfunction(function):
                    yield f"{name}.{method}", function


DOCUMENTED = dict(documented())


def test_the_public_names_are_these() -> None:
    assert PUBLIC == [
        "Action", "Argument", "BudgetError", "Compared", "Frontier", "LargestBatch",
        "LoopPlan", "MemoryUse", "Plan", "PlanError", "Rematerialized", "frontier",
        "largest_batch", "load_plan", "measure", "record", "remat",
    ]  # fmt: skip


def test_help_shows_every_name_on_one_screen() -> None:
    text = pydoc.plain(pydoc.render_doc(coop_jax))
    description = text.partition("PACKAGE CONTENTS")[0]
    assert len(description.splitlines()) <= 24
    for name in ("remat", "Plan", "load_plan", "measure", "frontier", "largest_batch",
                 "record", "BudgetError", "PlanError"):  # fmt: skip
        assert name in description


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_public_name_says_what_it_takes_gives_and_raises(name: str) -> None:
    value = DOCUMENTED[name]
    text = inspect.getdoc(value) or ""
    assert text, name
    if inspect.isfunction(value):
        taken = [p for p in inspect.signature(value).parameters if p != "self"]
        assert "Example:" in text
        assert not taken or "Args:" in text or "*args" in str(taken) or "args" in taken
    elif not issubclass(value, Exception):
        assert "Attributes:" in text or name == "Rematerialized"


@pytest.mark.parametrize("name", [n for n, v in DOCUMENTED.items() if v.__doc__])
def test_the_example_of_a_public_name_runs(name, tmp_path, monkeypatch) -> None:
    examples = doctest.DocTestParser().get_examples(
        inspect.getdoc(DOCUMENTED[name]) or ""
    )
    if not examples:
        return
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(_defaults(), "time_limit", 0.3)
    state, batch = SHAPES
    step = coop_jax.remat(train_step, 0.6, **OPTIONS)
    if name in ("load_plan", "Plan.save"):
        step.plan(state, batch)
    namespace = {
        "coop_jax": coop_jax, "jax": jax, "jnp": jnp, "train_step": train_step,
        "step": step, "state": state, "batch": batch,
    }  # fmt: skip
    if name == "largest_batch":
        pytest.skip("its sizes are those of a real model")
    for example in examples:
        exec(compile(example.source, name, "single"), namespace)


def _defaults() -> dict[str, Any]:
    defaults = coop_jax.remat.__kwdefaults__
    assert defaults is not None
    return defaults


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
