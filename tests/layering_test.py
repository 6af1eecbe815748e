"""Rules on who may import what, and on the size and names of files."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).absolute().parent.parent
PACKAGE = ROOT / "coop_jax"
FOLDERS = ("coop_jax", "xla_ffi", "tests", "examples", "benchmarks", "docs")
SOURCES = sorted(path for name in FOLDERS for path in (ROOT / name).rglob("*.py"))

JAX_FREE = {
    "_budget", "_errors", "simulate", "_fitting.aiming", "_loops.loop_plan",
    "_loops.scan_branch", "_loops.scan_plan", "_loops.scan_policies",
}  # fmt: skip
"""Beside `_planning`: what else knows nothing of JAX."""
MOST_LINES = 400
# In two pieces, or this file would break its own rule.
PRIVATE_JAX = "jax" + "._src"


def imported(source: str) -> Iterator[str]:
    """Absolute top-level names, and `.module` for imports from inside the package."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0:
                assert node.module is not None
                yield node.module.split(".")[0]
            elif node.module is not None:
                yield "." * node.level + node.module
            else:
                yield from ("." * node.level + alias.name for alias in node.names)


def is_jax_free(module: str) -> bool:
    """Of a module of the package, by its name below it."""
    return module.startswith("_planning.") or module in JAX_FREE


def strangers(source: str, folder: str = "") -> list[str]:
    """Imports that a JAX-free module in a folder of the package may not have."""

    def is_stranger(name: str) -> bool:
        inner = name.lstrip(".")
        ups = len(name) - len(inner) - 1
        if ups < 0:
            return name not in sys.stdlib_module_names | {"numpy"}
        place = [folder] if folder else []
        if ups > len(place):
            return True
        return not is_jax_free(".".join([*place[: len(place) - ups], inner]))

    return sorted(name for name in set(imported(source)) if is_stranger(name))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def in_root(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import math, numpy as np\nfrom .types import Op\nfrom . import arena", []),
        ("from collections.abc import Iterator", []),
        ("from .._errors import PlanError", []),
        ("import jax.numpy as jnp", ["jax"]),
        ("def f():\n    from jax import lax", ["jax"]),
        ("from .._fitting.emit import emit", [".._fitting.emit"]),
        ("from . import types\nfrom .. import _remat", [".._remat"]),
        ("from ... import types", ["...types"]),
        ("import coop_jax._planning.types", ["coop_jax"]),
    ],
)
def test_the_rule_on_imports_finds_strangers(source: str, found: list[str]) -> None:
    assert strangers(source, "_planning") == found


def test_the_sources_are_found() -> None:
    assert PACKAGE / "_budget.py" in SOURCES
    assert Path(__file__).absolute() in SOURCES


PLANNING = [
    path
    for path in SOURCES
    if path.is_relative_to(PACKAGE) and is_jax_free(module_of(path))
]


@pytest.mark.parametrize("path", PLANNING, ids=in_root)
def test_the_planning_side_knows_nothing_of_jax(path: Path) -> None:
    folder = "" if path.parent == PACKAGE else path.parent.name
    assert strangers(path.read_text(), folder) == []


def test_nothing_uses_the_private_parts_of_jax() -> None:
    assert [in_root(p) for p in SOURCES if PRIVATE_JAX in p.read_text()] == []


def test_there_is_no_module_for_leftovers() -> None:
    assert [in_root(p) for p in SOURCES if p.stem in ("utils", "_utils")] == []


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if p.is_relative_to(PACKAGE)], ids=in_root
)
def test_a_file_of_the_package_is_short_enough_to_read(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES


RUN_ALONE = 'if __name__ == "__main__":'


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if p.name.endswith("_test.py")], ids=in_root
)
def test_a_test_file_runs_as_a_program_as_bazel_runs_it(path: Path) -> None:
    assert RUN_ALONE in path.read_text().splitlines()


def test_native_code_uses_no_streams() -> None:
    """They crash where libstdc++ is linked statically (`xla_ffi/text.h`)."""
    files = [*(ROOT / "xla_ffi").rglob("*"), *PACKAGE.rglob("*")]
    sources = [path for path in files if path.suffix in {".cc", ".cu", ".h"}]
    found = re.compile(r"#include <(\w*stream|iomanip|locale|regex)>")
    assert len(sources) > 20
    assert [in_root(path) for path in sources if found.search(path.read_text())] == []


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
