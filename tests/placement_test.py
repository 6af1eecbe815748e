"""Arrays in other places than before, shardings that `jax.jit` was given or types have.

In a process that has two devices.
"""

import textwrap
from typing import Any

import pytest

from tests.eight_devices import rows_of

WORKER = textwrap.dedent(
    """
    import json, sys
    import jax, jax.numpy as jnp, numpy as np
    from jax import lax
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
    from jax.sharding import SingleDeviceSharding
    import coop_jax

    one, two, *_ = jax.devices()
    mesh = jax.sharding.Mesh([one, two], ("d",), axis_types=(AxisType.Auto,))
    on = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, P(*spec)))
    w, x = np.eye(16, dtype=np.float32), np.ones((32, 16), np.float32)
    second = SingleDeviceSharding(two)

    def train_step(w, x):
        loss, grad = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
        return w - 0.1 * grad, loss

    def with_metrics(w, scale, xs):
        # Nothing reads a metric that each iteration stacks.
        def body(h, x):
            return jnp.tanh(h @ w) + jnp.mean(x), jnp.sum(x) * scale
        h, _ = lax.scan(body, jnp.ones((4, 16)), xs)
        return w - 0.1 * jnp.mean(h), jnp.sum(h)

    def unread(w, unread, x):
        return w - 0.1 * jnp.mean(x), jnp.sum(x @ w)

    mapped = jax.shard_map(
        lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w),
        mesh=mesh, in_specs=(P(), P("d")), out_specs=P("d"))

    def compare(function, calls, **options):
        step = coop_jax.remat(function, 1.0, progress=False, **options)
        plain = jax.jit(function, **options)
        for args, kwargs in calls:
            found, expected = step(*args, **kwargs), plain(*args, **kwargs)
            leaves = jax.tree.leaves
            for a, b in zip(leaves(found), leaves(expected), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5)
                assert a.sharding.is_equivalent_to(b.sharding, a.ndim), (
                    a.sharding, b.sharding)
        return step

    def another_split():
        # As weights come back from a first step.
        calls = [(on(w), on(x, "d")), (on(w), on(x)), (on(w, "d"), on(x, "d"))]
        compare(train_step, [(args, {}) for args in calls])

    def another_device():
        calls = [jax.device_put((w, x), one), jax.device_put((w, x), two), (w, x)]
        compare(train_step, [(args, {}) for args in calls])

    def another_default():
        step = compare(train_step, [((w, x), {})])
        with jax.default_device(two):
            assert step(w, x)[0].devices() == {two}
            assert step.lower(w, x).compile()(w, x)[0].devices() == {two}
        assert step(w, x)[0].devices() == {one}

    def dropped_by_jax():
        xs = jnp.ones((3, 16, 8))
        compare(with_metrics, [((on(w), on(jnp.float32(2)), on(xs, None, "d")), {})])

    def kept_unused():
        calls = [((on(w), on(jnp.ones((4, 4))), on(x, "d")), {})]
        compare(unread, calls, keep_unused=True)
        compare(unread, calls)

    def asked_of_jit():
        calls = [((w, x), {})]
        compare(train_step, calls, in_shardings=second, out_shardings=second)
        compare(train_step, calls, out_shardings=second)
        compare(train_step, calls, out_shardings=(None, second))
        compare(train_step, calls, in_shardings=(None, second))
        host = SingleDeviceSharding(one, memory_kind="unpinned_host")
        compare(train_step, calls, out_shardings=(host, None))
        split = NamedSharding(mesh, P("d"))
        compare(train_step, calls, in_shardings=(None, split))

    def asked_of_jit_with_statics():
        def powered(n, w, x):
            return train_step(w ** n, x)
        calls = [((n, w, x), {}) for n in (1, 2, 1)]
        compare(powered, calls, static_argnums=0, out_shardings=second)

    def asked_of_a_map():
        whole = NamedSharding(mesh, P())
        compare(lambda w, x: mapped(w, x), [((on(w), on(x, "d")), {})],
                out_shardings=whole)

    def by_name():
        args, named = (on(w),), {"x": on(x, "d")}
        step = compare(train_step, [(args, named)])
        use = coop_jax.measure(step, *args, **named)
        assert step.plan(*args, **named).measured == use
        found = step.lower(*args, **named).compile()(*args, **named)
        np.testing.assert_allclose(found[0], step(*args, **named)[0], rtol=1e-6)

    def planned(kind, loss_of, *specs, budgets=(0.8, "min")):
        # Alone, and inside an outer jit, where a tracer tells no more
        # than its type.
        mesh = jax.sharding.Mesh([one, two], ("d",), axis_types=(kind,))
        def step(w, x):
            loss, grad = jax.value_and_grad(loss_of)(w, x)
            return w - 0.1 * grad, loss
        with jax.set_mesh(mesh):
            places = [NamedSharding(mesh, P(*spec)) for spec in specs]
            w = 0.3 * jax.random.normal(jax.random.key(0), (6, 32, 32))
            args = jax.device_put((w, jnp.ones((256, 32))), tuple(places))
            expected = jax.jit(step)(*args)
            known = {} if kind is AxisType.Explicit else {"in_shardings": tuple(places)}
            for budget in budgets:
                planned = coop_jax.remat(step, budget, progress=False, **known)
                plan = planned.plan(*args)
                assert plan.is_planned
                size = budget if budget == "min" else plan.budget
                inside = coop_jax.remat(step, size, progress=False, **known)
                for found in (planned(*args), jax.jit(lambda *a: inside(*a))(*args)):
                    for a, b in zip(found, expected, strict=True):
                        assert jax.typeof(a) == jax.typeof(b)
                        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)

    def layers(w, x):
        for i in range(6):
            x = jnp.tanh(x @ w[i]) + x
        return jnp.mean(x ** 2)

    def scanned(w, x):
        y, _ = lax.scan(lambda c, w: (jnp.tanh(c @ w) + c, None), x, w)
        return jnp.mean(y ** 2)

    def gathered(w, x):
        def body(c, w):
            return jnp.tanh(c @ jax.sharding.reshard(w, P())) + c, None
        return jnp.mean(lax.scan(body, x, w)[0] ** 2)

    def explicit_layers():
        planned(AxisType.Explicit, layers, (), ("d",))

    def explicit_scan():
        planned(AxisType.Explicit, scanned, (), ("d",))

    def explicit_scan_of_split_weights():
        planned(AxisType.Explicit, gathered, (None, "d"), ("d",), budgets=["min"])

    def streamed_weights():
        # From the host's memory, a layer at a time.
        host = SingleDeviceSharding(one, memory_kind="pinned_host")
        w = 0.3 * jax.random.normal(jax.random.key(0), (6, 32, 32))
        args = jax.device_put(w, host), jax.device_put(jnp.ones((256, 32)), one)
        def step(w, x):
            def loss_of(w):
                def body(c, w):
                    here = jax.device_put(w, jax.memory.Space.Device)
                    return jnp.tanh(c @ here) + c, None
                return jnp.mean(lax.scan(body, x, w)[0] ** 2)
            return jax.value_and_grad(loss_of)(w)
        planned = coop_jax.remat(step, "min", progress=False)
        assert planned.plan(*args).is_planned
        for a, b in zip(planned(*args), jax.jit(step)(*args), strict=True):
            assert a.sharding.memory_kind == b.sharding.memory_kind
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)

    def automatic_layers():
        planned(AxisType.Auto, layers, (), ("d",))

    for name in sys.argv[1:]:
        try:
            globals()[name]()
            said = ""
        except Exception as error:
            said = repr(error)
        print("row", json.dumps([name, said]), flush=True)
    """
)
CASES = (
    "another_split",
    "another_device",
    "another_default",
    "dropped_by_jax",
    "kept_unused",
    "asked_of_jit",
    "asked_of_jit_with_statics",
    "asked_of_a_map",
    "by_name",
    "explicit_layers",
    "explicit_scan",
    "explicit_scan_of_split_weights",
    "automatic_layers",
    "streamed_weights",
)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return rows_of(WORKER, CASES, tmp_path_factory.mktemp("placement"))


@pytest.mark.parametrize("case", CASES)
def test_results_are_and_lie_as_under_jit(rows: dict[str, Any], case: str) -> None:
    assert not rows[case], rows[case]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
