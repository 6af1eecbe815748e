"""The documentation's Python runs, its links lead somewhere, its commands exist."""

import re
import tomllib
from pathlib import Path

import pytest

import coop_jax

ROOT = Path(__file__).absolute().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?://)([^)#]+)")


def blocks(page: Path) -> list[str]:
    """The page's Python, each block on its own line numbers."""
    text = page.read_text()
    return [
        "\n" * text.count("\n", 0, match.start(1)) + match[1]
        for match in _BLOCK.finditer(text)
    ]


def test_the_pages_are_found() -> None:
    names = {page.stem for page in PAGES}
    assert names >= {"README", "design", "budgets", "limits", "benchmarks"}


@pytest.mark.parametrize(
    "page", [p for p in PAGES if _BLOCK.search(p.read_text())], ids=lambda p: p.name
)
def test_the_python_of_a_page_runs_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # pages write plans and pictures
    # Refinement makes plans cheaper, which is not what pages are about.
    defaults = coop_jax.remat.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "time_limit", 0.5)
    namespace: dict[str, object] = {"__name__": page.stem}
    for source in blocks(page):
        exec(compile(source, page, "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_to_files(page: Path) -> None:
    links = _LINK.findall(page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


PAPERS = {"2311.00591": "Coop", "2304.14463": "Moccasin", "2006.09616": "DTR"}
"""Numbers on arXiv and what the papers are called here."""


def test_papers_are_cited_by_their_numbers() -> None:
    sources = [*PAGES, *(ROOT / "coop_jax").glob("*.py")]
    for source in sources:
        words = " ".join(source.read_text().split())
        cited = re.finditer(r"ar[xX]iv(?:\.org/abs/)?\s?(\d{4}\.\d{5})", words)
        for match in cited:
            paper = PAPERS[match[1]]
            assert paper in words[max(0, match.start() - 300) : match.end()], source
    text = " ".join((ROOT / "README.md").read_text().split())
    links = re.findall(r"\[arXiv ([\d.]+)\]\(https://arxiv.org/abs/([\d.]+)\)", text)
    assert links == [("2311.00591", "2311.00591"), ("2304.14463", "2304.14463")]


def test_a_new_user_starts_with_the_demo_and_the_tests() -> None:
    shell = re.search(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shell is not None
    lines = [line.partition("#")[0].strip() for line in shell[1].splitlines()]
    assert lines[:2] == ["./dev demo", "./dev test"]


def test_the_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert rows == list(project["optional-dependencies"])


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
