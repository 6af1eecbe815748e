"""Names by which equations are found again in what XLA compiled."""

import re

_SCOPE = re.compile(r"coop_eqn_(\d+)")


def scope(index: int) -> str:
    """Name scope of equation `index` in the unplanned program."""
    return f"coop_eqn_{index}"


def equation_of(op_name: str) -> int | None:
    """The equation in whose scope, the innermost, XLA's instruction is."""
    scopes = _SCOPE.findall(op_name)
    return int(scopes[-1]) if scopes else None
