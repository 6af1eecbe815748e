"""Every example runs as a user runs it, meets its budget, and learns."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).absolute().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
DEMO = "gpt_linen"

_BYTES = re.compile(r"^  (budget|(?:un)?planned) .*?\(([\d,]+) bytes\)", re.MULTILINE)
_LOSS = re.compile(r"^step +\d+  loss (\S+)$", re.MULTILINE)
_TEMP = re.compile(r"^  unplanned .*of it temporary ([\d.]+) MiB$", re.MULTILINE)


def run(path: Path) -> str:
    # Without pytest's `pythonpath`, the package may not be installed (Bazel).
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, path],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_examples_are_short_and_import_nothing_private() -> None:
    assert [path.stem for path in EXAMPLES] == [
        "fsdp_devices",
        "gpt_linen",
        "lora_orbax",
        "mlp_plain_jax",
        "resnet_images",
        "transformer_equinox",
        "vit_nnx",
    ]
    for path in EXAMPLES:
        source = path.read_text()
        assert len(source.splitlines()) <= 72, path.name
        assert "coop_jax._" not in source


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_meets_its_budget_and_learns(path: Path) -> None:
    if "orbax" in path.stem and importlib.util.find_spec("orbax") is None:
        pytest.skip("needs orbax-checkpoint, which is in coop_jax[test]")
    printed = run(path)
    bytes_of = {label: int(n.replace(",", "")) for label, n in _BYTES.findall(printed)}
    assert bytes_of["planned"] <= bytes_of["budget"] < bytes_of["unplanned"], printed
    losses = [float(loss) for loss in _LOSS.findall(printed)]
    assert len(losses) >= 8, printed
    assert losses[-1] < 0.9 * losses[0], printed
    if path.stem == DEMO:
        temporary = _TEMP.search(printed)
        assert temporary and float(temporary[1]) >= 100, printed


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
