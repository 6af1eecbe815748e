"""Plans as files: versioned JSON, written whole, read strictly.

The format follows the dataclasses: an object per dataclass, and for a sequence of them
a table, `{"columns": [names], "rows": [[values]]}`. Reading is driven by the types of
the fields: what is missing, superfluous or of another type is refused with its place in
the file. docs/plan_format.md lists the fields.
"""

import dataclasses
import functools
import json
import os
import types
import typing
from pathlib import Path
from typing import Any

from ._errors import PlanError
from ._fitting.cache import write_whole
from ._plan import Plan, fingerprint

FORMAT = "coop_jax plan"
VERSION = 1


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Reads a plan that `Plan.save` wrote.

    Args:
      path: of the file.

    Returns:
      The plan, to look at, or to run with `coop_jax.remat(step, plan=plan)`.

    Raises:
      PlanError: the file is no plan, of another format version, cut short or changed.
      OSError: the file cannot be read.

    Example:
      >>> step.plan(state, batch).save("plan.json")
      >>> step = coop_jax.remat(train_step, plan=coop_jax.load_plan("plan.json"))
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PlanError(
            f"{os.fspath(path)!r} is not a saved plan", [str(error)]
        ) from None
    return from_text(text, os.fspath(path))


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Writes a plan to a file; an older file of that name is replaced as a whole."""
    write_whole(Path(path), to_text(plan))


def to_text(plan: Plan) -> str:
    """The plan as JSON text."""
    return json.dumps({"format": FORMAT, "version": VERSION, "plan": _encode(plan)})


def from_text(text: str, name: str = "the text") -> Plan:
    """The plan of a JSON text; `name` is what errors call it.

    Raises:
      PlanError: the text is no plan.
    """
    refused = functools.partial(PlanError, f"{name!r} is not a usable plan")
    try:
        content = json.loads(text)
    except ValueError as error:
        raise refused([f"It is no JSON, or was cut short: {error}."]) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise refused([f'It has no `"format": "{FORMAT}"`.'])
    if content.get("version") != VERSION:
        raise refused(
            [
                f"Its format is version {content.get('version')!r}; this coop_jax "
                f"reads version {VERSION}."
            ]
        )
    try:
        plan: Plan = _decode(Plan, content.get("plan"), "plan")
    except _Unreadable as error:
        raise refused([str(error)]) from None
    held = plan.positions, plan.loops, plan.bodies, plan.in_stages
    if fingerprint(plan.problem, plan.budget, *held) != plan.fingerprint:
        raise refused(
            ["Its fingerprint does not match what it holds: it was changed by hand."]
        )
    return plan


class _Unreadable(Exception):
    """What a place in the file holds is not what belongs there."""


def _encode(thing: Any) -> Any:
    if dataclasses.is_dataclass(thing):
        return {name: _encode(getattr(thing, name)) for name in _fields(type(thing))}
    if isinstance(thing, tuple):
        if thing and dataclasses.is_dataclass(thing[0]):
            names = list(_fields(type(thing[0])))
            rows = [[_encode(getattr(row, name)) for name in names] for row in thing]
            return {"columns": names, "rows": rows}
        return [_encode(item) for item in thing]
    return thing


def _decode(wanted: Any, found: Any, where: str) -> Any:
    """`found` as a value of the type `wanted`; `where` is its place in the file."""
    while isinstance(wanted, typing.TypeAliasType):
        wanted = wanted.__value__
    if isinstance(wanted, types.UnionType):
        if found is None:
            return None
        wanted = next(t for t in typing.get_args(wanted) if t is not types.NoneType)
        return _decode(wanted, found, where)
    if typing.get_origin(wanted) is tuple:
        return _decode_tuple(typing.get_args(wanted), found, where)
    if dataclasses.is_dataclass(wanted):
        return _decode_fields(wanted, found, where)
    if typing.get_origin(wanted) is typing.Literal:
        choices = typing.get_args(wanted)
        if found not in choices:
            raise _Unreadable(f"`{where}` is {str(found)[:40]!r}, none of {choices}.")
        return found
    if wanted is float and type(found) is int:
        return float(found)
    if type(found) is not wanted:
        raise _Unreadable(f"`{where}` is not {_named(wanted)}: {str(found)[:40]!r}.")
    return found


def _decode_fields(wanted: Any, found: Any, where: str) -> Any:
    fields = _fields(wanted)
    if not isinstance(found, dict) or set(found) != set(fields):
        raise _Unreadable(f"`{where}` has not the fields {', '.join(fields)}.")
    return wanted(
        **{
            name: _decode(t, found[name], f"{where}.{name}")
            for name, t in fields.items()
        }
    )


def _decode_tuple(items: tuple, found: Any, where: str) -> tuple:
    if isinstance(found, dict):
        return _decode_table(items[0], found, where)
    if not isinstance(found, list):
        raise _Unreadable(f"`{where}` is not a list.")
    if items[-1] is Ellipsis:
        items = (items[0],) * len(found)
    if len(items) != len(found):
        raise _Unreadable(f"`{where}` has {len(found)} items, not {len(items)}.")
    return tuple(
        _decode(wanted, item, f"{where}[{i}]")
        for i, (wanted, item) in enumerate(zip(items, found, strict=True))
    )


def _decode_table(wanted: Any, found: dict, where: str) -> tuple:
    columns, rows = found.get("columns"), found.get("rows")
    if not isinstance(columns, list) or not isinstance(rows, list):
        raise _Unreadable(f"`{where}` is not a table of columns and rows.")
    for i, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(columns):
            raise _Unreadable(f"`{where}[{i}]` has not {len(columns)} items.")
    return tuple(
        _decode_fields(wanted, dict(zip(columns, row, strict=True)), f"{where}[{i}]")
        for i, row in enumerate(rows)
    )


@functools.cache
def _fields(kind: type) -> dict[str, Any]:
    """Names and types of what a dataclass is made from."""
    hints = typing.get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind) if f.init}


def _named(wanted: Any) -> str:
    return {int: "an integer", float: "a number", str: "a string",
            bool: "true or false"}.get(wanted, str(wanted))  # fmt: skip
