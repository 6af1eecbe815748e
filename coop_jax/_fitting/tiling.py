"""Dropout masks that are written, so that XLA:GPU makes one kernel of a softmax.

A softmax (an array reduced along an axis, and normalised by what that gives) is one
kernel there, tiled so that it reads its operand once, with what follows as far as that
can be tiled too. Random bits cannot. With a dropout mask drawn in the same kernel, and
a sum that something else reads as well, XLA writes the exponentials in float32 and
reads them twice: three times the bytes of a mask that is written and read.
"""

from .._planning.types import OpId
from .._program.cost import RANDOM
from .._program.fusing import REDUCTIONS
from .._program.profile import Profile
from .._program.units import Unit


def written_masks(profile: Profile) -> set[OpId]:
    """Ops that draw what a softmax reads; none but on GPU."""
    if profile.platform == "cpu":
        return set()
    equations, units = profile.program.equations, profile.units
    maker = {v: op for op, u in enumerate(units) for v in equations[u.root].outputs}

    def is_drawn(unit: Unit) -> bool:
        read = [units[maker[v]].root for v in unit.inputs if v in maker]
        return equations[unit.root].primitive.name not in RANDOM and any(
            equations[k].primitive.name in RANDOM for k in (*unit.inlined, *read)
        )

    def normalises(unit: Unit) -> bool:
        if any(equations[k].primitive.name in REDUCTIONS for k in unit.inlined):
            return True
        read = [units[maker[v]] for v in unit.inputs if v in maker]
        return any(
            equations[each.root].primitive.name in REDUCTIONS
            and not set(each.inlined).isdisjoint(unit.inlined)
            for each in read
        )

    return {
        maker[v]
        for unit in units
        if normalises(unit)
        for v in unit.inputs
        if v in maker and is_drawn(units[maker[v]])
    }
