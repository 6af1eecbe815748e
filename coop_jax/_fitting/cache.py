"""A directory of texts by key that processes may share and be killed in.

A text is written to a file of its own and renamed into place, which is atomic: a reader
finds a whole text or none, whoever is killed when. Two writers of one key write the
same plan, and the later one wins. Imports the standard library only.
"""

import contextlib
import logging
import os
import time
import uuid
from pathlib import Path

logger = logging.getLogger("coop_jax")

_STALE_SECONDS = 3600.0
_TEMPORARY = ".tmp"


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that it is never seen half written, even after a crash."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}{_TEMPORARY}")
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise


class Cache:
    """Texts by key in one directory; failing to read or write is no error."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory).expanduser()

    def path(self, key: str) -> Path:
        """The file of a key."""
        return self.directory / f"{key}.json"

    def get(self, key: str) -> str | None:
        """The text of a key, or None if there is none that can be read."""
        try:
            return self.path(key).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            logger.warning("plan cache: %s cannot be read: %s", self.path(key), error)
            return None

    def put(self, key: str, text: str) -> None:
        """Stores a text; without a writable directory, only logs a warning."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._sweep()
            write_whole(self.path(key), text)
        except OSError as error:
            logger.warning("plan cache: cannot write %s: %s", self.path(key), error)

    def _sweep(self) -> None:
        """Removes what writers that were killed long ago left behind."""
        oldest = time.time() - _STALE_SECONDS
        for left in self.directory.glob(f"*{_TEMPORARY}"):
            with contextlib.suppress(OSError):
                if left.stat().st_mtime < oldest:
                    left.unlink()
