"""A traced step as a function of flat arguments, and its compilation."""

import contextlib
import itertools
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from .._loops.loop_sites import with_ruled_loops
from .._native.inplace import is_available
from .._program.aligning import aligned
from .._program.cost import nbytes
from .._program.dynamic import NOTHING_ASKED, Asked
from .._program.flatten import flatten
from .._program.hlo import (
    OwnedBuffer,
    dump_directory,
    dump_options,
    needs_dump,
    owned_buffers,
)
from .._program.pins import pinned
from .._program.regions import evaluate
from .._program.rules import NO_RULES, Rules
from .._program.threefry import in_line
from .._program.trace import Program
from .._program.turning import unturned
from .._program.unmap import unmapped

_PROBE = {"xla_backend_optimization_level": 0}
_PARTITIONS = re.compile(r"mhlo\.num_partitions = (\d+)")


@dataclass(frozen=True, slots=True, eq=False)
class FlatStep:
    """One traced step, ready to be compiled in any rewriting.

    Attributes:
      traced: what `jax.jit(step).trace(*args)` gave.
      program: its equations.
      leaves: the dynamic arguments, as arrays or `ShapeDtypeStruct`s.
      platform: "cpu" or "gpu", where it will run.
      jit_options: of `jax.jit`: the step's compiler options, and shardings, all of a
        partitioned step, of another the `out_shardings` that it asks for.
    """

    traced: Any
    program: Program
    leaves: tuple[Any, ...]
    platform: str
    jit_options: dict[str, Any] = field(default_factory=dict)

    @property
    def donated(self) -> tuple[int, ...]:
        """Positions of donated leaves."""
        return tuple(i for i, gone in enumerate(self.program.donated) if gone)

    @property
    def donated_arguments(self) -> tuple[int, ...]:
        """Positional arguments that are donated as a whole."""
        positional, _ = self.traced.args_info
        return tuple(i for i, info in enumerate(positional) if is_donated(info))

    def as_written(self) -> Callable[..., list[Any]]:
        """A new function of the flat arguments that computes what the step does."""
        return lambda *values: evaluate(self.program, values)

    def jit(self, function: Callable[..., list[Any]]) -> Any:
        """`function` of the flat arguments under jit, donating as the step does."""
        whole = self.on_whole_arrays(function)
        return jax.jit(whole, donate_argnums=self.donated, **self.jit_options)

    def on_whole_arrays(
        self, function: Callable[..., list[Any]]
    ) -> Callable[..., list[Any]]:
        """`function` on whole arrays, if the program is what one device does."""
        mapped = self.program.mapped
        return function if mapped is None else mapped.around(function)

    def compile(self, function: Callable[..., list[Any]]) -> Any:
        """Compiles `function` for the step's own arguments."""
        return self.lower(function).compile()

    def lower(self, function: Callable[..., list[Any]]) -> Any:
        """`function` of the step's own arguments, as `jax.stages.Lowered`."""
        with unchecked_keys():
            return self.jit(function).lower(*self.leaves)

    @property
    def has_probes(self) -> bool:
        """Whether a program's bytes can be had for less than the program."""
        return self.platform == "cpu"

    def probe(self, function: Callable[..., list[Any]]) -> Any:
        """Compiles `function` for its bytes alone, where that is cheaper.

        On CPU most of the time goes into machine code, long after XLA has given out
        the bytes; a probe leaves that code as it comes.
        """
        lowered = self.lower(function)
        return lowered.compile(_PROBE if self.has_probes else None)

    @property
    def can_call(self) -> bool:
        """Whether in-place calls can be compiled for the step.

        Not for a partitioned one: XLA would gather shards in front of each call.
        """
        return self.is_alone and is_available(self.platform)

    @property
    def is_alone(self) -> bool:
        """Whether it runs on one device."""
        return self.program.partitions == 1 and self.program.mapped is None

    def operations(self, compiled: Any) -> float:
        """XLA's count of a program's operations, where programs differ by it alone.

        0 for several devices, which communicate as well, and but for CPU: a GPU's
        kernels take the time of their bytes.
        """
        if self.platform != "cpu" or not self.is_alone:
            return 0.0
        return (compiled.cost_analysis() or {}).get("flops", 0.0)

    def compile_with_buffers(
        self, function: Callable[..., list[Any]]
    ) -> tuple[Any, list[OwnedBuffer]]:
        """Probes, and returns XLA's buffers too."""
        if not needs_dump(self.platform):
            compiled = self.probe(function)
            return compiled, owned_buffers(compiled)

        def profiled(*values: Any) -> list[Any]:
            return function(*values)

        # A program from JAX's persistent cache would leave no dump.
        profiled.__name__ = f"coop_profile_{time.time_ns()}"
        lowered = self.lower(profiled)
        with dump_directory() as directory:
            compiled = lowered.compile(compiler_options=dump_options(directory))
            return compiled, owned_buffers(compiled, directory)


def flat_step(
    traced: Any,
    leaves: Sequence[Any],
    rules: Rules = NO_RULES,
    asked: Asked = NOTHING_ASKED,
) -> FlatStep:
    """Flattens a traced step.

    Args:
      traced: `jax.stages.Traced`.
      leaves: its dynamic arguments, flat.
      rules: the user's, on what may be computed again.
      asked: what its `jax.jit` was given.

    Raises:
      TypeError: the step uses values of an enclosing trace.
      ValueError: the rules name what the step does not have, or it is to run on
        neither a CPU nor a GPU.
    """
    donated = [info.donated for info in jax.tree.leaves(traced.args_info)]
    captured = len(traced.jaxpr.jaxpr.invars) - len(donated)
    if captured:
        raise TypeError(
            f"the step uses {captured} values of an enclosing `jax.jit`, `grad` or "
            "`vmap` that are not among its arguments. Pass them as arguments."
        )
    rules.check(traced.jaxpr)
    program = pinned(flatten(traced.jaxpr, donated, rules=rules))
    abstract = _on_devices(
        _abstract(leaf, sharding)
        for leaf, sharding in itertools.zip_longest(leaves, asked.inputs)
    )
    platform = _platform((*(leaf.sharding for leaf in abstract), *asked.outputs))
    options: dict[str, Any] = {}
    if any(sharding is not None for sharding in asked.outputs):
        options["out_shardings"] = list(asked.outputs)
    inside = unmapped(program)
    if inside.mapped is not None:
        # A map says how its arrays are split.
        program, abstract = pinned(inside), inside.mapped.placed(abstract)
    elif settled := _settled_shardings(traced, platform):
        options, program = settled, replace(program, **_partitioned(program, settled))
    elif platform == "gpu":
        program = aligned(program)
    elif platform == "cpu":
        program = unturned(in_line(program))
    if asked.compiler_options:
        options["compiler_options"] = dict(asked.compiler_options)
    program = with_ruled_loops(program, platform)
    return FlatStep(traced, program, abstract, platform, options)


def is_donated(info: Any) -> bool:
    """Whether an argument is donated as a whole, by its part of `args_info`."""
    leaves = jax.tree.leaves(info)
    return bool(leaves) and all(leaf.donated for leaf in leaves)


def _abstract(leaf: Any, asked: Any) -> Any:
    """The leaf without its data, so that a plan keeps no arrays alive.

    Args:
      leaf: an array or what stands for one.
      asked: the sharding that the step asks it to have, or None.
    """
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf.update(sharding=shortened(asked or leaf.sharding))
    aval = jax.typeof(leaf)
    if isinstance(leaf, Tracer):
        # Over explicit axes of a mesh its type says how it is split.
        sharding = aval.sharding if any(aval.sharding.spec) else None
    else:
        sharding = leaf.sharding if getattr(leaf, "committed", False) else None
    return jax.ShapeDtypeStruct(
        aval.shape,
        aval.dtype,
        sharding=shortened(asked or sharding),
        weak_type=getattr(aval, "weak_type", False),
    )


def _on_devices(leaves: Iterable[Any]) -> tuple[Any, ...]:
    """The leaves with shardings over devices, where types name a mesh alone."""
    leaves = tuple(leaves)
    if not any(_is_abstract(leaf.sharding) for leaf in leaves):
        return leaves
    # JAX knows which mesh is set, and does not tell inside of a trace.
    try:
        lowered = jax.jit(lambda *same: same).lower(*leaves)
        placed, _ = lowered.compile().input_shardings
    except ValueError:  # none is
        placed = (None,) * len(leaves)
    return tuple(
        leaf.update(sharding=shortened(known)) if _is_abstract(leaf.sharding) else leaf
        for leaf, known in zip(leaves, placed, strict=True)
    )


def _is_abstract(sharding: Any) -> bool:
    return isinstance(getattr(sharding, "mesh", None), AbstractMesh)


def shortened(sharding: Any) -> Any:
    """The sharding less what says nothing: to jax `P("x")` is not `P("x", None)`."""
    if not isinstance(sharding, NamedSharding):
        return sharding
    spec = list(sharding.spec)
    while spec and spec[-1] is None:
        spec.pop()
    short = PartitionSpec(*spec)
    same = NamedSharding(sharding.mesh, short, memory_kind=sharding.memory_kind)
    ndim = len(sharding.spec)
    return same if same.is_equivalent_to(sharding, ndim) else sharding


def _platform(shardings: Iterable[Any]) -> str:
    """Where the step will run, by the first that is known of its arrays' shardings.

    Raises:
      ValueError: neither on a CPU nor on a GPU.
    """
    platform = jax.default_backend()
    default = jax.config.jax_default_device
    if default is not None:
        platform = getattr(default, "platform", default)
    for sharding in shardings:
        if sharding is not None:
            platform = next(iter(sharding.device_set)).platform
            break
    platform = "gpu" if platform in ("cuda", "rocm") else str(platform)
    if platform not in ("cpu", "gpu"):
        raise ValueError(
            f"`coop_jax.remat` plans steps for CPUs and GPUs. This one is to run on "
            f"{platform!r}: use `jax.checkpoint` there."
        )
    return platform


def unchecked_keys() -> contextlib.AbstractContextManager[None]:
    """While a program that was made of a step is traced.

    `jax_debug_key_reuse` has checked the step. To it a barrier uses the keys that pass
    it, and what is drawn again uses them twice.
    """
    return jax.debug_key_reuse(False)


def _partitioned(program: Program, options: dict[str, Any]) -> dict[str, Any]:
    """Number of devices, and bytes per device of each argument."""
    sizes, devices = {}, 1
    for v, sharding in zip(program.arguments, options["in_shardings"], strict=True):
        if sharding is not None:
            aval = program.avals[v]
            devices = max(devices, len(sharding.device_set))
            sizes[v] = nbytes(aval.update(shape=sharding.shard_shape(aval.shape)))
    return {"partitions": devices, "sizes": sizes}


def _settled_shardings(traced: Any, platform: str) -> dict[str, Any]:
    """Shardings of a step partitioned over several devices, as XLA settled them.

    None of an argument that `jax.jit` drops, as nothing reads it.

    They are only known from the compiled step, so a partitioned step is compiled once
    more; a step on one device is not.
    """
    if jax.device_count() == 1:
        return {}
    lowered = traced.lower()
    partitions = _PARTITIONS.search(lowered.as_text())
    if partitions is None or int(partitions.group(1)) == 1:
        return {}
    compiled = lowered.compile(_PROBE if platform == "cpu" else None)
    return {
        "in_shardings": tuple(compiled.in_tree.flatten_up_to(compiled.input_shardings)),
        "out_shardings": jax.tree.leaves(compiled.output_shardings),
    }
