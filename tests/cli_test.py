"""The command line: what it prints, what it writes, and how it refuses."""

import subprocess
import sys
from pathlib import Path

import pytest

import coop_jax
from coop_jax._cli import main
from tests.small_step import SHAPES, small_plan, train_step

ROOT = Path(__file__).absolute().parent.parent
STEP = "tests.small_step:train_step"
ARGS = ("--args", "tests.small_step:make_args", "--donate", "0", "--time-limit", "0.3")


@pytest.fixture(autouse=True)
def _in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_plans_saves_draws_and_views(tmp_path, capsys) -> None:
    path = tmp_path / "plan.json"
    page = tmp_path / "plan.html"
    command = ["plan", STEP, *ARGS, "--budget", "0.6", "--table", "-o", str(path)]
    assert main([*command, "--plot", str(page)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("coop_jax plan\n") and "layer_* (x 8): " in printed
    assert page.read_text().startswith("<!DOCTYPE html>")

    trace = tmp_path / "trace.json"
    page.unlink()
    assert main(["view", str(path), "--html", str(page), "--explain",
                 "--perfetto", str(trace)]) == 0  # fmt: skip
    printed = capsys.readouterr().out
    plan = coop_jax.load_plan(path)
    assert str(plan) in printed and plan.explain() in printed
    assert "# planned" in printed
    assert page.exists() and trace.exists()


def test_a_frontier_is_printed_and_written(tmp_path, capsys) -> None:
    table = tmp_path / "curve.csv"
    assert main(["frontier", STEP, *ARGS, "--points", "2", "--csv", str(table)]) == 0
    assert "bytes (measured)" in capsys.readouterr().out
    assert table.read_text().startswith("name,budget,bytes")


def test_a_file_with_example_arguments_needs_no_more(tmp_path, capsys) -> None:
    script = tmp_path / "my_train.py"
    script.write_text(
        "import coop_jax\n"
        "from tests.small_step import make_args as example_args, train_step\n"
        "step = coop_jax.remat(train_step, '1GiB', donate_argnums=0)\n"
    )
    assert main(["plan", f"{script}:step"]) == 0
    assert "fits as written" in capsys.readouterr().out
    assert main(["plan", f"{script}:step", "--budget", "1GiB"]) == 2
    assert "has its own budget" in capsys.readouterr().err


def test_a_budget_out_of_reach_is_explained(capsys) -> None:
    assert main(["plan", STEP, *ARGS, "--budget", "10kB"]) == 1
    error = capsys.readouterr().err
    assert "cannot run this step in 10,000 bytes" in error
    assert "So no plan meets this budget" in error


@pytest.mark.parametrize(
    ("argv", "status", "said"),
    [
        (["plan", "train_step", "--budget", "1GiB"], 2, "write module:function"),
        (["plan", "nowhere:step", "--budget", "1GiB"], 2, "No module named 'nowhere'"),
        (["plan", "no.py:step", "--budget", "1GiB"], 2, "there is no file no.py"),
        (["plan", "tests.small_step:walk", "--budget", "1GiB"], 2, "has no function"),
        (["plan", STEP, "--budget", "1GiB"], 2, "define `example_args()`"),
        (["plan", STEP, *ARGS[:2], "--donate", "state"], 2, "write argument numbers"),
        (["plan", STEP, *ARGS, "--budget", "12G"], 2, "could mean GiB"),
        (["plan", STEP, *ARGS], 1, "this device reports none"),
        (["plan", STEP, *ARGS, "--budget", "1GiB", "--plot", "x.doc"], 2, "end it"),
        (["plan", STEP, *ARGS, "-o", "no/plan.json"], 2, "there is no directory no"),
        (["frontier", STEP, *ARGS, "--plot", "a.html"], 2, "end it with .svg or .png"),
        (["view", "plan.json", "--html", "plan.png"], 2, "end it with .html."),
        (["view", "nowhere.json"], 1, "No such file"),
        (["view", "README.md"], 1, "is no JSON"),
    ],
)
def test_mistakes_are_one_line_and_a_status(argv, status, said, capsys) -> None:
    assert main(argv) == status
    assert said in capsys.readouterr().err.replace("It is no", "is no")


def test_example_arguments_are_a_function(tmp_path, capsys) -> None:
    script = tmp_path / "constant_args.py"
    script.write_text("def step(x): return x\nexample_args = (1.0,)\n")
    assert main(["plan", f"{script}:step", "--budget", "min"]) == 2
    assert "`example_args` is tuple, not a function" in capsys.readouterr().err


def test_a_mistake_in_the_step_is_shown_with_its_place(tmp_path) -> None:
    script = tmp_path / "wrong_train.py"
    script.write_text(
        "import jax.numpy as jnp\n"
        "def step(x): return jnp.ones((2, 3)) @ x\n"
        "def example_args(): return (jnp.ones(2),)\n"
    )
    with pytest.raises(TypeError) as caught:
        main(["plan", f"{script}:step", "--budget", "min"])
    assert any(str(entry.path) == str(script) for entry in caught.traceback)


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path) -> None:
    small_plan().save(tmp_path / "plan.json")
    viewing = subprocess.Popen(
        [sys.executable, "-m", "coop_jax", "view", str(tmp_path / "plan.json")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with viewing:
        assert viewing.stdout is not None and viewing.stderr is not None
        viewing.stdout.close()
        assert viewing.stderr.read() == b""
    assert viewing.returncode == 1


def test_the_simulator_is_one_of_the_commands(tmp_path, capsys) -> None:
    trace = tmp_path / "trace"
    coop_jax.record(train_step, *SHAPES, path=trace)
    assert main(["simulate", str(trace), "--policy", "dtr", "--budget", "0.9"]) == 0
    assert capsys.readouterr().out


def test_it_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "coop_jax", "--version"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.strip() == coop_jax.__version__


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--budget", "12 G"], "--budget 12 G: "),
        (["--budget", "1.5"], "--budget 1.5: "),
        (["--time-limit", "0"], "--time-limit 0: it has to be more than 0"),
    ],
)
def test_numbers_that_mean_nothing_are_usage(
    option: list[str], said: str, capsys: pytest.CaptureFixture
) -> None:
    assert main(["plan", STEP, *ARGS, *option]) == 2
    assert said in capsys.readouterr().err


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
