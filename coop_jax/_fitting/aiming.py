"""What to aim the planner at until XLA's bytes fit. Imports no JAX.

XLA adds to what the model predicts, and more to one plan than to the next. So after a
miss the aim is below what was predicted, by what was too much, twice as far each time;
after a fit that leaves much it is higher, but no higher than halfway to what missed
before, and halfway back to the fit if that is too high.

A first plan that misses by far is taken to be packed badly by chance: where arrays are
large, one that finds no gap is enough. Others for nearly as many bytes may be packed
well, so what was predicted is followed by an aim right below it.
"""

from dataclasses import dataclass

_RAISED = 0.7
_FAR = 0.05


def least_margin(room: int) -> int:
    """Bytes that are always left: plans that are nearly alike differ by as much."""
    return room // 200


@dataclass(slots=True)
class Aim:
    """Bytes of temporaries to plan for, of `room`.

    Attributes:
      room: bytes that may be taken.
      surplus: by how much less is aimed at.
      misses: plans that took more, but for a first one that did by far.
      is_stray: whether the last plan was that one.
    """

    room: int
    surplus: int
    misses: int = 0
    is_stray: bool = False
    _push: int = 1
    _missed: int | None = None
    _fitted: int | None = None

    @property
    def bytes(self) -> int:
        """What to plan for now."""
        return self.room - self.surplus

    def miss(self, over: int, unused: int = 0) -> None:
        """Aims lower, after `over` bytes too many.

        The plan may itself have left `unused` bytes of what was aimed at.
        """
        is_first = self._missed is None and self._fitted is None
        self.is_stray = is_first and over > _FAR * self.room
        self.misses += not self.is_stray
        if self._fitted is not None:
            self._missed = self.surplus
            self.surplus = (self._missed + self._fitted) // 2
            return
        self.surplus += unused
        self._missed = self.surplus
        self.surplus += least_margin(self.room)
        if not self.is_stray:
            self.surplus += self._push * over
            self._push *= 2

    def rise(self, spare: int) -> int:
        """By how much it would be higher after `spare` bytes were left."""
        risen = int(_RAISED * spare)
        if self._missed is None:
            return risen
        return min(risen, (self.surplus - self._missed + 1) // 2)

    def leave(self, spare: int) -> None:
        """Aims higher, after `spare` bytes were left."""
        self.is_stray = False
        self._fitted = self.surplus
        self.surplus -= self.rise(spare)
