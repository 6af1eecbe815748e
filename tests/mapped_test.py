"""Steps inside `jax.shard_map`, over 8 CPU devices, in a process that has so many."""

import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import coop_jax
from tests.eight_devices import rows_of

WORKER = textwrap.dedent(
    """
    import functools, json, re, sys
    import jax, jax.numpy as jnp
    from jax import lax
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
    import coop_jax

    LAYERS, WIDTH, HIDDEN, ROWS = 4, 32, 128, 2048
    COLLECTIVE = re.compile(
        r"= (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)"
        r"(?:-start)?[(]"
    )

    def block(x, layer, psum):
        up, down, key = layer
        y = psum(jax.nn.gelu(x @ up) @ down)
        return x + jnp.where(jax.random.bernoulli(key, 0.9, x.shape), y, 0)

    def straight(ws, x, psum):
        for i in range(LAYERS):
            x = block(x, jax.tree.map(lambda w: w[i], ws), psum)
        return jnp.mean(x**2)

    def scanned(ws, x, psum):
        return jnp.mean(lax.scan(lambda x, w: (block(x, w, psum), None), x, ws)[0] ** 2)

    def gradients(loss_of, reduced, summed, state, x, unread):
        ups, downs, sub = state
        sub = jax.random.fold_in(sub, lax.axis_index("data"))
        keys = jax.random.split(sub, LAYERS)
        psum = (lambda y: lax.psum(y, summed)) if summed else (lambda y: y)
        def of(ups, downs):
            return lax.pmean(loss_of((ups, downs, keys), x, psum), reduced)
        return jax.value_and_grad(of, (0, 1))(ups, downs)

    def loss_alone(loss_of, reduced, summed, state, x, unread):
        ups, downs, sub = state
        sub = jax.random.fold_in(sub, lax.axis_index("data"))
        ws = ups, downs, jax.random.split(sub, LAYERS)
        return lax.pmean(loss_of(ws, x, lambda y: y), reduced)

    def differentiated(loss, state, x, unread):
        ups, downs, sub = state
        of = lambda ups, downs: loss((ups, downs, sub), x, unread)
        return jax.value_and_grad(of, (0, 1))(ups, downs)

    def with_update(gradients_of, state, x, unread):
        ups, downs, key = state
        key, sub = jax.random.split(key)
        loss, grads = gradients_of((ups, downs, sub), x, unread)
        ups, downs = [w - 0.1 * g for w, g in zip((ups, downs), grads)]
        return (ups, downs, key), loss

    def local_step(loss_of, reduced, summed, *arguments):
        of = functools.partial(gradients, loss_of, reduced, summed)
        return with_update(of, *arguments)

    def micro_batches(state, x, unread):
        ups, downs, key = state
        keys = jax.random.split(key, LAYERS)
        def add(total, piece):
            def of(ups, downs):
                ws = ups, downs, keys
                return lax.pmean(straight(ws, piece, lambda y: y), "data")
            grads = jax.grad(of, (0, 1))(ups, downs)
            return jax.tree.map(jnp.add, total, grads), None
        zeros = jax.tree.map(jnp.zeros_like, (ups, downs))
        grads, _ = lax.scan(add, zeros, x.reshape(2, -1, WIDTH))
        ups, downs = [w - 0.1 * g for w, g in zip((ups, downs), grads)]
        return (ups, downs, key), jnp.float32(0)

    def build(name):
        loss_of = {"straight": straight, "scanned": scanned}
        kinds = (AxisType.Explicit if "explicit" in name else AxisType.Auto,)
        one = jax.make_mesh((8,), ("data",), axis_types=kinds)
        two = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
        kind, *rest = name.split("-")
        if kind == "micro":
            return one, micro_batches, (P(), P(), P()), True
        if "tensor" in rest:
            split = (P(None, None, "model"), P(None, "model"), P())
            step = functools.partial(local_step, loss_of[kind], "data", "model")
            return two, step, split, True
        run = gradients if "outside" in rest else local_step
        run = loss_alone if "differentiated" in rest else run
        step = functools.partial(run, loss_of[kind], "data", None)
        return one, step, (P(), P(), P()), "unchecked" not in rest

    RATE = jnp.float32(0.5)

    def around(name, mapped):
        # Captures an array and a literal, and returns an argument and a literal.
        if "captured" not in name:
            return mapped
        def step(state, x, unread):
            state, loss = mapped(state, x, unread, RATE, 2.0)
            return state, loss, x, jnp.float32(3)
        return step

    def collectives(compiled):
        # XLA combines several into one, so their arrays are counted.
        return sum(m[1].count("[") for m in COLLECTIVE.finditer(compiled.as_text()))

    def run(name, budget, is_saved):
        mesh, local, specs, check = build(name)
        if "captured" in name:
            inner = local
            def local(state, x, unread, rate, two):
                return inner(state, x * rate * two, unread)
        more = (P(), P()) if "captured" in name else ()
        results = (P(), specs[:2]) if "outside" in name else (specs, P())
        results = P() if "differentiated" in name else results
        step = around(name, jax.shard_map(
            local, mesh=mesh, in_specs=(specs, P("data"), P(), *more),
            out_specs=results, check_vma=check))
        if "differentiated" in name:
            # Two maps: the second reads residuals of the first.
            of = functools.partial(differentiated, step)
            step = functools.partial(with_update, of)
        if "outside" in name:
            # The key is split before the map, the weights are updated after it.
            step = functools.partial(with_update, step)
        keys = jax.random.split(jax.random.key(0), 4)
        put = lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec))
        normal = lambda k, *shape: 0.1 * jax.random.normal(keys[k], shape)
        state = (put(normal(0, LAYERS, WIDTH, HIDDEN), specs[0]),
                 put(normal(1, LAYERS, HIDDEN, WIDTH), specs[1]),
                 put(keys[2], P()))
        args = state, put(jax.random.normal(keys[3], (ROWS, WIDTH)), P("data")), put(
            jnp.zeros(7), P())
        donated = {"donate_argnums": 0} if "donated" in name else {}
        plain = jax.jit(step, **donated).lower(*args).compile()
        planned = coop_jax.remat(step, budget, progress=False, **donated)
        plan = planned.plan(*args)
        fresh = lambda: jax.tree.map(jnp.copy, args)
        expected = plain(*fresh())
        # The same program, under an outer `jax.jit`: compiled once for both questions.
        inside = jax.jit(planned).lower(*args).compile()
        def saved():
            plan.save("plan.json")
            return coop_jax.remat(step, plan=coop_jax.load_plan("plan.json"), **donated)
        def bare(x):
            is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
            return jax.random.key_data(x) if is_key else x
        def same(found):
            return jax.tree.all(jax.tree.map(
                lambda a, b: bool(jnp.allclose(bare(a), bare(b), atol=1e-5)),
                found, expected))
        return {
            "budget": plan.budget,
            "measured": plan.measured.total,
            "predicted": plan.predicted,
            "flops": plan.flops,
            "is_planned": plan.is_planned,
            "is_same": same(planned(*fresh())),
            "is_same_inside": same(inside(*fresh())),
            "is_same_again": same(saved()(*fresh())) if is_saved else None,
            "arguments": sum(a.size for a in plan.arguments),
            "expected_arguments": sum(
                bare(shard.data).nbytes
                for a in jax.tree.leaves(args) for shard in a.addressable_shards[:1]),
            "before": collectives(plain),
            "after": collectives(inside),
        }

    for case in sys.argv[1:]:
        name, _, saved = case.partition(":")
        print("row", json.dumps([name, run(name, 0.7, bool(saved))]), flush=True)
    """
)
CASES = (
    "straight",
    "straight-captured-unchecked",
    "straight-tensor",
    "straight-outside-donated",
    "straight-differentiated",
    "scanned-explicit",
    "scanned-differentiated",
    "scanned-tensor",
    "micro",
)


# Run by a saved plan too: each kind once, for the time that takes.
SAVED = ("straight-tensor", "straight-outside-donated", "scanned-explicit", "micro")


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    cases = [f"{case}:saved" if case in SAVED else case for case in CASES]
    return rows_of(WORKER, cases, tmp_path_factory.mktemp("mapped"))


@pytest.mark.parametrize("case", CASES)
def test_each_device_stays_within_the_budget(rows, case):
    assert rows[case]["is_planned"]
    assert rows[case]["measured"] <= rows[case]["budget"]
    assert 0.75 < rows[case]["predicted"] / rows[case]["measured"] < 1.35


@pytest.mark.parametrize("case", CASES)
def test_results_are_the_same(rows, case):
    assert rows[case]["is_same"]
    assert rows[case]["is_same_inside"], "inside another jit"


@pytest.mark.parametrize("case", SAVED)
def test_results_are_the_same_by_the_saved_plan(rows, case):
    assert rows[case]["is_same_again"]


@pytest.mark.parametrize("case", CASES)
def test_no_collective_is_added(rows, case):
    assert rows[case]["after"] <= rows[case]["before"]


@pytest.mark.parametrize("case", CASES)
def test_arguments_are_listed_with_the_bytes_of_one_device(rows, case):
    assert rows[case]["arguments"] == rows[case]["expected_arguments"]


def test_a_small_map_in_a_step_is_one_operation_of_it() -> None:
    """The step around it is what has to be planned."""
    mesh = jax.make_mesh((1,), ("data",), (jax.sharding.AxisType.Auto,))
    mapped = jax.shard_map(jnp.sin, mesh=mesh, in_specs=P("data"), out_specs=P("data"))

    def loss(ws, x):
        for w in ws:
            x = x + jnp.tanh(x @ w) @ w.T
        return jnp.mean(x**2)

    def step(ws, x):
        grads = jax.grad(loss)(ws, mapped(x))
        return [w - 0.1 * g for w, g in zip(ws, grads, strict=True)]

    ws, x = [np.eye(64, 256, dtype=np.float32)] * 6, np.ones((2048, 64), np.float32)
    plan = coop_jax.remat(step, 0.6, donate_argnums=0, progress=False).plan(ws, x)
    assert plan.is_planned
    assert any(op.name == "shard_map" for op in plan.problem.ops)


def test_maps_with_split_arrays_computed_between_are_operations() -> None:
    mesh = jax.make_mesh((1,), ("data",), (jax.sharding.AxisType.Auto,))
    mapped = jax.shard_map(
        lambda w, x: jnp.tanh(x @ w) @ w.T,
        mesh=mesh,
        in_specs=(P(), P("data")),
        out_specs=P("data"),
    )

    def step(w, x):
        return w - jax.grad(lambda w: jnp.mean(mapped(w, x) ** 2))(w)

    w, x = np.ones((64, 256), np.float32), np.ones((512, 64), np.float32)
    with pytest.raises(coop_jax.BudgetError, match="take the loss inside") as raised:
        coop_jax.remat(step, 0.5, progress=False, donate_argnums=0).plan(w, x)
    assert raised.value.plan is not None
    assert sum(op.name == "shard_map" for op in raised.value.plan.problem.ops) == 2


def test_timing_operations_one_by_one_is_refused() -> None:
    mesh = jax.make_mesh((1,), ("data",), (jax.sharding.AxisType.Auto,))
    step = jax.shard_map(jnp.sin, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    planned = coop_jax.remat(step, 0.5, cost_model="measured")
    with pytest.raises(ValueError, match="roofline"):
        planned.plan(np.zeros((8, 8), np.float32))


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
