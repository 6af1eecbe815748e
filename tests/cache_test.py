"""The plan cache: whole texts or none, under concurrent writers that get killed."""

import logging
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coop_jax import _cache
from coop_jax._cache import Cache, write_whole

WRITER = """
import importlib.util, sys, random
spec = importlib.util.spec_from_file_location("_cache", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
cache = module.Cache(sys.argv[2])
print("ready", flush=True)
while True:
    key = random.choice("abcdefgh")
    cache.put(key, key * 200_000)
    text = cache.get(key)
    assert text is not None and set(text) == {key} and len(text) == 200_000, key
"""


def test_gets_back_what_was_put(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "new" / "folder")
    assert cache.get("a") is None
    cache.put("a", "text é")
    cache.put("b", "other")
    assert (cache.get("a"), cache.get("b")) == ("text é", "other")
    assert sorted(p.name for p in cache.directory.iterdir()) == ["a.json", "b.json"]


def test_a_failed_write_leaves_the_old_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_whole(tmp_path / "a", "old")

    def fail(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_whole(tmp_path / "a", "new")
    assert [p.read_text() for p in tmp_path.iterdir()] == ["old"]


def test_what_cannot_be_read_or_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "below")
    with caplog.at_level(logging.WARNING, "coop_jax"):
        cache.put("a", "text")
        assert cache.get("a") is None
    assert len(caplog.records) == 2
    (tmp_path / "b.json").write_bytes(b"\xff\xfe")
    assert Cache(tmp_path).get("b") is None


def test_old_leftovers_are_swept_and_young_ones_left(tmp_path: Path) -> None:
    for name, age in (("old.tmp", 2 * _cache._STALE_SECONDS), ("young.tmp", 0)):
        (tmp_path / name).write_text("half")
        then = time.time() - age
        os.utime(tmp_path / name, (then, then))
    Cache(tmp_path).put("a", "text")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "young.tmp"]


def test_processes_killed_while_writing_lose_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, _cache.__file__, str(tmp_path)]
    rng = random.Random(0)

    def start() -> subprocess.Popen:
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    writers = [start() for _ in range(8)]
    try:
        for _ in range(24):
            time.sleep(rng.uniform(0, 0.05))
            victim = rng.randrange(8)
            # A writer that has died by itself read something it should not have.
            assert writers[victim].poll() is None
            writers[victim].kill()
            writers[victim].communicate()
            writers[victim] = start()
        time.sleep(0.1)
        assert [w.poll() for w in writers] == [None] * 8
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    cache = Cache(tmp_path)
    assert {key: cache.get(key) for key in "abcdefgh"} == {
        key: key * 200_000 for key in "abcdefgh"
    }


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
