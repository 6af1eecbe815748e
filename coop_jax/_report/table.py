"""What a plan does with each value, as rows of text in which layers repeat.

Values are grouped when only the numbers of their layers tell them apart (`block_0`,
`block_1`): same layer, primitive, type, source line and treatment. Without name scopes,
the source line alone tells layers apart.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .._budget import format_bytes

if TYPE_CHECKING:
    from .._plan import Action

_NUMBER = re.compile(r"\d+")
_HEADER = ("action", "values", "bytes", "ms again", "type", "primitive", "source")
_IS_LEFT = (True, False, False, False, True, True, True)


def table_text(actions: Sequence["Action"], least: int) -> str:
    """The table of a plan's values: layers in program order, largest rows first.

    Args:
      actions: what the plan does with each value.
      least: values of fewer bytes are counted together.
    """
    layers = _Layers(action.scope for action in actions)
    members: dict[str, list[Action]] = defaultdict(list)
    for action in actions:
        members[layers.pattern(action.scope) + "|" * action.is_backward].append(action)
    cells: list[tuple[str, ...] | str] = [_HEADER]
    for layer, found in members.items():
        cells.append(_heading(layer, found, layers))
        cells += _rows(found, least)
    rows = [row for row in cells if not isinstance(row, str)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADER))]
    lines = [row if isinstance(row, str) else _line(row, widths) for row in cells]
    return "\n".join(line.rstrip() for line in lines)


def shortened(text: str) -> str:
    """Text with paths below the working directory written from there."""
    return text.replace(os.getcwd() + os.sep, "")


class _Layers:
    """Tells which parts of the name scopes number repeated layers."""

    def __init__(self, scopes: Iterable[str]) -> None:
        self._numbered: dict[tuple[str, ...], set[str]] = defaultdict(set)
        for scope in set(scopes):
            parts = tuple(scope.split("/"))
            for i, part in enumerate(parts):
                self._numbered[_key(parts, i)].add(part)

    def head(self, scope: str) -> str:
        """The scope down to its first layer that repeats, numbers included."""
        parts = tuple(scope.split("/"))
        for i in range(len(parts)):
            if len(self._numbered[_key(parts, i)]) > 1:
                return "/".join(parts[: i + 1])
        return ""

    def pattern(self, scope: str) -> str:
        """The same with `*` for the number; the first scopes if no layer repeats."""
        head = self.head(scope)
        if not head:
            return "/".join(scope.split("/")[:2])
        *outer, last = head.split("/")
        return "/".join((*outer, _NUMBER.sub("*", last)))


def _key(parts: tuple[str, ...], i: int) -> tuple[str, ...]:
    return (*parts[:i], _NUMBER.sub("*", parts[i]))


def _heading(layer: str, members: Sequence["Action"], layers: _Layers) -> str:
    repeats = {layers.head(action.scope) for action in members}
    name, bar, _ = layer.partition("|")
    times = f" (x {len(repeats)})" if len(repeats) > 1 else ""
    way = ", backward" if bar else ""
    size = format_bytes(sum(action.size for action in members))
    return (
        f"{name or 'no name scope'}{times}{way}: {len(members)} values, {size} in turn"
    )


def _rows(members: Sequence["Action"], least: int) -> list[tuple[str, ...]]:
    groups: dict[tuple, list[Action]] = defaultdict(list)
    for action in members:
        scope = _NUMBER.sub("*", action.scope)
        key = (scope, action.kind, action.is_in_place, action.type, action.name)
        groups[key if action.size >= least else ()].append(action)
    small = groups.pop((), [])
    ranked = sorted(groups.values(), key=lambda same: -sum(a.size for a in same))
    rows = [_row(same) for same in ranked]
    return [*rows, _summed("smaller", small)] if small else rows


def _summed(action: str, same: Sequence["Action"]) -> tuple[str, ...]:
    again = sum(action.cost * (action.runs - 1) for action in same)
    return (
        f"  {action}",
        str(len(same)),
        format_bytes(sum(action.size for action in same)),
        f"{again * 1e3:.3f}" if again else "",
        *("", "", ""),
    )


def _row(same: Sequence["Action"]) -> tuple[str, ...]:
    first = same[0]
    kind = first.kind if first.runs < 3 else f"{first.kind} x {first.runs - 1}"
    if first.is_in_place:
        kind += ", in place"
    about = (first.type, first.primitive, shortened(first.source))
    return (*_summed(kind, same)[:4], *about)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(
        text.ljust(width) if is_left else text.rjust(width)
        for text, width, is_left in zip(row, widths, _IS_LEFT, strict=True)
    )
