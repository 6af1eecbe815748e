"""What the pairs of scans of a step may hold between them, in the room that there is.

What a step takes if its pairs hold other bytes is predicted from what XLA was seen to
take for the step as written, less what its pairs stacked there.
"""

import math
from collections.abc import Sequence

import numpy as np

from .._planning.validate import live_bytes
from .._program.profile import Profile
from .loop_plan import Held, Variant, choose
from .loop_sites import Site


class LoopRoom:
    """The bytes of a step by those of its pairs.

    Args:
      profile: of the step as written.
      temp: bytes of temporaries that XLA took for it.
      sites: its pairs.
    """

    def __init__(self, profile: Profile, temp: int, sites: Sequence[Site]):
        problem = profile.problem
        self._alive = np.array(live_bytes(problem, problem.program_order), np.int64)
        self._surplus = temp - int(self._alive.max(initial=0))
        self._sites = sites
        self._partitions = profile.program.partitions
        op_of = {unit.root: op for op, unit in enumerate(profile.units)}
        # The first and last op over which each pair holds bytes.
        self._ops = [tuple(op_of[k] for k in site.equations) for site in sites]

    def predict(self, variants: Sequence[Variant]) -> int:
        """Bytes of temporaries with these variants."""
        return self._predict([v.held for v in variants])

    def choose(self, room: int) -> list[Variant]:
        """The cheapest variants predicted to fit, or to come as near as any.

        Where the peak is elsewhere, to hold less than that leaves room for is no use.
        """
        pairs = [site.choices for site in self._sites]
        least = max(room, self.predict(self.smallest()))
        return choose(pairs, lambda held: self._predict(held) <= least)

    def smallest(self) -> list[Variant]:
        """The smallest variant of each pair."""
        return [site.choices.variants[-1] for site in self._sites]

    def cost_of_less(self, variants: Sequence[Variant], over: int) -> float:
        """Seconds it takes to hold `over` bytes less; infinite if there is no way."""
        aim = self.predict(variants) - over
        less = self.choose(aim)
        if self.predict(less) > aim:
            return math.inf
        return sum(v.cost for v in less) - sum(v.cost for v in variants)

    def _predict(self, held: Sequence[Held]) -> int:
        alive = self._alive.copy()
        for site, (first, last), (between, during) in zip(
            self._sites, self._ops, held, strict=True
        ):
            alive[first:last] += (between - site.written) // self._partitions
            alive[last] += (during - site.written) // self._partitions
        return int(alive.max(initial=0)) + self._surplus


def slope(fitted: tuple[int, int] | None, missed: tuple[int, int] | None) -> float:
    """Bytes to predict more for each one more of XLA's; 1 if too little is known.

    Args:
      fitted: bytes predicted, and taken, of variants that fit.
      missed: of some that took too much.
    """
    if fitted is None or missed is None or fitted[1] >= missed[1]:
        return 1.0
    return (missed[0] - fitted[0]) / (missed[1] - fitted[1])
