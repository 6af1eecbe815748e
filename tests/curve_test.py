"""Plans over many budgets and batches."""

import pytest

import coop_jax
from tests.small_step import OPTIONS, SHAPES, make_args, train_step


@pytest.fixture(scope="module")
def curve() -> coop_jax.Frontier:
    def undonated(*args):
        return train_step(*args)

    return coop_jax.frontier(
        train_step, *SHAPES, points=4, compare={"same": undonated}, **OPTIONS
    )


def test_a_frontier_falls_in_bytes_and_rises_in_time(curve) -> None:
    sizes = [plan.measured.total for plan in curve.plans]
    times = [plan.time for plan in curve.plans]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == len(sizes) >= 2
    assert times == sorted(times) and times[0] == 1.0
    assert curve.floor == sizes[-1] and curve.infeasible == ()
    assert not curve.plans[0].is_planned
    assert curve.knee in curve.plans
    assert curve.compared[0].memory == curve.plans[0].unplanned
    assert curve.compared[0].flops == 1.0
    assert all(plan.measured.total <= plan.budget for plan in curve.plans)


def test_a_plan_of_a_frontier_runs(curve) -> None:
    plan = curve.plans[-1]
    step = coop_jax.remat(train_step, plan=plan, **OPTIONS)
    assert coop_jax.measure(step, *SHAPES) == plan.measured


def test_a_frontier_is_written_as_picture_and_table(curve, tmp_path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    curve.plot(tmp_path / "curve.svg")
    assert "floor" in (tmp_path / "curve.svg").read_text()
    curve.to_csv(tmp_path / "curve.csv")
    rows = (tmp_path / "curve.csv").read_text().splitlines()
    assert len(rows) == 1 + len(curve.plans) + 1
    assert rows[0].startswith("name,budget,bytes,")
    assert rows[-1].startswith(f"same,,{curve.compared[0].memory.total},")
    assert str(curve).count("\n") == len(curve.plans) + 1


def test_budgets_out_of_reach_are_listed() -> None:
    curve = coop_jax.frontier(
        train_step, *SHAPES, budgets=[1.0, "min", 1000], **OPTIONS
    )
    assert curve.infeasible == (1000,)
    assert curve.floor == curve.plans[-1].measured.total


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    step = coop_jax.remat(train_step, "400kB", **OPTIONS)
    found = coop_jax.largest_batch(
        make_args, train_step, "400kB", multiple_of=64, **OPTIONS
    )
    assert found.plan.measured.total <= 400_000
    assert found.size % 64 == 0
    with pytest.raises(coop_jax.BudgetError):
        step.plan(*make_args(found.size + 64))
    capped = coop_jax.largest_batch(
        make_args, train_step, "1GB", multiple_of=64, most=200, **OPTIONS
    )
    assert capped.size == 192


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
