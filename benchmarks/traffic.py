"""Bytes that the kernels of a compiled program read and write.

What a step takes on a GPU beside its matrix products is mostly this, and it can be read
without a card. Each kernel (fusion, library call, copy) counts its operands and results
once, without the scratch of library calls; of what it only takes slices of, or writes a
slice into, the slices; and the bodies of loops as often as they run.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_INSTRUCTION = re.compile(
    r"\s+(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<type>\(.*?\)(?= [a-z])|\S+) "
    r"(?P<op>[a-z][\w\-]*)\((?P<operands>.*)"
)
_COMPUTATION = re.compile(r"(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) \(.*\{$")
_ARRAY = re.compile(r"([a-z]+\d*)\w*\[([\d,]*)\]")
_SCRATCH = re.compile(r"s8\[\d+\]")
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_NAMED = r"{}=%?([\w.\-]+)"
_FREE = {
    "after-all", "bitcast", "constant", "get-tuple-element", "iota", "parameter",
    "partition-id", "replica-id", "tuple",
}  # fmt: skip
_BOTH = ("true", "false")
_SLICES = {"dynamic-slice", "slice", "gather"}


@dataclass(frozen=True, slots=True)
class _Instruction:
    name: str
    op: str
    size: int
    operands: tuple[str, ...]
    line: str

    def named(self, attribute: str) -> str:
        found = re.search(_NAMED.format(attribute), self.line)
        return found.group(1) if found else ""


type _Computation = dict[str, _Instruction]


def traffic(hlo: str) -> int:
    """Bytes read and written by a program.

    Args:
      hlo: `compiled.as_text()`.
    """
    computations, entry = _parsed(hlo)
    return _of(computations[entry], computations)


def _of(body: _Computation, computations: Mapping[str, _Computation]) -> int:
    return sum(_moved(i, body, computations) for i in body.values())


def _moved(
    instruction: _Instruction,
    body: _Computation,
    computations: Mapping[str, _Computation],
) -> int:
    sizes = [body[name].size for name in instruction.operands if name in body]
    match instruction.op:
        case op if op in _FREE:
            return 0
        case "while":
            trips = _TRIPS.search(instruction.line)
            inside = _of(computations[instruction.named("body")], computations)
            return inside * (int(trips.group(1)) if trips else 1)
        case "conditional":
            branches = re.search(r"branch_computations=\{(.*?)\}", instruction.line)
            names = branches.group(1).split(", ") if branches else []
            names = names or [instruction.named(f"{b}_computation") for b in _BOTH]
            return max(_of(computations[n.lstrip("%")], computations) for n in names)
        case "call":
            return _of(computations[instruction.named("to_apply")], computations)
        case op if op.endswith("-done"):
            return 0
        case "copy-start":
            return 2 * sum(sizes)
        case "fusion" | "fusion-start":
            return _by_fusion(computations[instruction.named("calls")], sizes)
        case op if op in _SLICES:
            return 2 * instruction.size
        case "dynamic-update-slice":
            return 2 * sizes[1]
        case _:
            return instruction.size + sum(sizes)


def _by_fusion(inside: _Computation, sizes: Sequence[int]) -> int:
    """Of a fusion's operands and results."""
    users: dict[str, list[_Instruction]] = {name: [] for name in inside}
    for instruction in inside.values():
        for name in dict.fromkeys(instruction.operands):
            users[name].append(instruction)
    read = 0
    for instruction in inside.values():
        if instruction.op == "parameter":
            number = int(instruction.line.partition("parameter(")[2].partition(")")[0])
            read += min(sizes[number], _used(instruction, users))
    root = list(inside.values())[-1]
    parts = [inside[o] for o in root.operands] if root.op == "tuple" else [root]
    return read + sum(_written(part, inside) for part in parts)


def _used(value: _Instruction, users: Mapping[str, Sequence[_Instruction]]) -> int:
    """Bytes that are read of a value inside a fusion."""
    found = 0
    for user in users[value.name]:
        is_first = user.operands[0] == value.name
        if user.op in _SLICES and is_first:
            found += user.size
        elif user.op == "bitcast":
            found += _used(user, users)
        elif user.op != "dynamic-update-slice" or not is_first:
            found += value.size
    return found


def _written(part: _Instruction, inside: _Computation) -> int:
    while part.op == "bitcast":
        part = inside[part.operands[0]]
    if part.op == "dynamic-update-slice":
        return inside[part.operands[1]].size
    return part.size


def _parsed(hlo: str) -> tuple[dict[str, _Computation], str]:
    """Computations by name, and the name of the entry's.

    The root of each is its last instruction.
    """
    found: dict[str, _Computation] = {}
    entry, body, root = "", dict[str, _Instruction](), ""
    for line in hlo.splitlines():
        if start := _COMPUTATION.match(line):
            body, root = found.setdefault(start["name"], {}), ""
            entry = start["name"] if start["entry"] else entry
        elif match := _INSTRUCTION.match(line):
            operands, _, _ = match["operands"].partition(")")
            names = tuple(re.findall(r"%([\w.\-]+)", operands))
            size = _size(match["type"])
            body[match["name"]] = _Instruction(
                match["name"], match["op"], size, names, line
            )
            root = match["name"] if line.lstrip().startswith("ROOT ") else root
        elif line == "}" and root:
            body[root] = body.pop(root)
    return found, entry


def _size(text: str) -> int:
    """Bytes of the arrays of a type; a tuple's are those of all in it.

    Without what a library call has for its own use, which is s8 with one axis.
    """
    total = 0
    for kind, shape in _ARRAY.findall(_SCRATCH.sub("", text)):
        bits = 8 if kind == "pred" else int(re.sub(r"\D", "", kind) or 0)
        total += math.prod(int(n) for n in shape.split(",") if n) * bits // 8
    return total
