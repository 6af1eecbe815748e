"""Reads what XLA did: the optimized HLO module and its buffer assignment.

jaxlib hands both over as serialized protocol buffers (`hlo_messages`).
"""

import pathlib
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Literal

from .hlo_messages import parse
from .merged_bodies import name_by_loop
from .scopes import place_of

_NOT_WRITTEN = ("parameter", "tuple", "while", "conditional", "call")
"""Opcodes whose buffers are tables of pointers or belong to something else."""

MOVING = (
    "all-gather", "all-to-all", "collective-broadcast", "collective-permute",
    "ragged-all-to-all",
)  # fmt: skip
"""Prefixes of the opcodes of collectives that only move bytes about."""

COLLECTIVES = (*MOVING, "all-reduce", "reduce-scatter")
"""Prefixes of the opcodes by which devices communicate."""

_CALLS = ("convolution", "dot")
_CUDNN = "__cudnn$conv"
_VIEWS = {"parameter", "bitcast", "reshape"}
_TURNS = {"copy", "transpose"}
_COPIES = {*_VIEWS, *_TURNS}

_NAMELESS = 8
"""Instructions without a name that may lie between one and its name."""


@dataclass(frozen=True, slots=True)
class OwnedBuffer:
    """Bytes that XLA assigned to the result of one instruction.

    Attributes:
      op_name: name scopes of the equation behind the instruction, or of the one that
        reads it if XLA made it up.
      opcode: HLO opcode.
      size: bytes.
      allocation: number of the allocation it lies in.
      offset: bytes from the allocation's start.
      is_temporary: in the temporary block, neither argument nor output.
      origin: "equation": the result of that equation. "reader": XLA made it up for that
        equation to read (a copy of an argument in another layout). "constants": XLA
        made it up from constants alone; no order keeps it from living all the time.
        One that several equations read is listed once for each.
      is_viewed: everything that reads it reads its bytes in another shape, or as one
        result of a library call. XLA gives a result the bytes of an operand that dies
        only where the instruction that wrote those is the operand itself.
      call: bytes of the result of a product or convolution that XLA left no name, if
        this is that or made up for it to read; then `op_name` is that of its reader.
      turned_for: if this is a copy in another layout (`is_computed`), for products or
        convolutions alone to read, the name of the first of them. XLA names such a copy
        after what it copies.
      is_computed: whether the copy is made in one kernel with what it is a copy of.
      read_inside: of what XLA made up from constants alone, the names of the equations
        that read it, if all do inside of kernels.
      read_elsewhere: the names of all that reads it, if none of that is of the equation
        that made it; where `call` is given, of all that reads that result.
    """

    op_name: str
    opcode: str
    size: int
    allocation: int
    offset: int
    is_temporary: bool
    origin: Literal["equation", "reader", "constants"] = "equation"
    is_viewed: bool = False
    call: int = 0
    turned_for: str = ""
    is_computed: bool = False
    read_inside: tuple[str, ...] = ()
    read_elsewhere: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[int, int, int]:
        """Allocation, offset and size."""
        return self.allocation, self.offset, self.size


def owned_buffers(compiled: Any, dump: str | None = None) -> list[OwnedBuffer]:
    """All buffers of a compiled program that some instruction writes.

    Args:
      compiled: `jax.stages.Compiled`.
      dump: directory of `dump_options`, for backends that keep the assignment to
        themselves (GPU).
    """
    module, assignment = _module_and_assignment(compiled, dump)
    name_by_loop(module)
    instructions = {i.id: i for c in module.computations for i in c.instructions}
    sizes = {
        b.defined_at.instruction_id: b.size
        for b in assignment.logical_buffers
        if not b.defined_at.shape_index
    }
    names = _Names(module, instructions)
    logical = {b.id: b for b in assignment.logical_buffers}
    found = []
    for allocation in assignment.allocations:
        if allocation.is_constant or allocation.is_thread_local:
            continue
        is_temporary = not (allocation.is_parameter or allocation.maybe_live_out)
        for part in allocation.assigned:
            defined = logical[part.logical_buffer_id].defined_at
            instruction = instructions.get(defined.instruction_id)
            if instruction is None or instruction.opcode in _NOT_WRITTEN:
                continue
            place = list(defined.shape_index)
            owners, origin, call = [names.of(instruction, place)], "", None
            inside: tuple[str, ...] = ()
            elsewhere: tuple[str, ...] = ()
            if padded := names.padded_for(instruction):
                owners, origin = padded, "reader"
            elif owners == [""]:
                is_constant = names.is_from_constants(instruction, place)
                origin = "constants" if is_constant else "reader"
                owners = names.of_readers(instruction, place) or [""]
                inside = names.read_inside(instruction) if is_constant else ()
                call = names.call(instruction)
                if not is_constant:
                    elsewhere = tuple(owners) if call is not None else ()
                    owners = owners[:1]
            found += [
                OwnedBuffer(
                    name,
                    instruction.opcode,
                    part.size,
                    allocation.index,
                    part.offset,
                    is_temporary,
                    origin or "equation",
                    names.is_viewed(instruction, place),
                    0 if call is None else sizes.get(call.id, 0),
                    "" if origin else names.turned_for(instruction),
                    not origin and names.is_computed(instruction),
                    inside,
                    elsewhere if origin or place else names.read_elsewhere(instruction),
                )
                for name in owners
            ]
    return found


def dump_options(directory: str) -> dict[str, Any]:
    """Compiler options that make XLA write its final module and assignment."""
    return {"xla_dump_to": directory, "xla_dump_hlo_as_proto": True}


def dumped(directory: str) -> bytes:
    """The `HloProto` that XLA wrote of the largest module, by `dump_options`."""
    paths = list(pathlib.Path(directory).glob("*after_optimizations.hlo.pb"))
    if not paths:
        raise RuntimeError(
            f"XLA wrote no optimized module to {directory!r}; `coop_jax` reads its "
            "buffer assignment there. Is `xla_dump_to` overridden in XLA_FLAGS?"
        )
    return max(paths, key=lambda path: path.stat().st_size).read_bytes()


def needs_dump(platform: str) -> bool:
    """Whether `owned_buffers` needs a dump on this platform."""
    return platform != "cpu"


def dump_directory() -> tempfile.TemporaryDirectory:
    """A directory for one dump, removed after use."""
    return tempfile.TemporaryDirectory(prefix="coop_jax_hlo_")


class _Names:
    """Finds the name scopes of an instruction's result."""

    def __init__(self, module: Any, instructions: dict[int, Any]) -> None:
        self._instructions = instructions
        self._roots = {c.id: c.root_id for c in module.computations}
        self._opcodes = {
            c.id: {i.opcode for i in c.instructions} for c in module.computations
        }
        self._inner = {
            c.id: [i for i in c.instructions if i.opcode == "parameter"]
            for c in module.computations
        }
        self._arguments = {
            i.metadata.op_name
            for c in module.computations
            if c.id == module.entry_computation_id
            for i in c.instructions
            if i.opcode == "parameter" and i.metadata.op_name
        }
        self._readers = defaultdict(list)
        for reader in instructions.values():
            for operand in reader.operand_ids:
                self._readers[operand].append(reader)

    def of(self, instruction: Any, place: list[int]) -> str:
        """A fusion is named after what computes this result inside it."""
        own = self._of_joined(instruction, place) or instruction.metadata.op_name
        if self.call(instruction) is not None:
            return ""
        if instruction.opcode != "fusion":
            return own or self._of_operand(instruction)
        root = self._computing(instruction, place)
        if not root.metadata.op_name and place and self._is_from_constants(root):
            return ""
        return root.metadata.op_name or self._of_operand(root) or own

    def _of_joined(self, instruction: Any, place: list[int]) -> str:
        """Of collectives that XLA joined in one, whose result this is: its reader says.

        The one has the name of any of them.
        """
        if not (place and instruction.opcode.startswith(COLLECTIVES)):
            return ""
        elements = [r for r in self._beyond(instruction, "-done") if _is_at(r, place)]
        return next((r.metadata.op_name for r in elements), "")

    def call(self, instruction: Any) -> Any | None:
        """The call without a name that this is, or that it was made up for."""
        if self._is_named(instruction):
            return None
        if self._is_call(instruction):
            return instruction
        readers = self._readers[instruction.id]
        if len(readers) == 1 and self._is_call(readers[0]):
            return None if self._is_named(readers[0]) else readers[0]
        return None

    def _is_named(self, instruction: Any) -> bool:
        computing = self._computing(instruction, [])
        return bool(instruction.metadata.op_name or computing.metadata.op_name)

    def _is_call(self, instruction: Any) -> bool:
        return self._computing(instruction, []).opcode in _CALLS

    def turned_for(self, instruction: Any) -> str:
        """The name of the first call that reads this copy, if calls alone do."""
        opcodes = self._opcodes_in(instruction)
        is_copy = opcodes <= _COPIES and not opcodes <= _VIEWS
        if not is_copy and not self.is_computed(instruction):
            return ""
        readers = self._beyond_views(instruction)
        is_for_calls = readers and all(self._is_call(reader) for reader in readers)
        return self.of(readers[0], []) if is_for_calls else ""

    def is_computed(self, instruction: Any) -> bool:
        """Whether it computes what it then copies, in a layout that XLA chose."""
        last = self._computing(instruction, [])
        while last.opcode in _VIEWS and last.operand_ids:
            last = self._instructions[last.operand_ids[0]]
        return last.opcode in _TURNS and not self._opcodes_in(instruction) <= _COPIES

    def _opcodes_in(self, instruction: Any) -> set[str]:
        if instruction.opcode == "fusion":
            return self._opcodes[instruction.called_computation_ids[0]]
        return {instruction.opcode}

    def padded_for(self, instruction: Any) -> list[str]:
        """The names of the convolutions that read this, if XLA padded it for them.

        cuDNN pads both sides alike; what is left is a pad under its operand's name.
        """
        pad = self._computing(instruction, [])
        readers = self._beyond_views(instruction) if pad.opcode == "pad" else []
        is_for_calls = all(r.custom_call_target.startswith(_CUDNN) for r in readers)
        is_written = pad.metadata.op_name.endswith("/pad")
        if is_written or not is_for_calls:
            return []
        return [self.of(reader, []) for reader in readers]

    def _beyond_views(self, instruction: Any) -> list[Any]:
        """What reads it, or a bitcast of it."""
        return self._beyond(instruction, "bitcast")

    def _beyond(self, instruction: Any, ending: str) -> list[Any]:
        """What reads it, through instructions whose opcodes end so."""
        found = []
        for reader in self._readers[instruction.id]:
            is_passed = reader.opcode.endswith(ending)
            found += self._beyond(reader, ending) if is_passed else [reader]
        return found

    def is_viewed(self, instruction: Any, place: list[int]) -> bool:
        """Whether nothing but bitcasts reads it, or it is an element of a call's tuple.

        That the results of a fusion come as a tuple is no rule for other programs.
        """
        if instruction.opcode == "custom-call" and place:
            return True
        readers = self._readers[instruction.id]
        return bool(readers) and all(r.opcode == "bitcast" for r in readers)

    def is_from_constants(self, instruction: Any, place: list[int]) -> bool:
        """Whether nothing but constants goes into this result."""
        if instruction.opcode == "fusion" and place:
            return self._is_from_constants(self._computing(instruction, place))
        return self._is_from_constants(instruction)

    def _computing(self, fusion: Any, place: list[int]) -> Any:
        """What computes this result inside a fusion; all else is its own."""
        if fusion.opcode != "fusion":
            return fusion
        root = self._instructions[self._roots[fusion.called_computation_ids[0]]]
        if place and root.opcode == "tuple":
            return self._instructions[root.operand_ids[place[0]]]
        return root

    def _is_from_constants(self, instruction: Any) -> bool:
        todo, seen = [instruction.id], set()
        while todo and len(seen) <= _NAMELESS:
            at = self._instructions[todo.pop()]
            if at.opcode in ("parameter", "while", "call", "conditional"):
                return False
            seen.add(at.id)
            todo += at.operand_ids
        return not todo

    def of_readers(self, instruction: Any, place: list[int]) -> list[str]:
        """The names of what reads this result, through what has no name."""
        found: dict[str, None] = {}
        readers = self._readers[instruction.id]
        if place:
            # Or of the other results, where nothing reads this one.
            readers = [r for r in readers if r.tuple_index == place[0]] or readers
        for _ in range(_NAMELESS):
            todo = []
            for reader in readers:
                names = self._of_results(reader)
                found.update(dict.fromkeys(names))
                todo += [] if names else [reader]
            readers = [r for at in todo for r in self._readers[at.id]]
        return list(found)

    def read_inside(self, instruction: Any) -> tuple[str, ...]:
        """The names of all that reads this, if that is inside of fusions alone."""
        found: dict[str, None] = {}
        for fusion in self._readers[instruction.id]:
            if fusion.opcode != "fusion":
                return ()
            for parameter in self._inner[fusion.called_computation_ids[0]]:
                operand = fusion.operand_ids[parameter.parameter_number]
                if operand == instruction.id:
                    readers = self._readers[parameter.id]
                    found.update(dict.fromkeys(r.metadata.op_name for r in readers))
        return () if "" in found else tuple(found)

    def read_elsewhere(self, instruction: Any) -> tuple[str, ...]:
        """The names of all that reads this, if none is inside of its equation."""
        own = place_of(self.of(instruction, []))
        names = [self.of(reader, []) for reader in self._beyond_views(instruction)]
        places = list(map(place_of, names))
        is_elsewhere = all(p and p[: len(own)] != own for p in places)
        return tuple(dict.fromkeys(names)) if is_elsewhere else ()

    def _of_results(self, instruction: Any) -> list[str]:
        """The names of all that a fusion computes, its own last."""
        if instruction.opcode == "get-tuple-element":
            return []
        names = []
        if instruction.opcode == "fusion":
            called = self._roots[instruction.called_computation_ids[0]]
            count = len(self._instructions[called].operand_ids)
            names = [self.of(instruction, [i]) for i in range(count)]
        own = (instruction.metadata.op_name, self.of(instruction, []))
        return [n for n in (*names, *own) if n and n not in self._arguments]

    def _of_operand(self, instruction: Any) -> str:
        """Copies, bitcasts and the like carry the name of what they copy."""
        for _ in range(_NAMELESS):
            if not instruction.operand_ids:
                break
            instruction = self._instructions[instruction.operand_ids[0]]
            if instruction.metadata.op_name:
                return instruction.metadata.op_name
        return ""


def _is_at(reader: Any, place: list[int]) -> bool:
    """Whether it takes the element at this place, of a tuple or of several in one."""
    return reader.opcode == "get-tuple-element" and reader.tuple_index == place[-1]


def _module_and_assignment(compiled: Any, dump: str | None) -> tuple[Any, Any]:
    if dump is not None:
        hlo = parse("Hlo", dumped(dump))
        return hlo.module, hlo.buffer_assignment
    analysis = compiled.memory_analysis()
    module = compiled.runtime_executable().hlo_modules()[0]
    return (
        parse("HloModule", module.as_serialized_hlo_module_proto()),
        parse("BufferAssignment", analysis.serialized_buffer_assignment_proto),
    )
