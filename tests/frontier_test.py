"""The frontier's rows, their JSON, its tables and its bars, on a step that is tiny."""

import dataclasses
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from benchmarks import (
    card,
    frontier,
    frontier_bars,
    frontier_report,
    frontier_rows,
    h200,
    paired_compiles,
)
from benchmarks.frontier_rows import (
    CHECKPOINT,
    COOP,
    FLAT,
    HALF_TEMP,
    PLAIN,
    THIRD_TEMP,
    Row,
    find,
    is_swept,
    sweep_label,
)
from benchmarks.models import POLICIES, TrainingStep
from benchmarks.words_in_loops import LEFT_OUT, left_out
from coop_jax._fitting.compile import flat_step

LAYERS, WIDTH, BATCH = 3, 16, 256
SETTINGS = frontier.Settings(shares=(0.7, 0.001), repeats=2, sweep=3)


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


def swept_shares(rows: list[Row]) -> list[float]:
    """Three, evenly from the bytes of the step to the smallest."""
    plain, least = row_of(rows, PLAIN).measured, row_of(rows, COOP, "min").measured
    assert plain is not None and least is not None
    return [1 - (1 - least / plain) * i / 3 for i in (1, 2, 3)]


def test_only_the_budgets_asked_for_are_measured(monkeypatch) -> None:
    monkeypatch.setattr(frontier, "build", build)
    asked = frontier.Settings(
        budgets=("dots_saveable", HALF_TEMP), repeats=0, compile_repeats=0
    )
    rows = frontier.measure("tiny", dataclasses.replace(asked, has_error=False))
    assert [(row.program, row.budget) for row in rows] == [
        (PLAIN, ""),
        (FLAT, ""),
        (CHECKPOINT, "dots_saveable"),
        (COOP, "dots_saveable"),
        (COOP, HALF_TEMP),
    ]
    assert "n/a   floor" in frontier_bars.summary(rows)


def test_half_the_temporaries_leave_the_rest_as_it_is(rows):
    plain, half = row_of(rows, PLAIN), row_of(rows, COOP, HALF_TEMP)
    assert plain.measured is not None and plain.temp is not None
    assert half.requested == plain.measured - plain.temp + plain.temp // 2


def test_every_program_has_a_row(rows):
    assert [(row.program, row.budget) for row in rows] == [
        (PLAIN, ""),
        (FLAT, ""),
        *((CHECKPOINT, policy) for policy in POLICIES),
        *((COOP, policy) for policy in POLICIES),
        (COOP, "0.7"),
        (COOP, "0.001"),
        (COOP, HALF_TEMP),
        (COOP, THIRD_TEMP),
        (COOP, "min"),
        *((COOP, sweep_label(share)) for share in swept_shares(rows)),
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


def test_the_step_as_written_counts_by_the_median_of_its_compiles(monkeypatch):
    sweep = frontier.Sweep(build("tiny"), SETTINGS)
    plain, flat = sweep.entries
    for entry, seconds in ((plain, 4.0), (flat, 9.0)):
        entry.row = dataclasses.replace(entry.row, compile_seconds=seconds)
    compiles = paired_compiles.Compiles((2.0, 1.0), ())
    monkeypatch.setattr(frontier, "paired_compiles", lambda *_: compiles)
    sweep.compile_again()
    assert (plain.row.compile_seconds, flat.row.compile_seconds) == (4.0, 2.0)


def test_a_program_compiles_between_two_of_the_one_it_is_compared_with(monkeypatch):
    clock, order = [0.0], []

    def taking(name: str, *seconds: float):
        left = iter(seconds)

        def compile_it() -> None:
            order.append(name)
            clock[0] += next(left)

        return compile_it

    monkeypatch.setattr(paired_compiles.time, "perf_counter", lambda: clock[0])
    found = paired_compiles.paired_compiles(
        taking("base", 1, 3, 5, 1, 1), [taking("a", 4, 3), taking("b", 4, 1)], 2
    )
    assert order == ["base", "a", "base", "b", "base", "a", "base", "b", "base"]
    assert found.base == (1, 3, 5, 1, 1)
    assert found.ratios == ((4 / 2 + 3 / 3) / 2, (4 / 4 + 1 / 1) / 2)


def test_every_plan_is_compiled_beside_the_step_as_written_once(rows):
    """Neither points of a sweep nor what an earlier row compiled come again."""
    counted = [row for row in rows if row.compile_ratio is not None]
    assert counted and all(row.compile_ratio for row in counted)
    assert {row.program for row in counted} == {COOP}
    assert not any(is_swept(row) for row in counted)
    assert len({row.measured for row in counted}) == len(counted)


def test_of_words_drawn_in_a_loop_xla_counts_a_part() -> None:
    shape = (64, 1000)

    def draw(key):
        return jax.random.bits(key, shape)

    key = jax.random.key(0)
    traced = jax.jit(draw).trace(key)
    step = flat_step(traced, [key])
    in_loop, in_line = (
        (compiled.cost_analysis() or {})["flops"]
        for compiled in (traced.lower().compile(), step.compile(step.as_written()))
    )
    missed = left_out(step.program)
    assert missed == LEFT_OUT * 64_000
    assert in_loop + missed == pytest.approx(in_line, rel=1e-3)


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


def test_rows_of_several_runs_are_judged_together(capsys, tmp_path):
    frontier_rows.write(tmp_path / "one.json", budgeted(HALF_TEMP, 1.02))
    renamed = [dataclasses.replace(r, model="n") for r in budgeted(HALF_TEMP, 1.2)]
    frontier_rows.write(tmp_path / "other.json", renamed)
    frontier.main(["--read", str(tmp_path / "one.json"), str(tmp_path / "other.json")])
    assert "MISS  flops at temp/2 <= 1.03: geometric mean 1.106, worst 1.200 (n)" in (
        capsys.readouterr().out
    )


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


def budgeted(budget: str, flops: float, **columns: Any) -> list[Row]:
    """One budget beside the step as written and `nothing_saveable`."""
    columns = {"temp": 9, "compiles": 2, "compile_seconds": 20.0} | columns
    return [
        Row("m", PLAIN, measured=100, flops=1.0),
        Row("m", FLAT, measured=100, flops=1.0, compile_seconds=10.0, compiles=1),
        Row("m", CHECKPOINT, "nothing_saveable", None, 50, 10, flops=1.2),
        Row("m", COOP, budget, 50, 50, flops=flops, **columns),
    ]


def swept(*costs: float) -> list[Row]:
    """A sweep over falling budgets, at these costs."""
    budgets = (90 - 10 * i for i in range(len(costs)))
    return [
        Row("m", COOP, sweep_label(n / 100), n, n, estimated_time=cost)
        for n, cost in zip(budgets, costs, strict=True)
    ]


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (checkpointed(1.0), "pass  flops of coop / policy at its bytes"),
        (checkpointed(1.2), "MISS  flops of coop / policy at its bytes"),
        (checkpointed(1.0, measured=51), "MISS  measured within requested: 0 of 1"),
        (checkpointed(1.0, measured=101), "MISS  a smaller budget, or any, measured"),
        (swept(1.0, 1.1), "pass  cost rises with the budget: never (2 budgets"),
        (swept(1.1, 1.0), "MISS  cost rises with the budget: m coop sweep 0.9"),
        (checkpointed(1.0), "n/a   cost rises with the budget"),
        (budgeted(HALF_TEMP, 1.02), f"pass  flops at {HALF_TEMP} <= 1.03"),
        (budgeted(HALF_TEMP, 1.04), f"MISS  flops at {HALF_TEMP} <= 1.03"),
        (budgeted(THIRD_TEMP, 1.04), f"pass  flops at {THIRD_TEMP} <= 1.1"),
        (budgeted("min", 1.0, temp=8), "pass  floor / temp of nothing_saveable"),
        (budgeted("min", 1.0, temp=9), "MISS  floor / temp of nothing_saveable"),
        (budgeted("p", 1.0, plan_seconds=7.0), "MISS  planning a round"),
        (budgeted("p", 1.0, plan_seconds=2.0), "pass  planning a round"),
        (budgeted("p", 1.0, compile_ratio=1.6), "MISS  compile of a plan"),
        (budgeted("p", 1.0, compile_ratio=1.4), "pass  compile of a plan"),
        (budgeted("p", 1.0), "n/a   compile of a plan"),
        (budgeted("p", 1.0, is_cold=True), "pass  compiles in all"),
        (budgeted("p", 1.0, is_cold=True, compiles=7), "MISS  compiles in all"),
        (budgeted("p", 1.0), "n/a   compiles in all"),
        (checkpointed(1.0, seconds=(1.1, 2.2)), "MISS  time of coop / policy"),
        (checkpointed(1.0, seconds=(0.9, 1.8)), "pass  time of coop / policy"),
        (checkpointed(1.0, predicted=60), "MISS  predicted bytes off"),
        (checkpointed(1.0, error=math.nan), "MISS  error / error"),
        (checkpointed(1.0), "n/a   error / error"),
    ],
)
def test_bars_tell_reached_from_missed(rows, line):
    assert line in frontier_bars.summary(rows)


def timed(*seconds: float) -> list[Row]:
    """One policy that takes a second in each round, and coop at its bytes."""
    return [
        Row("m", CHECKPOINT, "p", None, 50, seconds=(1.0,) * len(seconds)),
        Row("m", COOP, "p", 50, 50, seconds=seconds),
    ]


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (
            timed(1.3, 1.1, 1.2, 1.1, 1.2, 1.4),
            "MISS  {}: m coop p by at least 10.0% of 1",
        ),
        (timed(1.3, 0.9, 1.2, 1.1, 1.2, 1.4), "pass  {}: none of 1"),
        (timed(1.3, 1.1, 1.2, 1.1, 1.2), "n/a   {}: not measured"),
    ],
)
def test_few_rounds_tell_a_time_from_the_policys_by_chance(rows, line):
    said = line.format("times over a policy's, with 95% confidence")
    assert said in frontier_bars.summary(rows)


@pytest.mark.parametrize("rounds", range(6, 13))
def test_the_interval_of_a_median_is_the_narrowest_that_holds_it_often(rounds):
    """Against all ways in which each of the ratios may lie on either side of it."""
    ratios = [1 + k for k in range(rounds)]
    interval = Row("m", COOP, seconds=tuple(ratios)).time_interval(
        Row("m", CHECKPOINT, seconds=(1.0,) * rounds)
    )
    assert interval is not None
    outside = ratios.index(int(interval[0]))
    assert interval[1] == ratios[-1 - outside]
    below = [sum(sides) for sides in itertools.product((0, 1), repeat=rounds)]

    def missed(k: int) -> float:
        return sum(n <= k or n >= rounds - k for n in below) / len(below)

    assert missed(outside) <= 0.05 < missed(outside + 1)


def test_a_policy_whose_bytes_were_not_reached_is_a_miss():
    reached = checkpointed(1.0)
    unreached = [Row("n", CHECKPOINT, "p", None, 9, flops=1.0)]
    unreached.append(Row("n", COOP, "p", 9, floor=10, note="cannot"))
    line = "MISS  flops of coop / policy at its bytes <= 1.0: median inf"
    assert line in frontier_bars.summary([*reached, *unreached])


def test_without_its_compiler_the_described_card_says_what_to_install(monkeypatch):
    monkeypatch.setattr(h200, "_is_there", lambda module: False)
    with pytest.raises(ImportError, match="nvidia-cuda-nvcc-cu12"):
        h200.described_device.__wrapped__()


def test_without_a_gpu_its_backend_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    with pytest.raises(SystemExit, match="JAX is on cpu here"):
        frontier.main(["--backend", "gpu", "--model", "gpt2"])


@pytest.mark.parametrize("share", ["0", "1", "-0.5", "nan"])
def test_a_card_is_given_a_share_of_what_the_step_takes(share: str, capsys) -> None:
    with pytest.raises(SystemExit):
        card.main(["--share", share])
    assert "above 0 and below 1" in capsys.readouterr().err


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
