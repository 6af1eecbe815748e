"""What planning inside loops costs and reaches, on a scanned GPT.

    JAX_PLATFORMS=cpu python -m benchmarks.loops compile
    JAX_PLATFORMS=cpu python -m benchmarks.loops floor
    JAX_PLATFORMS=cpu python -m benchmarks.loops accumulate
    JAX_PLATFORMS=cpu python -m benchmarks.loops skip
    JAX_PLATFORMS=cpu python -m benchmarks.loops unrolled

compile: seconds of the processor for lowering and compiling the step as written and
as planned, each alone, and for planning altogether, which compiles several
programs; 12 and 96 layers. floor: the smallest program by number of layers, beside
`jax.checkpoint` of the body. accumulate: the smallest program of a step that
accumulates gradients over micro-batches, beside that of one micro-batch. skip: a step
that leaves a tenth of its layers out with a `cond`, at the bytes of each policy of
`jax.checkpoint`; flops are counted on the program, a `cond` by its dearest branch.
unrolled: the same for GPT-2 (`benchmarks.models.gpt2`), whose layers are no scan, with
gradients accumulated over micro-batches: the step's only scan.

The model of the others is the small scanned GPT (`benchmarks.models.scanned_gpt`).
Nothing is run.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

import coop_jax
from coop_jax._fitting.compile import flat_step
from coop_jax._program.cost import program_flops

from .models import POLICIES, gpt2, scanned_gpt
from .models.training_step import TrainingStep


def compile_times(layers: Sequence[int], share: float, config: dict[str, Any]) -> None:
    """Prints one row per number of layers."""
    print("layers budget |  as written |  planned  ratio | programs  altogether")
    for count in layers:
        model = scanned_gpt.build(layers=count, **config)
        donated, args = model.donate_argnums, model.abstract_args()
        written = jax.jit(model.step, donate_argnums=donated)
        written.trace(*args)
        step = coop_jax.remat(model.step, share, donate_argnums=donated, progress=False)
        planning = time.process_time()
        plan = step.plan(*args)
        planning = time.process_time() - planning
        before, after = (_compile_seconds(each, args) for each in (written, step))
        print(
            f"{count:6} {share:6.2f} | {before:9.1f} s | {after:6.1f} s "
            f"{after / before:6.2f} | {plan.compiles:8} {planning:9.1f} s",
            flush=True,
        )


def floors(layers: Sequence[int], config: dict[str, Any]) -> None:
    """Prints the smallest programs by number of layers."""
    print("layers | as written  checkpoint       floor  | floor/checkpoint (temp)")
    for count in layers:
        plain, hand = (
            _measured(scanned_gpt.build(layers=count, policy=policy, **config))
            for policy in (None, "nothing_saveable")
        )
        plan = _planned(scanned_gpt.build(layers=count, **config), "min")
        least = plan.measured
        print(
            f"{count:6} | {_mega(plain.temp)} {_mega(hand.temp)} {_mega(least.temp)}  |"
            f" {least.temp / hand.temp:6.2f}"
        )
        for loop in plan.loops:
            print(f"         {loop}")


def accumulation(parts: int, config: dict[str, Any]) -> None:
    """Prints the floors of one micro-batch and of several, and the accumulators."""
    one = scanned_gpt.build(**config)
    several = scanned_gpt.build(micro_batches=parts, **config)
    state = several.abstract_args()[0]
    accumulators = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.params))
    single, together = (_planned(each, "min").measured for each in (one, several))
    over = f"{together.temp / (single.temp + accumulators):.3f} of both"
    print(f"one micro-batch        {_mega(single.temp)}")
    print(f"accumulators           {_mega(accumulators)}")
    print(f"{parts} micro-batches        {_mega(together.temp)}  {over}")


def at_policies(build: Callable[[str | None], TrainingStep]) -> None:
    """Prints each policy beside the plan at its bytes, and the smallest program."""
    written = build(None)
    base = _flops(written)
    print(
        "policy                           |        bytes  flops |         plan  flops"
    )
    print(f"{'as written':32} | {_mega(_measured(written).total)}  1.000 |")
    for policy in POLICIES:
        model = build(policy)
        measured = _measured(model).total
        plan = _planned(written, measured)
        print(
            f"{policy:32} | {_mega(measured)}  {_flops(model) / base:.3f} "
            f"| {_mega(plan.measured.total)}  {plan.flops:.3f}",
            flush=True,
        )
    plan = _planned(written, "min")
    print(
        f"{'min':32} | {'':12}        | {_mega(plan.measured.total)}  {plan.flops:.3f}"
    )


def _flops(model: TrainingStep) -> float:
    args = model.abstract_args()
    traced = jax.jit(model.step).trace(*args)
    return program_flops(flat_step(traced, jax.tree.leaves(args)).program)


def _planned(model: TrainingStep, budget: int | str) -> coop_jax.Plan:
    step = coop_jax.remat(
        model.step, budget, donate_argnums=model.donate_argnums, progress=False
    )
    return step.plan(*model.abstract_args())


def _measured(model: TrainingStep) -> coop_jax.MemoryUse:
    step = jax.jit(model.step, donate_argnums=model.donate_argnums)
    return coop_jax.measure(step, *model.abstract_args())


def _compile_seconds(function: Any, args: tuple) -> float:
    """Processor seconds of lowering and compiling; the step is traced by then."""
    start = time.process_time()
    function.lower(*args).compile()
    return time.process_time() - start


def _mega(size: int) -> str:
    return f"{size / 1e6:9.1f} MB"


def main() -> None:
    parser = argparse.ArgumentParser()
    what = ("compile", "floor", "accumulate", "skip", "unrolled")
    parser.add_argument("what", choices=what)
    parser.add_argument("--layers", type=int, nargs="+")
    parser.add_argument("--budget", type=float, nargs="+", default=[0.5, 0.2])
    parser.add_argument("--parts", type=int, default=4, help="micro-batches")
    parser.add_argument("--batch", type=int, default=16, help="of one micro-batch")
    options = parser.parse_args()
    config = {"batch": options.batch}
    if options.what == "compile":
        for share in options.budget:
            compile_times(options.layers or (12, 96), share, config)
    elif options.what == "floor":
        floors(options.layers or (24, 64), config)
    elif options.what == "accumulate":
        accumulation(options.parts, config)
    elif options.what == "skip":
        at_policies(lambda policy: scanned_gpt.build(
            policy=policy, skipped=0.1, **config))  # fmt: skip
    else:
        at_policies(lambda policy: gpt2.build(
            policy=policy, micro_batches=options.parts))  # fmt: skip


if __name__ == "__main__":
    main()
