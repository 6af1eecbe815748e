"""Which of the programs compiled for a step with scan pairs is best."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from coop_jax._loops import loop_programs, loop_solve
from coop_jax._loops.loop_programs import LoopPrograms

WRITTEN = 100


@dataclass(eq=False)
class Bench:
    """A workbench of a program that was not planned any further."""

    baseline: Any
    step: Any
    candidates: tuple[Any, ...] = ()


def bench_of(total: int, flops: float, platform: str = "gpu") -> Any:
    """One that takes `total` bytes."""
    memory = SimpleNamespace(total=total)
    step = SimpleNamespace(program=None, platform=platform)
    baseline = SimpleNamespace(memory=memory, cost=10.0, arithmetic=lambda _: flops)
    return Bench(baseline, step)


def rewriting(size: int, cost: float, total: int, flops: float) -> Any:
    """One that keeps `size` bytes and takes `cost` seconds more than as written."""
    return SimpleNamespace(
        variants=(SimpleNamespace(size=size),),
        plans=(size,),
        bodies=(),
        cost=cost,
        bench=bench_of(total, flops),
    )


def never(*_: Any) -> Any:
    raise AssertionError("nothing is compiled here")


@pytest.fixture(name="best_size")
def _best_size(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop_programs, "program_flops", lambda _: 1.0)
    monkeypatch.setattr(loop_programs, "flops_with", lambda *_: 1.0)

    def best(budget: int, *rewritings: Any) -> int | None:
        programs = LoopPrograms(bench_of(1000, 1.0), WRITTEN, never)
        programs.rewritten += rewritings
        found = programs.best(budget)
        if found is None or not (of := programs.rewriting_of(found)):
            return None
        return of.variants[0].size

    return best


def test_the_cheapest_that_fits_is_best(best_size):
    few, many = rewriting(20, 3.0, 500, 1.3), rewriting(60, 1.0, 700, 1.1)
    assert best_size(800, few, many) == 60
    assert best_size(600, few, many) == 20
    assert best_size(400, few, many) is None


def test_little_modelled_time_does_not_stand_against_arithmetic(best_size):
    """By the model the one that keeps 20 bytes is faster, with more arithmetic."""
    few, many = rewriting(20, 1.0, 500, 1.3), rewriting(60, 2.0, 700, 1.1)
    assert best_size(800, few, many) == 60


@pytest.mark.parametrize("flops", [1.1, 1.1005])
def test_of_as_much_arithmetic_the_faster_is_best(best_size, flops):
    few, many = rewriting(20, 1.0, 500, flops), rewriting(60, 2.0, 700, 1.1)
    assert best_size(800, few, many) == 20


def test_less_arithmetic_from_keeping_less_does_not_rule_out_the_faster(best_size):
    few, many = rewriting(20, 2.0, 500, 1.1), rewriting(60, 1.0, 700, 1.3)
    assert best_size(800, few, many) == 60


@pytest.mark.usefixtures("best_size")
@pytest.mark.parametrize(
    ("platform", "total", "is_tied"), [("cpu", 750, True), ("gpu", 650, False)]
)
def test_of_equals_bodies_in_their_own_order_are_for_cpu(platform, total, is_tied):
    """XLA:CPU was twice as slow with the same body in an order of its own."""
    untied, tied = rewriting(60, 1.0, 700, 1.1), rewriting(60, 1.0, total, 1.1)
    tied.bodies = ("a body in its own order",)
    programs = LoopPrograms(bench_of(1000, 1.0, platform), WRITTEN, never)
    programs.rewritten += [untied, tied]
    found = programs.best(800)
    assert found is (tied if is_tied else untied).bench.baseline


@pytest.mark.parametrize(
    ("as_it_is", "reached", "thought", "tied", "spare"),
    [
        pytest.param(980, 980, 20, 900, 100, id="ties save 80"),
        pytest.param(980, 980, 20, 990, 0, id="ties were thought to save"),
        pytest.param(980, 980, 5, 900, 0, id="ties are thought to save too little"),
        pytest.param(900, 900, 0, 700, 100, id="there is room without"),
        pytest.param(1050, 950, 100, 700, 50, id="fits since it is tied"),
        pytest.param(980, 980, 15, 900, 0, id="ties save nothing to be kept"),
    ],
)
def test_what_ties_save_may_be_kept(as_it_is, reached, thought, tied, spare):
    """More is kept, which takes 37 bytes more."""

    def taking(temp: int) -> Any:
        unplanned = SimpleNamespace(temp=temp)
        bench = SimpleNamespace(unplanned=unplanned)
        return SimpleNamespace(bench=bench, variants=("as it is",))

    bench: Any = SimpleNamespace(
        _room=SimpleNamespace(predict=lambda _: 500),
        _choose=lambda aim: ["as it is" if aim < 537 else "keeps more"],
        programs=SimpleNamespace(with_bodies=lambda *_: taking(tied)),
        _ties=lambda *_: [],
        _in_order=lambda rewritten: rewritten.bench.unplanned.temp - thought,
    )
    found = loop_solve.LoopWorkbench._spare(bench, taking(as_it_is), reached, 1000)
    assert found == spare


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
