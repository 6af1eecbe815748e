"""The frontier's rows, their JSON, its tables and its bars, on a step that is tiny."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from benchmarks import frontier, frontier_report, frontier_rows, h200
from benchmarks.frontier_rows import CHECKPOINT, COOP, FLAT, PLAIN, Row, find
from benchmarks.models import POLICIES, TrainingStep

LAYERS, WIDTH, BATCH = 3, 16, 256
SETTINGS = frontier.Settings(shares=(0.7, 0.001), repeats=2)


def build(name: str, size: str = "small", policy: str | None = None) -> TrainingStep:
    """A multilayer perceptron in place of the registry's models."""

    def block(weight, x):
        return x + jnp.tanh(jnp.tanh(x @ weight) @ weight)

    if policy is not None:
        block = jax.checkpoint(block, policy=getattr(jax.checkpoint_policies, policy))

    def loss_fn(weights, x):
        for weight in weights:
            x = block(weight, x)
        return jnp.mean(x**2)

    def step(weights, x):
        loss, grads = jax.value_and_grad(loss_fn)(weights, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), {"loss": loss}

    @jax.jit
    def make_args():
        *keys, key = jax.random.split(jax.random.key(0), LAYERS + 1)
        weights = [jax.random.normal(k, (WIDTH, WIDTH)) / 8 for k in keys]
        return weights, jax.random.normal(key, (BATCH, WIDTH))

    return TrainingStep(name, size, step, make_args)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frontier, "build", build)
        return frontier.measure("tiny", SETTINGS)


def row_of(rows: list[Row], program: str, budget: str = "") -> Row:
    row = find(rows, program, budget)
    assert row is not None
    return row


def test_every_program_has_a_row(rows):
    assert [(row.program, row.budget) for row in rows] == [
        (PLAIN, ""),
        (FLAT, ""),
        *((CHECKPOINT, policy) for policy in POLICIES),
        *((COOP, policy) for policy in POLICIES),
        (COOP, "0.7"),
        (COOP, "0.001"),
        (COOP, "min"),
    ]


def test_policies_are_met_with_their_own_bytes(rows):
    for policy in POLICIES:
        hand = row_of(rows, CHECKPOINT, policy)
        assert row_of(rows, COOP, policy).requested == hand.measured


def test_programs_measure_what_was_asked_and_compute_the_same(rows):
    plain = row_of(rows, PLAIN)
    assert (plain.flops, plain.counted_flops, plain.error) == (1.0, 1.0, 1.0)
    for row in rows:
        if row.measured is None:
            continue
        assert row.requested is None or row.measured <= row.requested
        assert len(row.seconds) == 2
        assert row.error is not None and row.error < 3
        assert row.overhead is not None and row.overhead > 0.9
    assert row_of(rows, FLAT).compiles == 1


def test_a_budget_below_the_floor_is_a_row(rows):
    row = row_of(rows, COOP, "0.001")
    assert row.measured is None and row.floor is not None
    assert row.requested is not None and row.floor > row.requested
    assert "cannot run this step" in row.note
    assert f"floor {row.floor / 1e6:.1f}" in frontier_report.table(rows)


def test_rows_survive_json(rows, tmp_path):
    path = tmp_path / "rows.json"
    frontier_rows.write(path, [*rows, Row("none", COOP, error=math.inf)], size="small")
    assert frontier_rows.read(path) == [*rows, Row("none", COOP, error=math.inf)]
    assert '"cpus"' in path.read_text()


def test_the_command_prints_tables_and_bars(monkeypatch, capsys, rows, tmp_path):
    monkeypatch.setattr(frontier, "measure", lambda name, settings: rows)
    path = tmp_path / "rows.json"
    frontier.main(["--model", "gpt2", "--json", str(path), "--shares", "0.7"])
    lines = capsys.readouterr().out.splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len({len(line) for line in table}) == 1 and len(table) == len(rows) + 2
    assert any(line.startswith("pass  measured within requested") for line in lines)
    assert frontier_rows.read(path) == rows


def test_shares_are_shares():
    with pytest.raises(SystemExit):
        frontier.main(["--shares", "0.5,2"])


def checkpointed(flops: float, **columns: Any) -> list[Row]:
    """One policy, and coop at its bytes."""
    columns.setdefault("measured", 50)
    return [
        Row("m", PLAIN, measured=100, flops=1.0, seconds=(1.0, 2.0)),
        Row("m", CHECKPOINT, "p", None, 50, flops=1.0, seconds=(1.0, 2.0)),
        Row("m", COOP, "p", 50, flops=flops, **columns),
    ]


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (checkpointed(1.0), "pass  flops of coop / policy at equal bytes"),
        (checkpointed(1.2), "MISS  flops of coop / policy at equal bytes"),
        (checkpointed(1.0, measured=51), "MISS  measured within requested: 0 of 1"),
        (checkpointed(1.0, measured=101), "MISS  a smaller budget, or any, measured"),
        (checkpointed(1.0, seconds=(1.1, 2.2)), "MISS  time of coop / policy"),
        (checkpointed(1.0, seconds=(1.0, 2.0)), "pass  time of coop / policy"),
        (checkpointed(1.0, predicted=60), "MISS  predicted bytes off"),
        (checkpointed(1.0, error=math.nan), "MISS  error / error"),
        (checkpointed(1.0), "n/a   error / error"),
    ],
)
def test_bars_tell_reached_from_missed(rows, line):
    assert line in frontier_report.summary(rows)


def test_a_policy_whose_bytes_were_not_reached_is_a_miss():
    reached = checkpointed(1.0)
    unreached = [Row("n", CHECKPOINT, "p", None, 9, flops=1.0)]
    unreached.append(Row("n", COOP, "p", 9, floor=10, note="cannot"))
    line = "MISS  flops of coop / policy at equal bytes <= 1.05: median inf"
    assert line in frontier_report.summary([*reached, *unreached])


def test_without_its_compiler_the_described_card_says_what_to_install(monkeypatch):
    monkeypatch.setattr(h200, "_is_there", lambda module: False)
    with pytest.raises(ImportError, match="nvidia-cuda-nvcc-cu12"):
        h200.described_device.__wrapped__()


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
