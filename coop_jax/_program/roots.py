"""Which equations become ops: what XLA gives bytes, by its buffer assignment.

Eight corrections to what the assignment says:
  * equations that XLA made one instruction are one unit;
  * a reshape that owns bytes only renames those of its operand: ownership moves there;
  * a product and the transpose of it that owns its bytes are one unit;
  * what is transposed for products alone, or a weight turned around for one library
    call, is theirs: XLA takes the two together, and in halves it turns twice;
  * an equation that XLA cannot fuse into several readers owns its bytes in any case,
    and so does one in which devices communicate; on GPU a reduction only where XLA
    wrote something for it;
  * a value with readers in several ops that lets go of twice its own bytes (a mask of
    its random bits, a bfloat16 copy of its source, a sum of gradients of its terms) is
    worth owning: keeping it can be cheaper than keeping what it is computed from;
  * on GPU so is one that lets go of as much and is then converted, for one reader;
  * so is, after all these, a transpose that several ops read which are not products.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set

import jax.numpy as jnp

from .fusing import (
    ACCUMULATING,
    FUSIBLE,
    LAYOUTS,
    PLACING,
    REDUCTIONS,
    SUMS,
    VIEWS,
    fusible,
)
from .hlo import OwnedBuffer
from .shards import communicates
from .threefry import WORDS, draws_words
from .trace import Equation, Variable
from .units import Graph

_LOOPS = {"scan", "while", "cond"}


def choose_roots(
    graph: Graph, owned: Mapping[int, Sequence[OwnedBuffer]], platform: str
) -> set[int]:
    """The equations that become ops; all others are computed inside of them.

    Args:
      graph: of the program.
      owned: per equation, what XLA assigned to it in the step as written.
      platform: "cpu" or "gpu"; decides what XLA fuses.
    """
    roots = set()
    of_platform = fusible(platform)
    for k, equation in enumerate(graph.equations):
        if equation.is_barrier:
            continue
        is_owner = _is_owner(graph, owned, k)
        is_written = equation.primitive.name in REDUCTIONS and bool(owned.get(k))
        if (
            is_owner
            or is_written
            or equation.primitive.name not in of_platform
            or equation.primitive is WORDS
            or equation.effects
            or equation.is_pinned
            or graph.is_read_by_caller(k)
            or communicates(owned.get(k, ()))
        ):
            roots.add(k)
    _move_from_views(graph, roots)
    _merge_layouts(graph, roots)
    _merge_turned(graph, owned, roots)
    _merge_accumulations(graph, owned, roots)
    _add_narrow(graph, roots)
    if platform != "cpu":
        _add_before_casts(graph, roots)
    _merge_words(graph, owned, roots, platform)
    _add_turned(graph, roots)
    return roots


def _is_owner(graph: Graph, owned: Mapping[int, Sequence[OwnedBuffer]], k: int) -> bool:
    """Whether XLA wrote what an equation computes."""
    outputs = graph.equations[k].outputs
    sizes = {size for v in outputs for size in held_sizes(graph, v)}
    return any(
        buffer.size in sizes and buffer.origin == "equation"
        for buffer in owned.get(k, ())
    )


def held_sizes(graph: Graph, variable: Variable) -> set[int]:
    """Bytes that XLA may hold a value in: 16-bit floats also as float32 (CPU)."""
    size, dtype = graph.bytes(variable), graph.program.avals[variable].dtype
    is_short_float = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize == 2
    return {size, 2 * size} if is_short_float else {size}


def _move_from_views(graph: Graph, roots: set[int]) -> None:
    for k in sorted(roots, reverse=True):
        equation = graph.equations[k]
        if equation.primitive.name not in VIEWS or graph.is_read_by_caller(k):
            continue
        sources = graph.reads(k)
        if sources and sources[0] in graph.producer:
            roots.discard(k)
            roots.add(graph.producer[sources[0]])


def _merge_layouts(graph: Graph, roots: set[int]) -> None:
    """Makes an equation that only moves bytes about part of the calls that read it."""
    for k in sorted(roots):
        equation = graph.equations[k]
        if equation.primitive.name not in LAYOUTS or graph.is_read_by_caller(k):
            continue
        readers = _readers_through_views(graph, k)
        is_of_argument = not any(v in graph.producer for v in graph.reads(k))
        if _is_folded(graph, k) or (
            is_of_argument and len(readers) == 1 and _is_call(graph, readers)
        ):
            roots.discard(k)


def _is_folded(graph: Graph, k: int) -> bool:
    """Whether only products read a transpose: they take operands in any order.

    Held, it would be turned around once to be held and again for each product.
    """
    readers = _readers_through_views(graph, k)
    names = {graph.equations[reader].primitive.name for reader in readers}
    return graph.equations[k].primitive.name == "transpose" and names == {"dot_general"}


def _merge_turned(
    graph: Graph, owned: Mapping[int, Sequence[OwnedBuffer]], roots: set[int]
) -> None:
    """Makes one unit of a product and its transpose, which XLA writes turned at once.

    Such is every layer that `vmap` makes of `weight @ x`. Where a product sums over
    several dimensions, a plain `dot` that XLA:CPU makes of the two takes longer than
    a library's product and the transpose of it; over one, it is a plain `dot` in any
    case.
    """
    for k in sorted(roots):
        equation = graph.equations[k]
        if equation.primitive.name != "dot_general" or owned.get(k):
            continue
        readers = graph.consumers[equation.outputs[0]]
        if len(readers) != 1 or graph.is_read_by_caller(k):
            continue
        is_transpose = graph.equations[readers[0]].primitive.name == "transpose"
        written = owned.get(readers[0])
        is_plain = any(b.opcode == "dot" for b in written or ())
        is_slower = is_plain and _summed_dimensions(equation) > 1
        if is_transpose and readers[0] in roots and written and not is_slower:
            roots.discard(k)


def _summed_dimensions(product: Equation) -> int:
    (summed, _), _ = product.params["dimension_numbers"]
    return len(summed)


def _is_call(graph: Graph, equations: set[int]) -> bool:
    return all(graph.equations[k].primitive.name not in FUSIBLE for k in equations)


def _readers_through_views(graph: Graph, k: int) -> set[int]:
    found, todo = set(), list(graph.equations[k].outputs)
    while todo:
        for reader in graph.consumers[todo.pop()]:
            if graph.equations[reader].primitive.name in VIEWS:
                todo += graph.equations[reader].outputs
            else:
                found.add(reader)
    return found


def _merge_accumulations(
    graph: Graph, owned: Mapping[int, Sequence[OwnedBuffer]], roots: set[int]
) -> None:
    """Makes one unit of the equations that XLA made one instruction.

    XLA turns `x + scatter(zeros)` into a scatter onto `x`, and a product plus `x`, with
    a bias or without, into one library call: the first equation's buffer lies where `x`
    does, or where a copy of it does, and the sum has none, or, after a scatter, a copy
    in another layout. Units of their own would have a stack of residual layers keep
    every layer's addend for the stream, and sum up all of them in every reader.
    """
    call_of: dict[int, int] = {}
    for k in sorted(roots):
        name = graph.equations[k].primitive.name
        is_product = name == "dot_general" or _turns_a_product(graph, k, roots)
        if len(graph.equations[k].outputs) != 1 or name in _LOOPS:
            continue
        if name in FUSIBLE and not is_product:
            continue
        places = _places(owned.get(k, ()))
        # A product may be turned, and in a sum of several a bias comes first.
        through = SUMS | VIEWS | LAYOUTS if is_product else set[str]()
        for sum_, others in _sums(graph, k, through):
            if owned.get(sum_) and name not in ACCUMULATING:
                break
            if is_product:
                # What is written later is written onto this one.
                written = _writers(graph, others, call_of, owned)
                others = [w for w in written if w < k]
            if any(places & _places(owned.get(w, ())) for w in others):
                roots.discard(k)
                roots.add(sum_)
                call_of[sum_] = k
                break


def _writers(
    graph: Graph,
    addends: Sequence[int],
    call_of: Mapping[int, int],
    owned: Mapping[int, Sequence[OwnedBuffer]],
) -> list[int]:
    """The equations whose names the bytes of addends, or copies of them, may bear.

    Of a sum that owns none, the call that XLA made of it, or whatever is added up.
    """
    found: list[int] = []
    todo = list(addends)
    while todo:
        k = todo.pop()
        if k in call_of or owned.get(k):
            found.append(call_of.get(k, k))
        elif graph.equations[k].primitive.name in SUMS | VIEWS | LAYOUTS:
            sources = (graph.producer.get(v) for v in graph.reads(k))
            todo += [source for source in sources if source is not None]
    return found


def _turns_a_product(graph: Graph, k: int, roots: set[int]) -> bool:
    """Whether it is a product too (`_merge_turned`)."""
    product = graph.turned_product(k)
    return product is not None and product not in roots


def _sums(graph: Graph, k: int, through: Set[str]) -> Iterator[tuple[int, list[int]]]:
    """The sums that an equation's result goes into one after the other.

    Args:
      graph: of the program.
      k: the equation.
      through: equations that its result may pass on the way to the next sum.

    Yields:
      Each with the producers of what is added; only sums that nothing else reads
      before the next.
    """
    while len(graph.equations[k].outputs) == 1 and not graph.is_read_by_caller(k):
        readers = graph.consumers[graph.equations[k].outputs[0]]
        if len(readers) != 1:
            return
        before, k = k, readers[0]
        name = graph.equations[k].primitive.name
        if name in SUMS:
            sources = (graph.producer.get(v) for v in graph.reads(k))
            yield k, [x for x in sources if x is not None and x != before]
        if name not in through:
            return


def _places(buffers: Sequence[OwnedBuffer]) -> set[tuple[int, int, int]]:
    return {b.place for b in buffers}


def _add_narrow(graph: Graph, roots: set[int]) -> None:
    """Makes roots of fused values that let go of twice their bytes or more."""
    readers = reading_units(graph, roots)
    for k in _read_by_several(graph, readers):
        is_transpose = graph.equations[k].primitive.name == "transpose"
        if not is_transpose and _is_narrow(graph, k, max(readers[k]), roots):
            roots.add(k)


def _is_narrow(graph: Graph, k: int, last: int, roots: set[int]) -> bool:
    """Whether a fused value, kept up to the root `last`, lets go of twice its bytes."""
    let_go = sum(
        graph.bytes(v)
        for v in graph.unit(k, roots).inputs
        if v in graph.producer and _last_reader(graph, v, k, roots) < last
    )
    return 0 < graph.bytes(graph.equations[k].outputs[0]) <= let_go / 2


def _add_before_casts(graph: Graph, roots: set[int]) -> None:
    """Makes roots of such values that are then converted, and so have one reader.

    They can take the place of what they let go of; what is converted cannot. Where
    there is room for all, XLA:GPU makes one kernel of both.
    """
    for cast in sorted(roots):
        if graph.equations[cast].primitive.name != "convert_element_type":
            continue
        k = _fused_source(graph, cast, roots)
        while k is not None and graph.equations[k].primitive.name in PLACING:
            k = _fused_source(graph, k, roots)
        if k is not None and _is_narrow(graph, k, cast, roots):
            roots.add(k)


def _fused_source(graph: Graph, k: int, roots: Set[int]) -> int | None:
    """What makes the only array that an equation reads, where that is no root."""
    sources = [graph.producer.get(v) for v in graph.reads(k)]
    source = sources[0] if len(sources) == 1 else None
    return None if source in roots else source


def _merge_words(
    graph: Graph,
    owned: Mapping[int, Sequence[OwnedBuffer]],
    roots: set[int],
    platform: str,
) -> None:
    """Makes random words part of what reads them, a mask, if that is one op.

    On GPU those that JAX draws too, which are no loop there, unless XLA wrote them.
    """
    drawn = {
        k
        for k in roots
        if graph.equations[k].primitive is WORDS
        or (
            platform != "cpu"
            and draws_words(graph.equations[k], graph.program.avals)
            and not _is_owner(graph, owned, k)
        )
    }
    readers = reading_units(graph, roots - drawn)
    roots -= {
        k for k in drawn if len(readers[k]) == 1 and not graph.is_read_by_caller(k)
    }


def _add_turned(graph: Graph, roots: set[int]) -> None:
    """Makes roots of transposes that others than products read.

    Free next to what they transpose, where XLA chooses the layout of both, they are
    strided copies in every reader behind a barrier.
    """
    for k in _read_by_several(graph, reading_units(graph, roots)):
        is_transpose = graph.equations[k].primitive.name == "transpose"
        if is_transpose and not _is_folded(graph, k):
            roots.add(k)


def _read_by_several(graph: Graph, readers: Mapping[int, Set[int]]) -> list[int]:
    """Fused equations that own bytes if they are roots, and have readers in two."""
    return [
        k
        for k, found in sorted(readers.items())
        if len(found) > 1
        and len(graph.equations[k].outputs) == 1
        and graph.equations[k].primitive.name not in VIEWS
    ]


def _last_reader(
    graph: Graph, variable: Variable, avoiding: int, roots: set[int]
) -> int:
    """The last root that reads a variable, other than through one equation."""
    last, todo, seen = -1, [variable], set()
    while todo:
        for k in graph.consumers[todo.pop()]:
            if k in roots:
                last = max(last, k)
            elif k != avoiding and k not in seen:
                seen.add(k)
                todo += graph.equations[k].outputs
    return last


def reading_units(graph: Graph, roots: set[int]) -> dict[int, set[int]]:
    """Per fused equation, the roots it is computed inside of."""
    readers: dict[int, set[int]] = defaultdict(set)
    for k in range(len(graph.equations) - 1, -1, -1):
        if k in roots or graph.equations[k].is_barrier:
            continue
        for v in graph.equations[k].outputs:
            for consumer in graph.consumers[v]:
                readers[k] |= {consumer} if consumer in roots else readers[consumer]
    return readers
