"""Tells what planning is doing: the log, and one line on a terminal.

Everything goes to the logger `coop_jax` at level INFO. While `shown()` is entered and
stderr is a terminal, the latest stage is also written there, over the one before, and
wiped at the end; what takes less than a second never shows.
"""

import contextlib
import contextvars
import logging
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

logger = logging.getLogger("coop_jax")

_QUIET_SECONDS = 1.0
_REDRAW_SECONDS = 0.5
_WIPE = "\r\x1b[K"

_line: contextvars.ContextVar["_Line | None"] = contextvars.ContextVar(
    "coop_jax_progress", default=None
)


def stage(message: str, *args: object) -> None:
    """Says what comes next: to the log, and on the progress line if there is one."""
    logger.info(message, *args)
    line = _line.get()
    if line is not None:
        line.text = message % args if args else message


@contextlib.contextmanager
def shown(is_wanted: bool = True, stream: TextIO | None = None) -> Iterator[None]:
    """Shows stages on `stream` (stderr) while entered, if it is a terminal."""
    stream = stream or sys.stderr
    if not (is_wanted and stream is not None and stream.isatty()):
        yield
        return
    with _Line(stream) as line:
        token = _line.set(line)
        try:
            yield
        finally:
            _line.reset(token)


class _Line:
    """One line, redrawn by a thread because XLA compiles for minutes on end."""

    def __init__(self, stream: TextIO) -> None:
        self.text = "planning"
        self._stream = stream
        self._start = time.monotonic()
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._draw, daemon=True)

    def __enter__(self) -> "_Line":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_done.set()
        self._thread.join()

    def _draw(self) -> None:
        has_drawn = False
        wait = _QUIET_SECONDS
        while not self._is_done.wait(wait):
            seconds = time.monotonic() - self._start
            end = f" ({seconds:.0f} s)"
            # Of a line that wraps only the last row would be wiped.
            width = shutil.get_terminal_size().columns - 1 - len(end)
            self._stream.write(_WIPE + f"coop_jax: {self.text}"[:width] + end)
            self._stream.flush()
            has_drawn, wait = True, _REDRAW_SECONDS
        if has_drawn:
            self._stream.write(_WIPE)
            self._stream.flush()
