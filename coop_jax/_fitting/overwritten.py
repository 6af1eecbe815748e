"""Which operand an in-place call may overwrite: one that nothing reads any more."""

from collections.abc import Sequence

from .._planning.types import OpId
from .._program.profile import Profile
from .._program.trace import Literal


def overwritten_operands(
    profile: Profile, parts: Sequence[Sequence[OpId]]
) -> dict[tuple[int, OpId], int]:
    """Per part and in-place call, the operand whose value is not read again."""
    equations, units = profile.program.equations, profile.units
    if not profile.calls:
        return {}
    # Going backwards: what is read before it is computed anew.
    live = {atom for atom in profile.program.outputs if not isinstance(atom, Literal)}
    live = {profile.alias_of.get(v, v) for v in live}
    computed = {v for unit in units for v in equations[unit.root].outputs}
    found: dict[tuple[int, OpId], int] = {}
    for index in range(len(parts) - 1, -1, -1):
        for op in reversed(parts[index]):
            live -= set(equations[units[op].root].outputs)
            program = profile.calls.get(op)
            if program is not None:
                dying = [
                    k
                    for k in program.overwritable
                    if (v := program.operands[k].variable) in computed and v not in live
                ]
                if dying:
                    found[index, op] = dying[0]
            live |= set(units[op].inputs)
    return found
