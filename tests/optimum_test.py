"""Proven optima against brute force, and graphs read from a file."""

import dataclasses
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog
from validate_test import random_problem

from benchmarks import node_link, optimum
from benchmarks.optimum_problems import layered
from benchmarks.optimum_solver import prove
from benchmarks.retention_model import RetentionModel, spine
from coop_jax._planning.planner import Effort
from coop_jax._planning.types import Op, Problem, Value
from coop_jax._planning.validate import InvalidSchedule, live_bytes, validate

# 0 is cheap and 1 dear, both 4 bytes; they wait for 3 and 4 while 2 needs 4 bytes more.
CHEAP_AND_DEAR = Problem(
    ops=(
        Op("cheap", (0,), (1,), 1.0),
        Op("dear", (1,), (2,), 9.0),
        Op("wide", (2,), (3,), 1.0, workspace=4),
        Op("reads cheap", (1, 3), (4,), 1.0),
        Op("reads dear", (2, 4), (5,), 1.0),
    ),
    values=(
        Value("x", 0, is_argument=True),
        Value("cheap", 4),
        Value("dear", 4),
        Value("small", 1),
        Value("smaller", 1),
        Value("y", 0, is_output=True),
    ),
)


def peak_of(problem: Problem) -> int:
    return max(live_bytes(problem, problem.program_order), default=0)


def is_fixed(problem: Problem, k: int) -> bool:
    op = problem.ops[k]
    overwrites = any(problem.values[v].overwrites is not None for v in op.outputs)
    return overwrites or not op.is_recomputable or not op.outputs


def optima(problem: Problem) -> dict[int, float]:
    """Peak -> least cost of any schedule of the class with at most that peak.

    Every set of pairs (position, op), with every op somewhere, is tried.
    """
    length = len(problem.ops)
    in_place = {k for k in range(length) if is_fixed(problem, k)}
    free = [(b, k) for b in range(length) for k in range(b) if k not in in_place]
    home = in_place | set(spine(problem))
    away = [(k, k) for k in range(length) if k not in home]
    least: dict[int, float] = {}
    for chosen in itertools.product((False, True), repeat=len(free) + len(away)):
        steps = [(k, k) for k in home]
        steps += itertools.compress([*free, *away], chosen)
        schedule = tuple(k for _, k in sorted(steps))
        if len(set(schedule)) < length:
            continue
        try:
            validate(problem, schedule)
        except InvalidSchedule:
            continue
        peak = max(live_bytes(problem, schedule), default=0)
        least[peak] = min(least.get(peak, math.inf), problem.cost(schedule))
    return least


def cheapest(least: dict[int, float], pool: int) -> float:
    return min((c for peak, c in least.items() if peak <= pool), default=math.inf)


def test_the_optimum_by_eye() -> None:
    assert spine(CHEAP_AND_DEAR) == [0, 1, 2, 3, 4]
    assert peak_of(CHEAP_AND_DEAR) == 13
    proof = prove(CHEAP_AND_DEAR, 10)
    assert proof.schedule == (0, 1, 2, 0, 3, 4)
    assert proof.cost == 14.0
    assert proof.bound == pytest.approx(14.0, rel=2e-3)
    assert proof.is_optimal


def test_what_ops_take_once_is_in_every_schedule() -> None:
    proof = prove(dataclasses.replace(CHEAP_AND_DEAR, once=100.0), 10, 115.0)
    assert (proof.schedule, proof.cost) == ((0, 1, 2, 0, 3, 4), 114.0)
    assert proof.bound == pytest.approx(114.0, rel=1e-3)


def test_proves_that_nothing_fits() -> None:
    assert math.isinf(prove(CHEAP_AND_DEAR, 8).bound)


def test_a_known_schedule_does_not_hide_the_optimum() -> None:
    for cutoff in (14.0, 15.0, 100.0):
        proof = prove(CHEAP_AND_DEAR, 10, cutoff=cutoff)
        assert proof.cost == 14.0
        assert proof.bound == pytest.approx(14.0, rel=2e-3)


@pytest.mark.parametrize("seed", range(40))
def test_optima_are_those_of_brute_force(seed: int) -> None:
    problem = random_problem(seed, length=4) if seed % 2 else layered(seed, 2)
    least = optima(problem)
    pools = sorted({*least, peak_of(problem), min(least) - 1})
    for pool in pools:
        if pool < 0:
            continue
        proof, least_cost = prove(problem, pool), cheapest(least, pool)
        assert proof.bound <= least_cost * (1 + 1e-9) + 1e-9, pool
        if proof.schedule is None:
            assert math.isinf(proof.bound), pool
            assert math.isinf(least_cost), pool
        else:
            validate(problem, proof.schedule)
            assert max(live_bytes(problem, proof.schedule), default=0) <= pool
            assert proof.cost == pytest.approx(least_cost, rel=2e-3), pool


def test_the_program_order_is_a_solution_and_has_its_own_peak() -> None:
    # The bytes of the model are those of the oracle: one byte less is one too few.
    for seed in range(30):
        problem = random_problem(seed, length=8)
        for pool, is_broken in (
            (peak_of(problem), False),
            (peak_of(problem) - 1, True),
        ):
            model = RetentionModel(problem, pool)
            values = [float(b == k) for (k, b) in model.run]
            fixed = dict(zip(model.run.values(), values, strict=True))
            for column, value in fixed.items():
                model.lower[column] = model.upper[column] = value
            if pool < 0:
                continue
            assert relaxes(model) != is_broken, (seed, pool)


def relaxes(model: RetentionModel) -> bool:
    """Whether the model has a solution, with all its peak rows."""
    model.add_peak_rows(list(model.run))
    bounds = np.array([model.lower, model.upper]).T
    matrix = model.rows.matrix(len(model.cost))
    result = linprog(model.cost, A_ub=matrix, b_ub=model.rows.bounds, bounds=bounds)
    return result.status == 0


def test_plans_are_at_least_the_bound_on_random_nets() -> None:
    problem = layered(3, 12)
    row = optimum.measure("net", problem, 0.5, 20.0, Effort(time_limit=2.0))
    assert row.cost is not None and row.bound is not None and row.best is not None
    assert 1.0 <= row.bound <= row.best * (1 + 1e-9)
    assert row.best <= row.cost
    assert row.peak is not None and row.peak <= 0.5
    assert row.gap is not None and row.gap <= 0.05


def write_graph(path: Path, **changes) -> Path:
    content = {
        "directed": True,
        "multigraph": False,
        "graph": {},
        "nodes": [
            {"id": "loss", "time": 1, "bytes": 1},
            {"id": "dear", "time": 9, "bytes": 4},
            {"id": "cheap", "time": 1, "bytes": 4},
        ],
        "edges": [
            {"source": "cheap", "target": "dear"},
            {"source": "dear", "target": "loss"},
            {"source": "cheap", "target": "loss"},
        ],
    }
    path.write_text(json.dumps(content | changes))
    return path


def test_reads_a_graph_and_sorts_it(tmp_path: Path) -> None:
    problem = node_link.read(write_graph(tmp_path / "graph.json"), "time", "bytes")
    assert [op.name for op in problem.ops] == ["cheap", "dear", "loss"]
    assert [op.inputs for op in problem.ops] == [(), (0,), (0, 1)]
    assert [op.cost for op in problem.ops] == [1.0, 9.0, 1.0]
    assert [value.size for value in problem.values] == [4, 4, 1]
    assert [value.is_output for value in problem.values] == [False, False, True]


def test_an_order_that_is_topological_stays(tmp_path: Path) -> None:
    nodes = [{"id": k, "cost": 1, "size": 1} for k in (3, 1, 2)]
    edges = [{"source": 3, "target": 2}]
    path = write_graph(tmp_path / "graph.json", nodes=nodes, edges=edges)
    problem = node_link.read(path, "cost", "size")
    assert [op.name for op in problem.ops] == ["3", "1", "2"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"nodes": [{"id": "a", "bytes": 1}], "edges": []}, "no number `time`"),
        ({"edges": [{"source": "dear", "target": "gone"}]}, "joins nodes"),
        (
            {
                "edges": [
                    {"source": "dear", "target": "cheap"},
                    {"source": "cheap", "target": "dear"},
                ]
            },
            "cycle",
        ),
    ],
)
def test_a_graph_that_cannot_be_planned_is_refused(
    tmp_path: Path, changes: dict, why: str
) -> None:
    path = write_graph(tmp_path / "graph.json", **changes)
    with pytest.raises(ValueError, match=why):
        node_link.read(path, "time", "bytes")


def test_a_file_that_is_no_graph_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    path.write_text('{"vertices": []}')
    with pytest.raises(ValueError, match="not node-link JSON"):
        node_link.read(path, "time", "bytes")


def test_the_command_plans_a_graph(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = str(write_graph(tmp_path / "graph.json"))
    optimum.main(
        [path, "--cost", "time", "--size", "bytes", "--budget", "1", "--prove"]
    )
    out = capsys.readouterr().out
    assert "| graph | 3 | 1 | 1.000 | 1.0000 | 1.0000 |" in out
    assert "gap: median 0.00%" in out


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
