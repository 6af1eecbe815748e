"""What a plan was made for, and how that differs from what it is asked to run.

A program is known by a digest of its equations: primitives, parameters, types and how
they are connected. Values of constants, source lines and names are not in it, so that
a comment does not make a plan stale. Memory addresses in the text of parameters (those
of functions) are left out; they differ between processes.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jaxlib.version
import numpy as np

from .._fitting.compile import FlatStep
from .._version import __version__
from .trace import Atom, Literal, Program

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_IN_FULL: dict[str, Any] = {
    "precision": 8, "floatmode": "unique", "suppress": False, "sign": "-",
    "threshold": 1000, "edgeitems": 3, "linewidth": 75, "formatter": None,
    "nanstr": "nan", "infstr": "inf", "legacy": False,
}  # fmt: skip
"""How numbers are written, whatever the user tells NumPy: with all of their digits."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What has to be the same for a plan to be used again.

    Attributes:
      program: digest of the step's equations.
      arguments: types of the flat arguments, with sharding and donation if any.
      platform: "cpu", "gpu" or "tpu".
      device: kind of device, as JAX names it.
      versions: of coop_jax, jax and jaxlib.
    """

    program: str
    arguments: tuple[str, ...]
    platform: str
    device: str
    versions: tuple[str, ...]


def origin_of(step: FlatStep) -> Origin:
    """The origin of plans for this step, here and now."""
    return Origin(
        program_digest(step.program),
        tuple(
            _typed(leaf, is_donated)
            for leaf, is_donated in zip(step.leaves, step.program.donated, strict=False)
        ),
        step.platform,
        _device_kind(step),
        (f"coop_jax {__version__}", f"jax {jax.__version__}", _jaxlib()),
    )


def differences(saved: Origin, here: Origin) -> list[str]:
    """Sentences that say why a plan does not apply; none if it does."""
    found = []
    for was, now in zip(saved.versions, here.versions, strict=False):
        if was != now:
            found.append(f"It was made with {was}; this is {now}.")
    if (saved.platform, saved.device) != (here.platform, here.device):
        found.append(
            f"It was made for {saved.platform} ({saved.device}); this step runs on "
            f"{here.platform} ({here.device})."
        )
    found += _argument_differences(saved.arguments, here.arguments)
    if not found and saved.program != here.program:
        found.append(
            "The step computes something else: its equations, or the rules on what may "
            "be computed again, differ from those the plan was made for, though its "
            "arguments are of the same types."
        )
    return found


def program_digest(program: Program) -> str:
    """Hexadecimal digest of what a program computes."""
    digest = hashlib.sha256()
    with np.printoptions(**_IN_FULL):
        for text in _texts(program):
            digest.update(text.encode())
            digest.update(b"\0")
    return digest.hexdigest()


def type_name(aval: Any) -> str:
    """Dtype and shape as in `float32[8,256]`."""
    shape = ",".join(map(str, getattr(aval, "shape", ())))
    return f"{getattr(aval, 'dtype', aval)}[{shape}]"


def _texts(program: Program) -> Iterator[str]:
    yield repr((program.arguments, program.outputs and len(program.outputs)))
    yield repr(program.donated)
    yield from map(type_name, program.avals)
    yield repr([variable for variable, _ in program.constants])
    for equation in program.equations:
        yield equation.primitive.name
        yield from map(_atom, equation.inputs)
        yield repr(equation.outputs)
        for name, value in sorted(equation.params.items()):
            yield f"{name}={_ADDRESS.sub('', repr(value))}"
        if equation.is_pinned:
            yield "runs once"
    yield from map(_atom, program.outputs)
    if (mapped := program.mapped) is not None:
        yield repr((mapped.before is None, mapped.after is None))
        yield repr((dict(mapped.mesh.shape), mapped.reads, mapped.check_vma))
        yield repr((mapped.in_specs, mapped.out_specs))
    rules = program.rules
    yield from (repr(names) for names in (rules.save_names, rules.recompute_names)
                if names)  # fmt: skip


def _atom(atom: Atom) -> str:
    if isinstance(atom, Literal):
        return f"{atom.val!r}:{type_name(atom.aval)}"
    return str(atom)


def _argument_differences(
    saved: tuple[str, ...], here: tuple[str, ...]
) -> Iterator[str]:
    if len(saved) != len(here):
        yield (
            f"It was made for {len(saved)} arrays as arguments; this call has "
            f"{len(here)}."
        )
        return
    differing = [i for i, pair in enumerate(zip(saved, here, strict=True))
                 if pair[0] != pair[1]]  # fmt: skip
    for i in differing[:3]:
        yield f"Array {i} was {saved[i]} when it was made; here it is {here[i]}."
    if len(differing) > 3:
        yield f"So do {len(differing) - 3} more arrays differ."


def _typed(leaf: Any, is_donated: bool) -> str:
    sharding = getattr(leaf, "sharding", None)
    is_spread = sharding is not None and len(sharding.device_set) > 1
    placed = f" {sharding}" if is_spread else ""
    return f"{type_name(leaf)}{placed}{' donated' if is_donated else ''}"


def _device_kind(step: FlatStep) -> str:
    for leaf in step.leaves:
        if leaf.sharding is not None:
            return next(iter(leaf.sharding.device_set)).device_kind
    return jax.local_devices()[0].device_kind


def _jaxlib() -> str:
    return f"jaxlib {jaxlib.version.__version__}"
