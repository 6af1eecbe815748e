"""Writes pictures and traces of a plan to files, by suffix."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from .._fitting.cache import write_whole

if TYPE_CHECKING:
    from .._plan import Plan

IMAGES = (".svg", ".png", ".pdf")


def write_plot(plan: "Plan", path: str | os.PathLike[str]) -> None:
    """Draws the plan into a file; see `Plan.plot`."""
    if suffix_of(path, (".html", *IMAGES)) == ".html":
        from .page import page

        write_whole(Path(path), page(plan))
        return
    # matplotlib is optional, and slow to import.
    from .picture import draw

    draw(plan, path)


def write_trace(plan: "Plan", path: str | os.PathLike[str]) -> None:
    """Writes the plan's trace; see `Plan.to_perfetto`."""
    from .perfetto import trace

    write_whole(Path(path), trace(plan))


def suffix_of(path: str | os.PathLike[str], known: tuple[str, ...]) -> str:
    """The suffix of a path, which has to be a known one."""
    suffix = Path(path).suffix.lower()
    if suffix not in known:
        raise ValueError(
            f"{os.fspath(path)!r} does not say what to write: end it with "
            f"{' or '.join(known)}."
        )
    return suffix
