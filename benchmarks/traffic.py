"""What the kernels of a compiled program read, write and multiply.

What a step takes on a GPU is mostly this, and it can be read without a card. Each
kernel (fusion, library call, copy) counts its operands and results once, without the
scratch of library calls; of what it only takes slices of, or writes a slice into, the
slices; and the bodies of loops as often as they run.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
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
_CONTRACTED = re.compile(r'lhs_contracting_dim(?:ension)?s"?[=:][{\[]([\d,"]*)[}\]]')
_KERNEL_LABELS = re.compile(r"dim_labels=\w+_(\w+)->")
_FREE = {
    "after-all", "bitcast", "constant", "get-tuple-element", "iota", "parameter",
    "partition-id", "replica-id", "tuple",
}  # fmt: skip
_BOTH = ("true", "false")
_SLICES = {"dynamic-slice", "slice", "gather"}


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch.

    Attributes:
      bytes: that it reads and writes.
      flops: of its matrix products and convolutions.
      kind: element type of what it multiplies, such as "bf16"; "" where nothing is.
      times: how often it runs.
    """

    bytes: int
    flops: float
    kind: str
    times: int


@dataclass(frozen=True, slots=True)
class _Instruction:
    name: str
    op: str
    type: str
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
    return sum(kernel.bytes * kernel.times for kernel in kernels(hlo))


def kernels(hlo: str) -> list[Kernel]:
    """All that a program launches; of branches, those that move most.

    Args:
      hlo: `compiled.as_text()`.
    """
    computations, entry = _parsed(hlo)
    return list(_kernels(computations[entry], computations, 1))


def _kernels(
    body: _Computation, computations: Mapping[str, _Computation], times: int
) -> Iterator[Kernel]:
    for instruction in body.values():
        match instruction.op:
            case op if op in _FREE or op.endswith("-done"):
                continue
            case "while":
                trips = _TRIPS.search(instruction.line)
                often = times * (int(trips.group(1)) if trips else 1)
                inside = computations[instruction.named("body")]
                yield from _kernels(inside, computations, often)
            case "conditional":
                branches = re.search(r"branch_computations=\{(.*?)\}", instruction.line)
                names = branches.group(1).split(", ") if branches else []
                names = names or [instruction.named(f"{b}_computation") for b in _BOTH]
                inside = [computations[name.lstrip("%")] for name in names]
                launched = [list(_kernels(i, computations, times)) for i in inside]
                yield from max(launched, key=lambda ks: sum(k.bytes for k in ks))
            case "call":
                inside = computations[instruction.named("to_apply")]
                yield from _kernels(inside, computations, times)
            case _:
                moved = _moved(instruction, body, computations)
                yield Kernel(moved, *_products(instruction, body, computations), times)


def _moved(
    instruction: _Instruction,
    body: _Computation,
    computations: Mapping[str, _Computation],
) -> int:
    sizes = [body[name].size for name in instruction.operands if name in body]
    match instruction.op:
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


def _products(
    instruction: _Instruction,
    body: _Computation,
    computations: Mapping[str, _Computation],
) -> tuple[float, str]:
    """Flops of matrix products and convolutions, and the element type."""
    if instruction.op in ("fusion", "fusion-start"):
        inside = computations[instruction.named("calls")]
        found = [_products(i, inside, computations) for i in inside.values()]
        return sum(flops for flops, _ in found), max((k for _, k in found), default="")
    operands = [_array(body[name].type) for name in instruction.operands[:2]]
    kind = operands[0][0] if operands else ""
    if contracted := _CONTRACTED.search(instruction.line):
        depth = [operands[0][1][int(d)] for d in re.findall(r"\d+", contracted[1])]
        _, result = _array(instruction.type)
        return 2.0 * math.prod(result) * math.prod(depth), kind
    if labels := _KERNEL_LABELS.search(instruction.line):
        arrays = [_array(instruction.type), *operands]
        (_, outputs), (_, kernel) = (arrays[k] for k in _roles(instruction.line))
        each = math.prod(kernel) / kernel[labels[1].index("o")]
        return 2.0 * math.prod(outputs) * each, kind
    return 0.0, ""


def _roles(line: str) -> tuple[int, int]:
    """Which of result and operands are the outputs and the kernel of a convolution."""
    if "convBackwardInput" in line:
        return 1, 2
    return (2, 0) if "convBackwardFilter" in line else (0, 2)


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
            body[match["name"]] = _Instruction(
                match["name"],
                match["op"],
                match["type"],
                _size(match["type"]),
                names,
                line,
            )
            root = match["name"] if line.lstrip().startswith("ROOT ") else root
        elif line == "}" and root:
            body[root] = body.pop(root)
    return found, entry


def _array(text: str) -> tuple[str, list[int]]:
    """Element type and shape of an array, or of the first one of a tuple."""
    kind, shape = _ARRAY.findall(text)[0]
    return kind, [int(n) for n in shape.split(",") if n]


def _size(text: str) -> int:
    """Bytes of the arrays of a type; a tuple's are those of all in it.

    Without what a library call has for its own use, which is s8 with one axis.
    """
    total = 0
    for kind, shape in _ARRAY.findall(_SCRATCH.sub("", text)):
        bits = 8 if kind == "pred" else int(re.sub(r"\D", "", kind) or 0)
        total += math.prod(int(n) for n in shape.split(",") if n) * bits // 8
    return total
