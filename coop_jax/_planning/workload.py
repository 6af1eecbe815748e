"""What a stream of operators asks for: a straight-line program. Imports no JAX.

Tensors share bytes with their views, and calls change them in place; a program has
values that are each written once. So every storage has versions: a call that mutates it
reads the old version and makes the next, which takes over the bytes where the policy
allows. The old version is a ghost from then on: whoever has to recompute something from
it computes it again, elsewhere. That of a constant cannot be had again, and what
depends on it must be there before (`deadlines`).

Whether an op is expensive, and its outputs so belong to the low end of the pool, is
told from its cost: more seconds per byte than the program has on average. The published
rule, a list of operators, is there to compare.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from .deadlines import Lifetimes
from .eviction import COOP
from .online import run_online
from .stream import Alias, Call, Constant, Event, Release, TraceError
from .types import Op, OpId, Problem, Value, ValueId

type Partition = Literal["density", "operators"]

ALIGNMENT = 512
"""Bytes to which OneFlow's allocator rounds every request."""

PUBLISHED = {
    "conv2d", "conv_data_grad", "conv_filter_grad", "add_n", "matmul", "batch_matmul",
    "conv_general_dilated", "dot_general", "add_any",
}  # fmt: skip
"""Operators that OneFlow calls expensive (`FindPiece`), and what JAX calls them."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A program to be simulated.

    Attributes:
      problem: ops and values; constants live in the pool.
      lifetimes: what the problem does not say about its values.
      needed: bytes that the program needs without eviction, mutating in place.
    """

    problem: Problem
    lifetimes: Lifetimes
    needed: int


def workload(
    events: Iterable[tuple[int, Event]],
    partition: Partition = "density",
    alignment: int = ALIGNMENT,
) -> Workload:
    """Checks a stream and makes it a program.

    A tensor that is never released is an output: from its call on it stays.

    Args:
      events: with their line numbers, as `stream.read` yields them.
      partition: what makes an op expensive.
      alignment: bytes; sizes and offsets in the pool are multiples of it.

    Raises:
      TraceError: a line uses a tensor that is not there, or makes one that is.
    """
    builder = _Builder()
    for line, event in events:
        builder.add(line, event)
    problem = Problem(
        tuple(_rated(builder.ops, builder.values, partition)),
        tuple(builder.final_values()),
        alignment=alignment,
    )
    room = sum(-(-v.size // alignment) * alignment for v in problem.values)
    room += max((op.workspace for op in problem.ops), default=0) + alignment
    lifetimes = Lifetimes(builder.released_after, frozenset(builder.kept))
    run = run_online(problem, room, COOP, lifetimes=lifetimes)
    return Workload(problem, lifetimes, run.peak)


@dataclass(slots=True)
class _Storage:
    """Bytes with one or more names.

    Attributes:
      value: the version that is there now.
      names: how many names it has.
    """

    value: ValueId
    size: int
    is_constant: bool
    names: int = 1


@dataclass(slots=True)
class _Builder:
    """The stream up to the line read last."""

    ops: list[Op] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    released_after: dict[ValueId, OpId] = field(default_factory=dict)
    kept: set[ValueId] = field(default_factory=set)
    storages: dict[str, _Storage] = field(default_factory=dict)
    released: dict[str, int] = field(default_factory=dict)
    last_use: dict[ValueId, OpId] = field(default_factory=dict)

    def add(self, line: int, event: Event) -> None:
        match event:
            case Constant():
                if self.ops:
                    raise TraceError(line, "constants come before the first call")
                value = Value(event.tensor, event.size, is_argument=True)
                self._name(line, event.tensor, self._storage(value))
            case Call():
                self._call(line, event)
            case Alias():
                storage = self._find(line, event.of)
                storage.names += 1
                self._name(line, event.tensor, storage)
            case Release():
                self._release(line, event.tensor)

    def final_values(self) -> list[Value]:
        values = list(self.values)
        for storage in self.storages.values():
            v = storage.value
            values[v] = replace(values[v], is_output=True)
        return values

    def _call(self, line: int, call: Call) -> None:
        this = len(self.ops)
        mutated = [self._find(line, name) for name in call.mutates]
        if len({id(storage) for storage in mutated}) < len(mutated):
            raise TraceError(line, "a call changes the same bytes only once")
        read = [self._find(line, name) for name in call.inputs]
        inputs = tuple(dict.fromkeys(s.value for s in (*read, *mutated)))
        pairs = []
        outputs = []
        for storage in mutated:
            old = self.values[storage.value]
            overwrites = storage.value if storage.is_constant else None
            new = Value(old.name, storage.size, overwrites=overwrites)
            pairs.append((storage.value, len(self.values)))
            storage.value = len(self.values)
            self.values.append(new)
            outputs.append(storage.value)
        for name, size in call.outputs.items():
            storage = self._storage(Value(name, size))
            self._name(line, name, storage)
            outputs.append(storage.value)
        for name in call.kept:
            if name not in call.outputs and name not in call.mutates:
                raise TraceError(line, f"tensor {name!r} is kept, but not made here")
            self.kept.add(self.storages[name].value)
        self.last_use |= dict.fromkeys(inputs, this)
        self.ops.append(
            Op(
                call.op,
                inputs,
                tuple(outputs),
                call.cost,
                call.workspace,
                call.is_recomputable,
                in_place=tuple(pairs),
            )
        )

    def _storage(self, value: Value) -> _Storage:
        self.values.append(value)
        return _Storage(len(self.values) - 1, value.size, value.is_argument)

    def _name(self, line: int, name: str, storage: _Storage) -> None:
        if name in self.storages:
            raise TraceError(line, f"tensor {name!r} is there already")
        self.storages[name] = storage
        self.released.pop(name, None)

    def _find(self, line: int, name: str) -> _Storage:
        if name in self.storages:
            return self.storages[name]
        if name in self.released:
            why = f"tensor {name!r} was released in line {self.released[name]}"
            raise TraceError(line, why)
        raise TraceError(line, f"tensor {name!r} is not known")

    def _release(self, line: int, name: str) -> None:
        storage = self._find(line, name)
        del self.storages[name]
        self.released[name] = line
        storage.names -= 1
        turn = max(0, len(self.ops) - 1)
        if storage.names == 0 and self.last_use.get(storage.value, -1) < turn:
            self.released_after[storage.value] = turn


def _rated(ops: list[Op], values: list[Value], partition: Partition) -> list[Op]:
    """The ops with their `is_expensive`."""
    if partition == "operators":
        return [replace(op, is_expensive=op.name in PUBLISHED) for op in ops]
    sizes = [sum(values[v].size for v in op.outputs) for op in ops]
    seconds, bytes_ = sum(op.cost for op in ops), sum(sizes)
    return [
        replace(op, is_expensive=size > 0 and op.cost * bytes_ > seconds * size)
        for op, size in zip(ops, sizes, strict=True)
    ]
