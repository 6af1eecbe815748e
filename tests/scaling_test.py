"""Growth by eye, and one small measurement of each kind."""

import math

import pytest

from benchmarks import scaling
from coop_jax._planning.planner import Effort

QUICK = Effort(rounds=1, moves=500, time_limit=5.0)


def row(equations: int, seconds: float) -> scaling.Row:
    return scaling.Row("nets", equations, equations, 0.0, 0.0, seconds, 0, True, 1.0)


def test_the_exponent_is_the_slope_of_a_power() -> None:
    rows = [row(n, 1e-6 * n**1.5) for n in (1_000, 10_000, 100_000)]
    assert scaling.exponent(rows) == pytest.approx(1.5)


def test_n_log_n_does_not_grow_over_itself() -> None:
    rows = [row(n, 1e-6 * n * math.log(n)) for n in (1_000, 10_000, 100_000)]
    assert scaling.n_log_n_growth(rows) == pytest.approx(1.0)
    assert 1.0 < scaling.exponent(rows) < 1.2


def test_a_net_has_the_length_asked_for_and_is_planned() -> None:
    found = scaling.measure("nets", 300, QUICK)
    assert 300 <= found.equations <= 400
    assert found.fits
    assert found.cost >= 1.0
    assert "| nets | 3" in scaling.table([found])


@pytest.mark.slow
def test_a_deep_model_has_about_the_length_asked_for() -> None:
    found = scaling.measure("gpt2", 1_500, QUICK)
    assert 1_200 <= found.equations <= 1_800
    assert found.ops < found.equations / 2


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
