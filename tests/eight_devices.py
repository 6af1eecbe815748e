"""Runs a script in a process of its own that has 8 CPU devices."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def environment(devices: int = 8) -> dict[str, str]:
    """What a process needs to have so many CPU devices; other flags stay."""
    more = f"--xla_force_host_platform_device_count={devices}"
    flags = f"{os.environ.get('XLA_FLAGS', '')} {more}"
    return os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}


def rows_of(script: str, cases: Sequence[str], directory: Path) -> dict[str, Any]:
    """What the script prints for its arguments, `cases`: lines `row [case, found]`."""
    (directory / "worker.py").write_text(script)
    found = subprocess.run(
        [sys.executable, "worker.py", *cases],
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    lines = [line for line in found.stdout.splitlines() if line.startswith("row ")]
    return dict(json.loads(line[4:]) for line in lines)
