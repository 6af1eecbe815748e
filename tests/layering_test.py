"""Rules on who may import what, and on the size and names of files."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).absolute().parent.parent
PACKAGE = ROOT / "coop_jax"
FOLDERS = ("coop_jax", "xla_ffi", "tests", "examples", "benchmarks", "docs")
SOURCES = sorted(path for name in FOLDERS for path in (ROOT / name).rglob("*.py"))

JAX_FREE = (
    "_types",
    "_arena",
    "_window",
    "_scores",
    "_deadlines",
    "_stream",
    "_workload",
    "_simulation",
    "simulate",
    "_online",
    "_eviction",
    "_policies",
    "_planner",
    "_refine",
    "_search",
    "_retention",
    "_buffer_assignment",
    "_validate",
    "_budget",
    "_errors",
    "_min_cut",
    "_scan_plan",
    "_loop_plan",
)
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


def strangers(source: str) -> list[str]:
    """Imports that a JAX-free module may not have."""
    allowed = sys.stdlib_module_names | {"numpy"} | {f".{name}" for name in JAX_FREE}
    return sorted(set(imported(source)) - allowed)


def is_jax_free(path: Path) -> bool:
    return path.parent == PACKAGE and path.stem in JAX_FREE


def in_root(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import math, numpy as np\nfrom ._types import Op\nfrom . import _arena", []),
        ("from collections.abc import Iterator", []),
        ("import jax.numpy as jnp", ["jax"]),
        ("def f():\n    from jax import lax", ["jax"]),
        ("from ._emit import emit", ["._emit"]),
        ("from . import _types, _remat", ["._remat"]),
        ("from .. import _types", [".._types"]),
        ("import coop_jax._types", ["coop_jax"]),
    ],
)
def test_the_rule_on_imports_finds_strangers(source: str, found: list[str]) -> None:
    assert strangers(source) == found


def test_the_sources_are_found() -> None:
    assert PACKAGE / "_budget.py" in SOURCES
    assert Path(__file__).absolute() in SOURCES


@pytest.mark.parametrize("path", [p for p in SOURCES if is_jax_free(p)], ids=in_root)
def test_the_planning_side_knows_nothing_of_jax(path: Path) -> None:
    assert strangers(path.read_text()) == []


def test_nothing_uses_the_private_parts_of_jax() -> None:
    assert [in_root(p) for p in SOURCES if PRIVATE_JAX in p.read_text()] == []


def test_there_is_no_module_for_leftovers() -> None:
    assert [in_root(p) for p in SOURCES if p.stem in ("utils", "_utils")] == []


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if p.is_relative_to(PACKAGE)], ids=in_root
)
def test_a_file_of_the_package_is_short_enough_to_read(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
