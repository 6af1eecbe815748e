"""A partitioned step: `coop_jax.remat` beside `jax.checkpoint`, bytes per device.

    JAX_PLATFORMS=cpu python -m benchmarks.mesh --model gpt2 --split weights

The batch is split over the devices, and with `--split weights` every weight and its
optimizer state too, each along its longest dimension that can be (FSDP); shardings in
between are XLA's. Devices are those of one host, so bytes, flops and collectives count,
and time does not.
"""

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import coop_jax
from coop_jax._fitting.compile import flat_step
from coop_jax._loops.loop_solve import LoopWorkbench
from coop_jax._measure import memory_use
from coop_jax._planning.planner import Effort
from coop_jax._program.rules import Rules

from .models import MODELS, POLICIES, TrainingStep, build

SPLITS = ("batch", "weights")
_AXIS = "devices"
_COLLECTIVE = re.compile(
    r"= (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)"
    r"(?:-start)?[(]"
)


@dataclass(frozen=True)
class Row:
    """One compiled program.

    Attributes:
      total: bytes per device that XLA measures; of a program out of reach, those of
        the smallest one. `temp`: of these, temporaries.
      flops: by XLA's cost analysis.
      collectives: instructions that send.
      sent: arrays that they send; XLA joins several in one instruction.
    """

    program: str
    total: int
    temp: int = 0
    flops: float = 0.0
    collectives: int = 0
    sent: int = 0


def measure(
    model: Callable[[str | None], TrainingStep], mesh: Mesh, split: str
) -> list[Row]:
    """The step as written, under each policy, and planned at each policy's bytes.

    Args:
      model: a training step whose blocks are under a policy, or under none.
      mesh: of one axis.
      split: one of `SPLITS`.
    """
    plain = model(None)
    args = arguments(plain, mesh, split)
    traced = _jitted(plain).trace(*args)
    rows = [_row("as written", traced.lower().compile())]
    hands = [_row(p, _jitted(model(p)).lower(*args).compile()) for p in POLICIES]
    rows += hands
    for name, repeats in (("coop", False), ("coop, sending again", True)):
        rules = Rules(recompute_collectives=repeats)
        bench = LoopWorkbench(flat_step(traced, jax.tree.leaves(args), rules))
        rows += [_planned(bench, f"{name}: {h.program}", h.total) for h in hands]
        least = bench.finish(bench.near_floor(Effort()))
        rows.append(_row(f"{name}: min", least.compiled))
    return rows


def _planned(bench: LoopWorkbench, program: str, budget: int) -> Row:
    try:
        return _row(program, bench.finish(bench.fit(budget, Effort())).compiled)
    except coop_jax.BudgetError as error:
        return Row(f"{program}, out of reach", error.floor or 0)


def arguments(model: TrainingStep, mesh: Mesh, split: str) -> tuple[Any, ...]:
    """Types of the model's arguments with their shardings: the state, then data."""
    state, *data = model.abstract_args()
    placed = [_placed(x, mesh, 1) for x in data]
    return (_placed(state, mesh, None if split == "weights" else 0), *placed)


def _placed(tree: Any, mesh: Mesh, most: int | None) -> Any:
    """Types with shardings: one of each array's first `most` dimensions is split."""
    count = mesh.size

    def place(leaf: Any) -> Any:
        spec = [None] * leaf.ndim
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
        fitting = [d for d, n in enumerate(leaf.shape[:most]) if n % count == 0 and n]
        if fitting and not is_key:
            spec[max(fitting, key=lambda d: leaf.shape[d])] = _AXIS
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(place, tree)


def _jitted(model: TrainingStep) -> Any:
    return jax.jit(model.step, donate_argnums=model.donate_argnums)


def _row(program: str, compiled: Any) -> Row:
    memory = memory_use(compiled)
    sends = [match[1] for match in _COLLECTIVE.finditer(compiled.as_text())]
    return Row(
        program,
        memory.total,
        memory.temp,
        (compiled.cost_analysis() or {}).get("flops", 0.0),
        len(sends),
        sum(types.count("[") for types in sends),
    )


def table(rows: Sequence[Row]) -> str:
    """In Markdown; flops over those of the first row."""
    lines = [
        "| program | MB | temp MB | flops | collectives | arrays sent |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        counted = f"{row.temp / 1e6:.1f} | {row.flops / max(rows[0].flops, 1.0):.3f} | "
        counted += f"{row.collectives} | {row.sent}"
        cells = counted if row.temp else "- | - | - | -"
        lines.append(f"| {row.program} | {row.total / 1e6:.1f} | {cells} |")
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> None:
    """Prints the table of one model."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mesh", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--model", choices=MODELS, default="gpt2")
    parser.add_argument("--split", choices=SPLITS, default="weights")
    parser.add_argument("--devices", type=int, default=4)
    options = parser.parse_args(given)
    if jax.config.jax_platforms == "cpu":
        jax.config.update("jax_num_cpu_devices", options.devices)
    mesh = jax.make_mesh((options.devices,), (_AXIS,), axis_types=(AxisType.Auto,))
    rows = measure(
        lambda policy: build(options.model, policy=policy), mesh, options.split
    )
    print(table(rows))


if __name__ == "__main__":
    main()
