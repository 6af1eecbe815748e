"""Problems small enough to prove an optimum for: random nets, and cut-down models."""

import dataclasses
import random
from types import ModuleType

import jax

from coop_jax._fitting.compile import flat_step
from coop_jax._fitting.solve import Workbench
from coop_jax._planning.types import Op, Problem, Value, ValueId

from .models import equinox_transformer, gpt2, vit

_CUT_DOWN: dict[str, tuple[ModuleType, dict]] = {
    "equinox_transformer, 1 layer": (equinox_transformer, {"layers": 1}),
    "vit, 1 layer": (vit, {"layers": 1}),
    "gpt2, 1 layer": (gpt2, {"layers": 1}),
}


def layered(seed: int, forward: int) -> Problem:
    """A random net and its gradients: `forward` ops, and one for each in the backward.

    A layer is a few ops that each read the one before and, now and then, the layer's
    input or a value of the layer before. The backward op reads the cotangent and what
    its forward op read. Dense ops cost about ten times what the others do; the sizes
    within a net differ by a factor of 16.
    """
    rng = random.Random(seed)
    values = [Value("batch", 0, is_argument=True)]
    ops: list[Op] = []
    saved: list[tuple[ValueId, ...]] = []

    def add(name: str, inputs: set[ValueId], size: int, cost: float, **kind) -> ValueId:
        values.append(Value(name, size, **kind))
        reads = tuple(sorted(inputs))
        ops.append(Op(name, reads, (len(values) - 1,), cost))
        return len(values) - 1

    current, layer_input, costs = 0, 0, []
    for k in range(forward):
        if rng.random() < 0.25:
            layer_input = current
        reads = {current}
        if rng.random() < 0.3:
            reads.add(rng.choice([layer_input, max(0, current - rng.randint(1, 6))]))
        costs.append(rng.uniform(5, 15) if rng.random() < 0.3 else rng.uniform(0.5, 2))
        size = rng.choice([1, 2, 4, 4, 8, 16]) * 1024
        saved.append(tuple(reads))
        current = add(f"forward {k}", reads, size, costs[-1])
    for k in reversed(range(forward)):
        reads = {current, *saved[k]}
        if rng.random() < 0.2:
            add(f"gradient {k}", reads, 0, costs[k], is_output=True)
        current = add(f"backward {k}", reads, 4096, costs[k], is_output=k == 0)
    return Problem(tuple(ops), tuple(values), alignment=1)


def cut_down(name: str) -> Problem:
    """The problem of a benchmark model in few layers, as profiled on this CPU."""
    module, few = _CUT_DOWN[name]
    config = dataclasses.replace(module.SIZES["small"], **few)
    module.SIZES["cut down"] = config
    model = module.build("cut down")
    args = model.abstract_args()
    jitted = jax.jit(model.step, donate_argnums=model.donate_argnums)
    return Workbench(flat_step(jitted.trace(*args), jax.tree.leaves(args))).problem


CUT_DOWN = tuple(_CUT_DOWN)
