"""Writes a translated chain down as the words of its program."""

from typing import TYPE_CHECKING

from .._program.trace import Variable
from .identities import simplified
from .program_words import (
    MOST_DIMENSIONS,
    VERSION,
    InplaceProgram,
    Map,
    Operand,
    Unsupported,
    storage_of,
)

if TYPE_CHECKING:
    from .translate import Translation


def encode(translation: "Translation", place: Map) -> InplaceProgram:
    """The finished translation as a program; `place` is the result's map."""
    return _Encoder(translation, place).encode()


class _Encoder:
    """Writes a finished translation down as words."""

    def __init__(self, translation: "Translation", place: Map) -> None:
        self.translation = translation
        self.place = place
        self.maps: dict[Map, int] = {}

    def encode(self) -> InplaceProgram:
        """The translation as the words that the native library reads."""
        t = self.translation
        aval = t.aval(t.result)
        for _, place, _ in t.operands:
            self._map(place)
        self._map(self.place)
        instructions = [self._encode_maps(each) for each in simplified(t.instructions)]
        operands = [self._operand(*key) for key in t.operands]
        order, row_rank = self._order()
        arrays: list[int] = []
        for operand, (v, place, is_key) in zip(operands, t.operands, strict=True):
            shape = (2,) if operand.shape is None else operand.shape
            dtype = "uint32" if is_key else t.aval(v).dtype
            arrays += [storage_of(dtype), self._map(place), len(shape), *shape]
        arrays += [storage_of(aval.dtype), self._map(self.place), len(aval.shape)]
        arrays += aval.shape
        sizes, maps = self._merged(order, row_rank)
        row_rank = sizes[1]
        header = [VERSION, len(sizes[0]), row_rank, len(maps), len(operands)]
        words = [*header, len(instructions), *sizes[0]]
        words += [stride for each in maps for stride in each]
        words += arrays
        words += [word for each in instructions for word in each]
        if len(sizes[0]) > MOST_DIMENSIONS:
            raise Unsupported
        return InplaceProgram(
            tuple(int(word) for word in words),
            tuple(operands),
            tuple(aval.shape),
            aval.dtype,
            tuple(k for k, key in enumerate(t.operands) if self._is_overwritable(*key)),
            tuple(sorted(t.outside)),
            t.row is not None,
            t.row is None or self.place[t.row[-1]] == 1,
        )

    def _map(self, place: Map) -> int:
        return self.maps.setdefault(place, len(self.maps))

    def _encode_maps(self, instruction: tuple) -> tuple[int, ...]:
        return tuple(self._map(x) if isinstance(x, tuple) else x for x in instruction)

    def _operand(self, v: Variable, place: Map, is_key: bool) -> Operand:
        t = self.translation
        if is_key:
            return Operand(v, None)
        if self._is_overwritable(v, place, is_key):
            return Operand(v, tuple(t.aval(t.result).shape))
        return Operand(v, tuple(t.aval(v).shape))

    def _is_overwritable(self, v: Variable, place: Map, is_key: bool) -> bool:
        t = self.translation
        mine, result = t.aval(v), t.aval(t.result)
        return (
            not is_key
            and place == self.place
            and mine.dtype == result.dtype
            and mine.size == result.size
            and sum(w == v for w, _, _ in t.operands) == 1
        )

    def _order(self) -> tuple[list[int], int]:
        """Dimensions of more than one element, the row's last; how many those are."""
        t = self.translation
        row = range(len(t.dimensions)) if t.row is None else t.row
        large = [d for d, n in enumerate(t.dimensions) if n > 1]
        outer = [d for d in large if d not in row]
        inner = [d for d in large if d in row]
        return outer + inner, len(inner)

    def _merged(
        self, order: list[int], row_rank: int
    ) -> tuple[tuple[list[int], int], list[list[int]]]:
        """Sizes and maps with neighbours merged that no map tells apart."""
        t = self.translation
        sizes: list[int] = []
        maps: list[list[int]] = [[] for _ in self.maps]
        in_row = 0
        for at, d in enumerate(order):
            starts_row = at == len(order) - row_rank
            strides = [place[d] for place in self.maps]
            is_one = (
                bool(sizes)
                and not starts_row
                and all(
                    m[-1] == s * t.dimensions[d]
                    for m, s in zip(maps, strides, strict=True)
                )
            )
            if is_one:
                sizes[-1] *= t.dimensions[d]
            else:
                sizes.append(t.dimensions[d])
                in_row += at >= len(order) - row_rank
            for m, s in zip(maps, strides, strict=True):
                m[-1:] = [s] if is_one else [*m[-1:], s]
        return (sizes, in_row), maps
