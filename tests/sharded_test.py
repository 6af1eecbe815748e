"""Steps partitioned over 8 CPU devices, in a process that has so many."""

import textwrap
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from coop_jax._fitting.advice import advise
from coop_jax._fitting.compile import flat_step
from coop_jax._program.rules import Rules
from coop_jax._program.trace import Program
from tests.eight_devices import rows_of

WORKER = textwrap.dedent(
    """
    import collections, json, re, sys
    import jax, jax.numpy as jnp
    from jax import lax
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
    import coop_jax

    LAYERS, WIDTH, HIDDEN, ROWS = 4, 32, 128, 1024
    SPECS = {
        "data": (P(), P(), P("d")),
        "fsdp": (P(None, "d"), P(None, "d"), P("d")),
        "tensor": (P(None, None, "d"), P(None, "d"), P()),
    }
    COLLECTIVE = re.compile(
        r"= (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)"
        r"(?:-start)?[(]"
    )
    MESHES = {
        kind: jax.make_mesh((8,), ("d",), axis_types=(kind,))
        for kind in (AxisType.Auto, AxisType.Explicit)
    }

    def block(x, w):
        return x + jax.nn.gelu(x @ w[0]) @ w[1]

    def unrolled(ws, x):
        for i in range(LAYERS):
            x = block(x, [w[i] for w in ws])
        return jnp.mean(x**2)

    def listed(ws, x):
        for w in ws:
            x = x + jnp.tanh(x @ w)
        return jnp.mean(x**2)

    def wide(ws, x):
        for up, down in zip(ws[::2], ws[1::2]):
            x = block(x, [up, down])
        return jnp.mean(x**2)

    def constrained(ws, x):
        spread = NamedSharding(MESHES[AxisType.Auto], P("d"))
        for i in range(LAYERS):
            x = lax.with_sharding_constraint(block(x, [w[i] for w in ws]), spread)
        return jnp.mean(x**2)

    def pooled(ws, x):
        for i in range(LAYERS):
            x = block(x, [w[i] for w in ws]).reshape(64, -1, WIDTH)
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3), (1, 1, 1), "SAME")
            x = x.reshape(ROWS, WIDTH)
        return jnp.mean(x**2)

    def scanned(ws, x):
        return jnp.mean(lax.scan(lambda x, w: (block(x, w), None), x, ws)[0] ** 2)

    def collectives(compiled):
        # XLA combines several into one, so their arrays are counted.
        return sum(m[1].count("[") for m in COLLECTIVE.finditer(compiled.as_text()))

    def run(loss_of, kind, budget):
        def step(ws, x):
            loss, grads = jax.value_and_grad(loss_of)(ws, x)
            return [w - 0.1 * g for w, g in zip(ws, grads)], loss

        kind, *rest = kind.split("-")
        mesh = MESHES[AxisType.Explicit if rest else AxisType.Auto]
        specs = SPECS[kind]
        shapes = (LAYERS, WIDTH, HIDDEN), (LAYERS, HIDDEN, WIDTH), (ROWS, WIDTH)
        if loss_of is listed:
            specs = LAYERS * specs[:1] + specs[2:]
            shapes = LAYERS * [(WIDTH, WIDTH)] + [(ROWS, WIDTH)]
        if loss_of is wide:
            specs = LAYERS * [P("d") if kind == "fsdp" else P()] * 2 + [P("d")]
            shapes = LAYERS * [(256, 1024), (1024, 256)] + [(4096, 256)]
        keys = jax.random.split(jax.random.key(0), len(shapes))
        *ws, x = [
            jax.device_put(0.1 * jax.random.normal(k, s), NamedSharding(mesh, spec))
            for k, s, spec in zip(keys, shapes, specs)
        ]
        plain = jax.jit(step).lower(ws, x).compile()
        planned = coop_jax.remat(step, budget=budget, progress=False)
        plan = planned.plan(ws, x)
        found, expected = planned(ws, x), plain(ws, x)
        same = jax.tree.map(
            lambda a, b: bool(jnp.allclose(a, b, atol=1e-5)), found, expected
        )
        return {
            "budget": plan.budget,
            "measured": plan.measured.total,
            "predicted": plan.predicted,
            "is_same": jax.tree.all(same),
            "before": collectives(plain),
            "after": collectives(planned.lower(ws, x).compile()),
        }

    for name in sys.argv[1:]:
        loss, kind, budget = name.split(":")
        loss_of = globals()[loss]
        found = run(loss_of, kind, float(budget))
        print("row", json.dumps([name, found]))
    """
)
CASES = (
    "unrolled:data:0.7",
    "unrolled:data-explicit:0.7",
    "unrolled:fsdp:0.7",
    "listed:fsdp:0.6",
    "wide:data:0.7",
    "wide:fsdp:0.7",
    "unrolled:tensor:0.7",
    "constrained:data:0.5",
    "pooled:data:0.5",
    "scanned:fsdp:0.85",
    "scanned:tensor:0.85",
)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return rows_of(WORKER, CASES, tmp_path_factory.mktemp("sharded"))


@pytest.mark.parametrize("case", CASES)
def test_each_device_stays_within_the_budget(rows, case):
    assert rows[case]["measured"] <= rows[case]["budget"]


@pytest.mark.parametrize("case", CASES)
def test_predicted_bytes_are_those_of_one_device(rows, case):
    row = rows[case]
    # Far from the 8 of whole arrays; small arrays pack badly.
    assert 0.85 < row["predicted"] / row["measured"] < 1.3


@pytest.mark.parametrize("kind", ["data", "fsdp"])
def test_what_is_joined_or_gathered_is_predicted(rows, kind):
    """XLA joins the all-reduces of all gradients in one, which a plan does not have.

    Gathered weights are held from the forward to the backward pass, and count all the
    time.
    """
    row = rows[f"wide:{kind}:0.7"]
    # A gradient may lie in the output it is for, which the model does not count on.
    assert 0.995 < row["predicted"] / row["measured"] < 1.08


def test_an_error_names_the_way_to_send_again_where_devices_communicate() -> None:
    step = flat_step(jax.jit(jnp.sin).trace(1.0), [1.0])
    told = [
        any("recompute_collectives=True" in advice for advice in advise(step, *rest))
        for step in (step, replace(step, program=repeating(step.program)))
        for rest in ((0, 9, [], True), (0, 9, [], False))
    ]
    assert told == [True, False, False, False]


def repeating(program: Program) -> Program:
    return replace(program, rules=Rules(recompute_collectives=True))


@pytest.mark.parametrize("case", CASES)
def test_no_collective_is_added(rows, case):
    assert rows[case]["after"] <= rows[case]["before"]


@pytest.mark.parametrize("case", CASES)
def test_results_are_the_same(rows, case):
    assert rows[case]["is_same"]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
