"""Plans as text: what `print(plan)` and `plan.table()` say."""

import dataclasses
import os

import jax
import jax.numpy as jnp
import pytest

import coop_jax
from coop_jax._fitting.describe import without_transforms
from coop_jax._plan import Action, Plan
from coop_jax._report.table import table_text

MIB = 1024**2


def train_step(weights, x):
    def loss_of(weights):
        y = x
        for i, w in enumerate(weights):
            with jax.named_scope(f"layer_{i}"):
                y = jnp.tanh(y @ w)
        return jnp.mean(y**2)

    loss, grads = jax.value_and_grad(loss_of)(weights)
    return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)], loss


SHAPES = (
    [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 6,
    jax.ShapeDtypeStruct((512, 64), jnp.float32),
)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return coop_jax.remat(train_step, 0.7, donate_argnums=0, time_limit=0.3).plan(
        *SHAPES
    )


def test_prints_at_most_25_lines_with_every_number(plan: Plan) -> None:
    lines = str(plan).splitlines()
    assert len(lines) <= 25
    labels = [line.split()[0] for line in lines[1:14]]
    assert labels == [
        "budget", "unplanned", "planned", "predicted", "fixed", "smallest", "overhead",
        "kept", "moved", "recomputed", "in", "planning", "plan",
    ]  # fmt: skip
    assert f"({plan.measured.total:,} bytes)" in lines[3]
    assert plan.fingerprint in lines[13]


@pytest.mark.parametrize("step", [lambda x: (), lambda x: x, lambda x: jnp.ones(3)])
def test_a_step_that_does_nothing_has_a_plan(step, tmp_path) -> None:
    plan = coop_jax.remat(step, "min").plan(jnp.ones(4))
    assert "(+0.0% off)" in str(plan) and plan.explain() and plan.table()
    plan.plot(tmp_path / "plan.html")
    plan.plot(tmp_path / "plan.svg")
    plan.to_perfetto(tmp_path / "trace.json")


def test_actions_know_their_layer_type_and_line(plan: Plan) -> None:
    forward = [a for a in plan.actions if a.primitive == "tanh"]
    assert {a.scope for a in forward} == {f"layer_{i}" for i in range(6)}
    assert {a.type for a in forward} == {"float32[512,64]"}
    assert all("plan_test.py:" in a.source for a in forward)
    assert not any(a.is_backward for a in forward)
    assert any(a.is_backward for a in plan.actions)
    assert {a.kind for a in plan.actions if a.runs > 1} == {"recomputed"}


def test_the_schedule_runs_every_operation_and_its_repeats(plan: Plan) -> None:
    assert sorted(set(plan.schedule)) == list(range(len(plan.problem.ops)))
    assert len(plan.schedule) == sum(map(len, plan.positions))
    untouched = dataclasses.replace(plan, positions=())
    assert untouched.schedule == plan.problem.program_order


def test_arguments_are_named_as_the_user_passes_them(plan: Plan) -> None:
    assert [a.name for a in plan.arguments] == [f"[0][{i}]" for i in range(6)] + ["[1]"]
    assert {a.role for a in plan.arguments[:-1]} == {"parameters"}
    assert plan.arguments[-1].role == "inputs"
    assert sum(a.size for a in plan.arguments) == plan.measured.argument


def test_the_table_puts_repeated_layers_in_one_row(plan: Plan) -> None:
    table = plan.table(least=0)
    assert "layer_* (x 6): " in table
    assert "layer_* (x 6), backward: " in table
    assert os.getcwd() not in table
    counted = sum(int(line.split("  ")[1]) for line in _rows(table))
    assert counted == len(plan.actions)


def test_small_values_share_one_row() -> None:
    actions = [
        Action("dot at a.py:1 (f)", 4 * MIB, "kept", 1, scope="block_0"),
        Action("dot at a.py:1 (f)", 4 * MIB, "kept", 1, scope="block_1"),
        Action("dot at a.py:1 (f)", 4 * MIB, "recomputed", 3, scope="block_1", cost=1),
        Action("sum at a.py:2 (f)", 8, "kept", 1, scope="block_0"),
        Action("max at a.py:3 (f)", 8, "moved", 1, scope="block_1"),
    ]
    assert table_text(actions, least=64).splitlines()[1:] == [
        "block_* (x 2): 5 values, 12.0 MiB in turn",
        "  kept                 2  8.0 MiB                  dot        a.py:1 (f)",
        "  recomputed x 2       1  4.0 MiB  2000.000        dot        a.py:1 (f)",
        "  smaller              2     16 B",
    ]


def test_a_number_that_does_not_vary_names_no_layer() -> None:
    actions = [Action("dot at a.py:1 (f)", 8, "kept", 1, scope="Gpt2/head")]
    assert (
        table_text(actions, least=0).splitlines()[1].startswith("Gpt2/head: 1 values")
    )


@pytest.mark.parametrize(
    ("scope", "plain"),
    [
        ("transpose(jvp(Gpt))/block_1/mlp", "Gpt/block_1/mlp"),
        ("jvp(vmap(vmap(eqx.nn.Embedding)))", "eqx.nn.Embedding"),
        ("jvp()", ""),
        ("block/attention", "block/attention"),
    ],
)
def test_scopes_are_shown_without_transformations(scope: str, plain: str) -> None:
    assert without_transforms(scope) == plain


def _rows(table: str) -> list[str]:
    """Rows of values with single spaces between columns."""
    rows = [line for line in table.splitlines()[1:] if line.startswith("  ")]
    return [_squeezed(row) for row in rows]


def _squeezed(row: str) -> str:
    return "  ".join(part.strip() for part in row.split("  ") if part.strip())


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
