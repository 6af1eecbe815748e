"""Operator streams as JSON lines: what they say, how they are read and written. No JAX.

A stream is what an eager framework sees: calls with their cost and the bytes of their
results, views, in-place changes, and releases. `docs/trace-format.md` is the reference.
Here is the syntax of one line; what lines mean together is in `workload`.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

FORMAT, VERSION = "coop-trace", 1

_MOST_BYTES = 1 << 50
"""Of one tensor; sums of very many are counted in 64 bits."""


class TraceError(ValueError):
    """A trace that cannot be used: says in which line, and why."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}")
        self.line = line


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor of `size` bytes that is there before the first call, never evicted."""

    tensor: str
    size: int


@dataclass(frozen=True, slots=True)
class Call:
    """One operator.

    Attributes:
      op: its name, for reports and for the published partition.
      inputs: tensors it reads.
      outputs: tensors it makes, with the bytes of each.
      mutates: tensors whose bytes it overwrites; after it the names mean the new
        values. It reads the old ones too.
      cost: seconds one execution takes.
      workspace: bytes it needs only while it runs.
      is_recomputable: False if it must run exactly once.
      kept: of its outputs and what it mutates, what is never evicted.
    """

    op: str
    inputs: tuple[str, ...] = ()
    outputs: Mapping[str, int] = field(default_factory=dict)
    mutates: tuple[str, ...] = ()
    cost: float = 0.0
    workspace: int = 0
    is_recomputable: bool = True
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Alias:
    """Another name, or a view, of the bytes behind `of`."""

    tensor: str
    of: str


@dataclass(frozen=True, slots=True)
class Release:
    """The program lets go of a name."""

    tensor: str


type Event = Constant | Call | Alias | Release


def write(path: str | Path, events: Iterable[Event], name: str = "") -> None:
    """Writes a stream, one line an event."""
    with open(path, "w", encoding="utf-8") as file:
        _put(file, {"format": FORMAT, "version": VERSION, "name": name})
        count = 0
        for event in events:
            _put(file, _as_json(event))
            count += 1
        _put(file, {"end": count})


def read(path: str | Path) -> Iterator[tuple[int, Event]]:
    """Yields each event with the number of its line.

    Raises:
      TraceError: a line is not as described, or the file ends too early.
    """
    with open(path, "rb") as file:
        line = 0
        events = 0
        for line, text in enumerate(file, start=1):
            record = _parsed(line, text)
            if line == 1:
                _check_header(record)
            elif "end" in record:
                if record["end"] != events:
                    why = f"the end is that of {record['end']} events, not of {events}"
                    raise TraceError(line, why)
                for rest in file:
                    line += 1
                    if rest.strip():
                        raise TraceError(line, "there is more after the end")
                return
            else:
                events += 1
                yield line, _event(line, record)
        raise TraceError(line + 1, "the file is cut off: it has no line with an end")


def _put(file: TextIO, record: dict[str, Any]) -> None:
    file.write(json.dumps(record, separators=(",", ":")) + "\n")


def _as_json(event: Event) -> dict[str, Any]:
    match event:
        case Constant():
            return {"constant": event.tensor, "size": event.size}
        case Alias():
            return {"alias": event.tensor, "of": event.of}
        case Release():
            return {"release": event.tensor}
    record: dict[str, Any] = {
        "call": event.op,
        "inputs": event.inputs,
        "outputs": dict(event.outputs),
        "cost": event.cost,
    }
    if event.mutates:
        record["mutates"] = event.mutates
    if event.workspace:
        record["workspace"] = event.workspace
    if not event.is_recomputable:
        record["recomputable"] = False
    if event.kept:
        record["kept"] = event.kept
    return record


def _parsed(line: int, text: bytes) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(line, f"this is not JSON, or is cut off: {error}") from None
    if not isinstance(record, dict):
        raise TraceError(line, "a line holds one JSON object")
    return record


def _check_header(record: dict[str, Any]) -> None:
    if record.get("format") != FORMAT:
        why = f'a trace begins with {{"format":"{FORMAT}","version":{VERSION}}}'
        raise TraceError(1, why)
    if record.get("version") != VERSION:
        why = f"version {record.get('version')!r} is not {VERSION}, the one known here"
        raise TraceError(1, why)


_KEYS = {
    "constant": {"constant", "size"},
    "call": {
        "call",
        "inputs",
        "outputs",
        "mutates",
        "cost",
        "workspace",
        "recomputable",
        "kept",
    },
    "alias": {"alias", "of"},
    "release": {"release"},
}


def _event(line: int, record: dict[str, Any]) -> Event:
    kinds = [kind for kind in _KEYS if kind in record]
    if len(kinds) != 1:
        known = ", ".join(_KEYS)
        raise TraceError(line, f"a line is one of {known}, or the end")
    unknown = sorted(set(record) - _KEYS[kinds[0]])
    if unknown:
        raise TraceError(line, f"a {kinds[0]} has no {', '.join(unknown)}")
    fields = _Fields(line, record)
    match kinds[0]:
        case "constant":
            return Constant(fields.name("constant"), fields.size("size"))
        case "alias":
            return Alias(fields.name("alias"), fields.name("of"))
        case "release":
            return Release(fields.name("release"))
    return Call(
        op=fields.name("call"),
        inputs=fields.names("inputs"),
        outputs=fields.sizes("outputs"),
        mutates=fields.names("mutates"),
        cost=fields.cost("cost"),
        workspace=fields.size("workspace") if "workspace" in record else 0,
        is_recomputable=fields.flag("recomputable"),
        kept=fields.names("kept"),
    )


class _Fields:
    """Reads the fields of one line, or says what is wrong with them."""

    def __init__(self, line: int, record: dict[str, Any]) -> None:
        self.line, self.record = line, record

    def name(self, key: str) -> str:
        found = self.record.get(key)
        if not isinstance(found, str) or not found:
            raise self._error(key, "a name", found)
        return found

    def names(self, key: str) -> tuple[str, ...]:
        found = self.record.get(key, [])
        if not isinstance(found, list) or not all(isinstance(n, str) for n in found):
            raise self._error(key, "a list of names", found)
        return tuple(found)

    def size(self, key: str) -> int:
        return self._bytes(key, self.record.get(key))

    def sizes(self, key: str) -> dict[str, int]:
        found = self.record.get(key, {})
        if not isinstance(found, dict):
            raise self._error(key, "names with their bytes", found)
        return {name: self._bytes(name, size) for name, size in found.items()}

    def cost(self, key: str) -> float:
        found = self.record.get(key)
        if isinstance(found, int | float) and not isinstance(found, bool):
            if 0 <= found <= sys.float_info.max:
                return float(found)
        raise self._error(key, "seconds, at least 0", found)

    def flag(self, key: str) -> bool:
        found = self.record.get(key, True)
        if not isinstance(found, bool):
            raise self._error(key, "true or false", found)
        return found

    def _bytes(self, key: str, found: Any) -> int:
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise self._error(key, "a whole number of bytes, at least 0", found)
        if found > _MOST_BYTES:
            raise self._error(key, f"at most {_MOST_BYTES:,} bytes", found)
        return found

    def _error(self, key: str, wanted: str, found: Any) -> TraceError:
        return TraceError(self.line, f"{key!r} is {wanted}, not {found!r}")
