"""Names by which equations are found again in what XLA compiled."""

import re

type Place = tuple[int, ...]
"""Numbers of equations: of the loop, after those of the loops around it; the number of
a `cond` is followed by that of its branch."""

_SCOPE = re.compile(r"coop_eqn_(\d+)")
_NAMED = re.compile(r"(coop_(?:eqn|row|branch)_(\d+))")


def scope(index: int) -> str:
    """Name scope of equation `index` in the unplanned program."""
    return f"coop_eqn_{index}"


def equation_of(op_name: str) -> int | None:
    """The equation in whose scope, the innermost, XLA's instruction is."""
    scopes = _SCOPE.findall(op_name)
    return int(scopes[-1]) if scopes else None


def place_of(op_name: str) -> Place:
    """The equation in whose scope XLA's instruction is, after the loops around it."""
    return tuple(int(number) for _, number in _NAMED.findall(op_name))


def of_place(op_name: str) -> str:
    """A name with no other scopes, of the same place."""
    return "/".join(scope for scope, _ in _NAMED.findall(op_name))


def is_inside(at: Place, place: Place) -> bool:
    """Whether something is in the body of the loop or branch at a place."""
    return len(at) > len(place) and at[: len(place)] == place
