"""The plan cache: whole texts or none, under concurrent writers that get killed."""

import logging
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import coop_jax
from coop_jax._fitting import cache as _cache
from coop_jax._fitting.cache import Cache, write_whole
from tests.small_step import SHAPES, train_step

ROOT = Path(__file__).absolute().parent.parent

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

PLANNER = """
import logging, random, sys
import coop_jax
from tests.small_step import SHAPES, train_step

class Refused(logging.Handler):
    def emit(self, record):
        print("refused", record.getMessage(), flush=True)

logging.getLogger("coop_jax").addHandler(Refused(logging.WARNING))
print("ready", flush=True)
while True:
    share = random.randrange(70, 95) / 100
    plan = coop_jax.remat(
        train_step, share, donate_argnums=0, cache_dir=sys.argv[1]
    ).plan(*SHAPES)
    assert plan.measured.total <= plan.budget
    print("stored", share, plan.fingerprint, flush=True)
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


def start(count: int, source: str, *arguments: str) -> list[subprocess.Popen[str]]:
    """Processes of their own, once all say that they are ready."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", source, *arguments],
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    return processes


def killed(process: subprocess.Popen[str]) -> list[str]:
    """Kills a process that works, and returns the lines that it has said."""
    # One that has ended by itself read something it should not have.
    assert process.poll() is None
    process.kill()
    return process.communicate()[0].splitlines()


def test_processes_killed_while_writing_lose_nothing(tmp_path: Path) -> None:
    writer = (WRITER, _cache.__file__, str(tmp_path))
    rng = random.Random(0)
    writers = start(8, *writer)
    for _ in range(24):
        time.sleep(rng.uniform(0, 0.05))
        victim = rng.randrange(8)
        killed(writers[victim])
        (writers[victim],) = start(1, *writer)
    time.sleep(0.1)
    for process in writers:
        killed(process)
    cache = Cache(tmp_path)
    assert {key: cache.get(key) for key in "abcdefgh"} == {
        key: key * 200_000 for key in "abcdefgh"
    }


@pytest.mark.slow
def test_processes_killed_while_planning_lose_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    rng = random.Random(0)
    for count, process in enumerate(start(8, PLANNER, str(tmp_path)), start=1):
        while len(list(tmp_path.glob("*.json"))) < count:
            assert process.poll() is None
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 0.3))
        said += killed(process)
    # A line may be cut off where its process was killed.
    stored = dict(line.split()[1:] for line in said if line.count(" ") == 2)
    assert stored
    assert not [line for line in said if line.startswith("refused")]
    files = {path: path.read_bytes() for path in tmp_path.glob("*.json")}
    assert len(files) >= 8
    plans = {path: coop_jax.load_plan(path) for path in files}
    assert {plan.fingerprint for plan in plans.values()} >= set(stored.values())
    for share, fingerprint in stored.items():
        step = coop_jax.remat(
            train_step, float(share), donate_argnums=0, cache_dir=tmp_path
        )
        assert step.plan(*SHAPES).fingerprint == fingerprint
    assert {path: path.read_bytes() for path in tmp_path.glob("*.json")} == files


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
