"""The progress line: on a terminal alone, wiped when done, and always in the log."""

import io
import logging
import time

import pytest

from coop_jax._fitting import progress as _progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_progress, "_QUIET_SECONDS", 0.01)
    monkeypatch.setattr(_progress, "_REDRAW_SECONDS", 0.01)


def drawn_on(stream: io.StringIO, is_wanted: bool = True) -> str:
    with _progress.shown(is_wanted, stream):
        _progress.stage("compiling plan %d", 3)
        time.sleep(0.1)
    return stream.getvalue()


@pytest.mark.usefixtures("quick")
def test_a_terminal_shows_the_stage_and_is_left_clean() -> None:
    text = drawn_on(Terminal())
    assert "coop_jax: compiling plan 3 (0 s)" in text
    assert text.endswith("\r\x1b[K")


@pytest.mark.usefixtures("quick")
def test_a_line_is_cut_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    lines = drawn_on(Terminal()).split("\r\x1b[K")
    assert "coop_jax: compili (0 s)" in lines
    assert max(map(len, lines)) < 24


@pytest.mark.usefixtures("quick")
def test_nothing_is_shown_off_a_terminal_or_unwanted() -> None:
    assert drawn_on(io.StringIO()) == ""
    assert drawn_on(Terminal(), is_wanted=False) == ""


def test_what_is_quick_is_not_shown() -> None:
    assert drawn_on(Terminal()) == ""


def test_every_stage_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "coop_jax"):
        _progress.stage("compiling plan %d", 3)
    assert caplog.record_tuples == [("coop_jax", logging.INFO, "compiling plan 3")]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
