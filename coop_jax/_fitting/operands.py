"""The order in which what products read lies in memory while it waits, on GPU.

Its library multiplies matrices, in a batch or not: the dimensions of the batch come
first, and those that are summed lie together, as do the others. An operand that does
not lie so XLA:GPU turns around: in the step as written once, where it is made; behind
barriers again in front of every product. Attention is such: its heads lie beside the
width of each, and are a batch.

What a product of two matrices makes it may as well write turned around, and does if
whatever reads it turns it, as gradients of weights are: transposes behind barriers XLA
moves through a sum of them term by term, with a round of simplification for each.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax import lax

from .._program.fusing import VIEWS
from .._program.profile import Profile
from .._program.trace import Equation, Variable
from .._program.units import Graph

type Piece = tuple[int, int]
"""Elements from one to the next in the array as it is made, and how many."""
type Dimension = tuple[Piece, ...]
"""The pieces that a dimension is made of, outermost first."""
type Reading = tuple[Dimension, Dimension, Dimension]
"""What is the batch of a product, what is not summed, and what is."""
type Place = tuple[int, int]
"""An equation, and which of its operands."""


@dataclass(frozen=True, slots=True)
class Order:
    """How an array lies.

    Attributes:
      shape: of the array.
      pieces: sizes of what its dimensions are split into.
      places: those pieces in the order that they lie in.
    """

    shape: tuple[int, ...]
    pieces: tuple[int, ...]
    places: tuple[int, ...]

    def turn(self, array: jax.Array) -> jax.Array:
        """The array with its pieces in this order."""
        return lax.transpose(lax.reshape(array, self.pieces), self.places)

    def turn_back(self, turned: jax.Array) -> jax.Array:
        """The array that was turned."""
        back = sorted(range(len(self.places)), key=self.places.__getitem__)
        return lax.reshape(lax.transpose(turned, back), self.shape)


def with_operands_laid(profile: Profile) -> tuple[Profile, dict[Variable, Order]]:
    """The profile with products that take operands as they lie, and how those lie.

    The order is that behind barriers, of what is not to lie as it is made. Arrays that
    several devices hold parts of lie as XLA's partitioner has them.
    """
    program = profile.program
    if profile.platform != "gpu" or program.partitions > 1:
        return profile, {}
    graph, orders, summed_first = Graph(program), dict[Variable, Order](), set[Place]()
    for unit in profile.units:
        for v in graph.equations[unit.root].outputs:
            lying = lying_for_products(graph, v)
            summed_first |= lying.summed_first
            if lying.order is not None:
                orders[v] = lying.order
    equations = [
        _batch_first(k, each, summed_first) if _has_batch(each) else each
        for k, each in enumerate(program.equations)
    ]
    laid = replace(program, equations=tuple(equations))
    return replace(profile, program=laid), orders


@dataclass(frozen=True, slots=True)
class Lying:
    """How a value lies for what reads it.

    Attributes:
      order: in which all that read it take it as it lies; None if its own order will
        do, or if there is none for all; if not only products read it, none but that in
        which a product writes it turned around.
      summed_first: where it lies so, with what is summed before what is not.
    """

    order: Order | None
    summed_first: frozenset[Place]


def lying_for_products(graph: Graph, variable: Variable) -> Lying:
    """How a value is to lie for what reads it, products above all."""
    shape = graph.program.avals[variable].shape
    own = _row_major(shape)
    found, others = _readings(graph, variable, own)
    turned = _written_turned(graph, variable, own)
    pieces = _common([own, *found.values(), *(others if turned else ())])
    if math.prod(size for _, size in pieces) != math.prod(shape):
        return Lying(None, frozenset())  # views that cut across each other
    readings = {place: _refined(each, pieces) for place, each in found.items()}
    elsewhere = [_refined(each, pieces) for each in others]
    lying = _taken_by_all(pieces, [*readings.values(), *elsewhere])
    if others and lying != _cut(turned, pieces):
        lying = pieces
    order = None
    if lying != pieces:
        places = tuple(map(pieces.index, lying))
        order = Order(shape, tuple(size for _, size in pieces), places)
    summed_first = frozenset(
        place
        for place, (batch, rest, summed) in readings.items()
        if lying == (*batch, *summed, *rest) != (*batch, *rest, *summed)
    )
    return Lying(order, summed_first)


def _taken_by_all(pieces: Dimension, readings: Iterable[Reading]) -> Dimension:
    """The pieces in an order in which each product takes them, else as they are."""
    wanted = ((*batch, *rest, *summed) for batch, rest, summed in readings)
    for lying in (pieces, *wanted):
        if all(_is_taken(lying, each) for each in readings):
            return lying
    return pieces


def _is_taken(lying: Dimension, by: Reading) -> bool:
    batch, rest, summed = by
    return lying in ((*batch, *rest, *summed), (*batch, *summed, *rest))


def _written_turned(
    graph: Graph, variable: Variable, dimensions: Sequence[Dimension]
) -> Dimension:
    """How what a product of two matrices makes lies if it is written turned around.

    Nothing for what is made otherwise.
    """
    maker = graph.producer.get(variable)
    if maker is None or graph.equations[maker].primitive.name != "dot_general":
        return ()
    product = graph.equations[maker]
    (summed, _), (batch, _) = product.params["dimension_numbers"]
    left = len(graph.program.avals[product.variables[0]].shape) - len(summed)
    return () if batch else _joined([*dimensions[left:], *dimensions[:left]])


def _readings(
    graph: Graph, variable: Variable, dimensions: Sequence[Dimension]
) -> tuple[dict[Place, Reading], list[Reading]]:
    """How products read a value, and how whatever else does: as it lies there."""
    found, others = dict[Place, Reading](), list[Reading]()
    as_it_lies: Reading = (), _joined(dimensions), ()
    if variable in graph.outputs:
        others.append(as_it_lies)
    for k in graph.consumers[variable]:
        equation = graph.equations[k]
        if equation.primitive.name == "dot_general":
            sources = [graph.resolve(v) for v in equation.variables]
            sides = [side for side, v in enumerate(sources) if v == variable]
            found |= {(k, side): _read(dimensions, equation, side) for side in sides}
        elif moved := _moved(graph, equation, dimensions):
            inside, elsewhere = _readings(graph, equation.outputs[0], moved)
            found |= inside
            others += elsewhere
        else:
            others.append(as_it_lies)
    return found, others


def _joined(dimensions: Iterable[Dimension]) -> Dimension:
    return tuple(piece for each in dimensions for piece in each)


def _read(dimensions: Sequence[Dimension], product: Equation, side: int) -> Reading:
    summed, batch = (each[side] for each in product.params["dimension_numbers"])
    rest = _rest(len(dimensions), batch, summed)

    def joined(chosen: Iterable[int]) -> Dimension:
        return _joined(dimensions[d] for d in chosen)

    return joined(batch), joined(rest), joined(summed)


def _rest(count: int, batch: Iterable[int], summed: Iterable[int]) -> list[int]:
    """Which of so many dimensions are neither."""
    return [d for d in range(count) if d not in {*batch, *summed}]


def _moved(
    graph: Graph, equation: Equation, dimensions: Sequence[Dimension]
) -> list[Dimension]:
    """The dimensions of a transpose or a view; none if it is neither."""
    if equation.primitive.name == "transpose":
        return [dimensions[d] for d in equation.params["permutation"]]
    if equation.primitive.name not in VIEWS:
        return []
    shape = graph.program.avals[equation.outputs[0]].shape
    return _split(_joined(dimensions), shape)


def _row_major(shape: Sequence[int]) -> list[Dimension]:
    steps = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
    whole = zip(steps, shape, strict=True)
    return [((step, size),) if size > 1 else () for step, size in whole]


def _split(pieces: Iterable[Piece], shape: Sequence[int]) -> list[Dimension]:
    """The pieces as dimensions of these sizes; none if they do not come out even."""
    found, left = list[Dimension](), [*pieces][::-1]
    for size in shape:
        dimension: list[Piece] = []
        while size > 1:
            step, count = left.pop() if left else (0, 0)
            if count == 0 or (size % count and count % size):
                return []
            taken = min(size, count)
            rest = count // taken
            dimension.append((step * rest, taken))
            left += [(step, rest)] if rest > 1 else []
            size //= taken
        found.append(tuple(dimension))
    return found


def _common(arrays: Iterable[Sequence[Dimension]]) -> Dimension:
    """The pieces that are cut wherever those of some array are, outermost first."""
    pieces = [piece for array in arrays for piece in _joined(array)]
    cuts = sorted({cut for step, n in pieces for cut in (step, step * n)}, reverse=True)
    return tuple((low, high // low) for high, low in itertools.pairwise(cuts))


def _refined(reading: Reading, pieces: Dimension) -> Reading:
    batch, rest, summed = reading
    return _cut(batch, pieces), _cut(rest, pieces), _cut(summed, pieces)


def _cut(group: Dimension, pieces: Dimension) -> Dimension:
    inside = ((step, step * count) for step, count in group)
    return tuple(p for low, high in inside for p in pieces if low <= p[0] < high)


def _has_batch(equation: Equation) -> bool:
    """Whether it is a product of a batch of matrices, split over no mesh."""
    if equation.primitive.name != "dot_general" or equation.instead is not None:
        return False
    _, (batch, _) = equation.params["dimension_numbers"]
    return bool(batch) and equation.params.get("out_sharding") is None


def _batch_first(k: int, product: Equation, summed_first: set[Place]) -> Equation:
    """The product, with the dimensions of the batch in front of its operands.

    XLA turns none around then that need not be: else it may for the library, and once
    more for the product's own order.
    """
    each = [(k, side) in summed_first for side in range(2)]
    return replace(product, instead=functools.partial(_multiply, product, each))


def _multiply(
    product: Equation, is_summed_first: Sequence[bool], *values: jax.Array
) -> list[Any]:
    summed, batch = product.params["dimension_numbers"]
    operands, places = [], []
    for side, x in enumerate(values):
        rest = _rest(x.ndim, batch[side], summed[side])
        inside = [*rest, *summed[side]]
        if is_summed_first[side]:
            inside = [*summed[side], *rest]
        order = [*batch[side], *inside]
        operands.append(lax.transpose(x, order))
        places.append(tuple(map(order.index, summed[side])))
    first = tuple(range(len(batch[0])))
    params: Mapping[str, Any] = product.params | {
        "dimension_numbers": (tuple(places), (first, first))
    }
    params = product.primitive.get_bind_params(params)
    return [product.primitive.bind(*operands, **params)]
