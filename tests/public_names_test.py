"""Every public name explains itself, and its examples run."""

import dataclasses
import doctest
import inspect
import pydoc
import re
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
    """Public functions and classes, with what is public in the classes."""
    for name in PUBLIC:
        value = getattr(coop_jax, name)
        yield name, value
        if inspect.isclass(value):
            for inner, member in vars(value).items():
                is_said = inspect.isfunction(member) or isinstance(member, property)
                if not inner.startswith("_") and is_said:
                    yield f"{name}.{inner}", member


DOCUMENTED = dict(documented())
STEP = coop_jax.remat(train_step, 0.6, **OPTIONS)


def test_the_public_names_are_these() -> None:
    assert PUBLIC == [
        "Action", "Argument", "BodyPlan", "BudgetError", "Compared", "Frontier",
        "LargestBatch", "LoopPlan", "MemoryUse", "Plan", "PlanError", "Rematerialized",
        "frontier", "largest_batch", "load_plan", "measure", "record", "remat",
    ]  # fmt: skip


def test_help_shows_every_name_on_one_screen() -> None:
    text = pydoc.plain(pydoc.render_doc(coop_jax))
    description = text.partition("PACKAGE CONTENTS")[0]
    assert len(description.splitlines()) <= 24
    assert len(text.splitlines()) <= 50
    for name in ("remat", "Plan", "load_plan", "measure", "frontier", "largest_batch",
                 "record", "BudgetError", "PlanError"):  # fmt: skip
        assert name in description


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_public_name_says_what_it_takes_gives_and_raises(name: str) -> None:
    value = DOCUMENTED[name]
    text = inspect.getdoc(value) or ""
    if isinstance(value, property):
        assert text
        return
    assert "\nExample:" in text
    if dataclasses.is_dataclass(value):
        said = re.findall(r"^  (\w+):", text.partition("Attributes:")[2], re.M)
        assert set(said) == {field.name for field in dataclasses.fields(value)}
    elif inspect.isfunction(value):
        signature = inspect.signature(value)
        taken = [p for p in signature.parameters.values() if p.name != "self"]
        said = re.findall(r"^  (\**\w+):", text.partition("Args:")[2], re.M)
        assert set(map(_starred, taken)) <= set(said)
        assert signature.return_annotation in (None, "None") or "\nReturns:" in text


def _starred(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
    return stars.get(parameter.kind, "") + parameter.name


class _WhereGiven(doctest.OutputChecker):
    """Looks at the output of those examples alone that show one."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return not want or super().check_output(want, got, optionflags)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_example_of_a_public_name_runs(name, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(_defaults(), "time_limit", 0.3)
    state, batch = SHAPES
    namespace = {
        "coop_jax": coop_jax, "jax": jax, "jnp": jnp, "train_step": train_step,
        "step": STEP, "state": state, "batch": batch,
    }  # fmt: skip
    text = inspect.getdoc(DOCUMENTED[name]) or ""
    test = doctest.DocTestParser().get_doctest(text, namespace, name, None, None)
    said: list[str] = []
    runner = doctest.DocTestRunner(_WhereGiven())
    assert runner.run(test, out=said.append).failed == 0, "".join(said)


def _defaults() -> dict[str, Any]:
    defaults = coop_jax.remat.__kwdefaults__
    assert defaults is not None
    return defaults


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
