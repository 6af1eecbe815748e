"""The command: what it prints and writes, what it refuses, how long it takes."""

import json
import time
import tracemalloc
from pathlib import Path

import pytest
from stream_test import layers, numbered

from coop_jax._planning.eviction import COOP, POLICIES
from coop_jax._planning.simulation import _percentile, simulate
from coop_jax._planning.stream import write
from coop_jax._planning.workload import workload
from coop_jax.simulate import main


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    write(tmp_path / "trace.jsonl", layers(8, 2))
    return tmp_path / "trace.jsonl"


def ran(trace: Path, capsys: pytest.CaptureFixture, *options: str) -> dict:
    assert main([str(trace), "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_table_has_every_metric(trace: Path, capsys: pytest.CaptureFixture) -> None:
    assert main([str(trace), "--policy", "dtr", "--budget", "0.6"]) == 0
    rows = {
        line[:20].strip(): line[20:] for line in capsys.readouterr().out.splitlines()
    }
    assert rows["policy"] == "dtr" and rows["feasible"] == "yes"
    assert float(rows["overhead"]) > 1
    assert rows.keys() >= {
        "evictions",
        "rematerializations",
        "search",
        "fragmentation",
        "peak",
        "peak pinned",
    }


def test_json_says_the_same_and_is_written_where_asked(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "result.json"
    found = ran(trace, capsys, "--budget", "0.6", "--out", str(out))
    assert json.loads(out.read_text()) == found
    assert found["feasible"] and found["failure"] is None
    assert found["policy"] == "coop-online"
    assert found["budget"] == int(0.6 * found["needed"]) >= found["peak"]
    assert 0 <= found["fragmentation"] < 1 and found["evictions"] > 0
    assert found["search_p50"] <= found["search_p99"] <= found["search_seconds"]


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        (("--no-partition",), "coop-online, no partition"),
        (("--copy-on-write",), "coop-online, copy on write"),
        (("--no-window",), "coop-online, no window"),
        (("--policy", "dte"), "dte"),
        (("--partition", "operators"), "coop-online"),
    ],
)
def test_ablations_are_options(
    trace: Path,
    capsys: pytest.CaptureFixture,
    options: tuple[str, ...],
    policy: str,
) -> None:
    found = ran(trace, capsys, "--budget", "0.6", *options)
    assert found["policy"] == policy and found["feasible"]


def test_a_budget_in_bytes(trace: Path, capsys: pytest.CaptureFixture) -> None:
    assert ran(trace, capsys, "--budget", "1MiB")["budget"] == 2**20
    assert ran(trace, capsys, "--budget", "1048576")["budget"] == 2**20


def test_what_cannot_run_is_a_fact_with_numbers(
    trace: Path, capsys: pytest.CaptureFixture
) -> None:
    found = ran(trace, capsys, "--budget", "32KiB")
    assert not found["feasible"] and found["overhead"] is None
    assert found["failure"]["reason"] == "no room"
    assert main([str(trace), "--budget", "32KiB"]) == 0
    assert "asks for" in capsys.readouterr().out
    assert main([str(trace), "--budget", "1kB"]) == 0
    assert "no: the constants lack room" in capsys.readouterr().out


@pytest.mark.parametrize("budget", ["0", "1.5", "12 parsecs", "min", "-1"])
def test_a_bad_budget_is_refused(
    trace: Path, capsys: pytest.CaptureFixture, budget: str
) -> None:
    assert main([str(trace), f"--budget={budget}"]) == 2
    assert "budget" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [["--steps-per-call", "0"], ["--out", "/no/such/place/x.json"]]
)
def test_a_bad_option_is_refused_before_the_run(
    trace: Path, capsys: pytest.CaptureFixture, options: list[str]
) -> None:
    assert main([str(trace), *options]) == 2
    assert f"error: {' '.join(options)}: " in capsys.readouterr().err


def test_a_bad_trace_is_refused_with_its_line(
    trace: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main([str(trace.with_name("none.jsonl"))]) == 2
    trace.write_text("".join(trace.read_text().splitlines(keepends=True)[:40]))
    assert main([str(trace)]) == 2
    assert f"{trace}: line 41: the file is cut off" in capsys.readouterr().err


def test_percentiles() -> None:
    assert _percentile([], 99) == 0.0
    assert _percentile([1.0, 2.0, 3.0], 50) == 2.0
    assert _percentile([float(i) for i in range(1, 201)], 99) == 198.0


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_thousands_of_calls_take_seconds(policy) -> None:
    # 100,000 calls are measured in `benchmarks.paper`.
    work = workload(numbered(*layers(100, 4)))
    assert len(work.problem.ops) == 4 * 601
    start = time.process_time()
    found = simulate(work, int(0.6 * work.needed), policy)
    assert found.is_feasible
    assert time.process_time() - start < 6


def test_memory_grows_linearly_with_the_calls() -> None:
    peaks = []
    for steps in (1, 4):
        tracemalloc.start()
        work = workload(numbered(*layers(50, steps)))
        assert simulate(work, int(0.6 * work.needed), COOP).is_feasible
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 4 * 1.2 * peaks[0]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
