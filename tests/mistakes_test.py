"""What users get wrong, and that each message names the cause and the remedy."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback
from jax.experimental.layout import Format, Layout

import coop_jax
from coop_jax import remat
from coop_jax._fitting import compile
from coop_jax._plan_file import from_text, to_text
from coop_jax._version import check_jax
from tests.small_step import SHAPES, make_args, small_plan, train_step

X = jnp.ones((8, 8))


def double(x, y=1.0):
    return x * 2 * y


def branches_on_a_tracer(x):
    return x if x.sum() > 0 else -x


def two(x, y):
    return x + 1, y * 2


class Framework:
    """A wrapper with a `trace` of its own, as some libraries have."""

    def trace(self, *_: Any) -> None: ...
    def lower(self, *_: Any) -> None: ...
    def __call__(self, x):
        return x


def closes_over_a_tracer() -> None:
    jax.jit(lambda w: remat(lambda x: x + w, "1GiB")(X))(X)


def with_effects_in_the_way() -> None:
    """Values of a callback are alive to the end, and cannot be computed again."""
    big = jax.ShapeDtypeStruct((512, 64), jnp.float32)

    def step(weights, x):
        def loss_of(weights):
            y = x
            for w in weights:
                noise = io_callback(lambda y: y, big, jax.lax.stop_gradient(y))
                y = jnp.tanh(y @ w) * noise
            return jnp.mean(y**2)

        return jax.grad(loss_of)(weights)

    shapes = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 6, big
    try:
        remat(step, "900kB", time_limit=0.3).plan(*shapes)
    except coop_jax.BudgetError as error:
        raise RuntimeError(error.plan.explain()) from None


def under_disabled_jit() -> None:
    with jax.disable_jit():
        remat(double, "1GiB")(X)


def ambiguous_statics() -> None:
    jitted = jax.jit(lambda a, b, c: a * b, static_argnums=0)
    remat(jitted, "1GiB").plan(2, 2, 3.0)


def changed(**fields: Any) -> str:
    content = json.loads(to_text(small_plan()))
    return json.dumps(content | fields)


def changed_plan(**fields: Any) -> str:
    content = json.loads(to_text(small_plan()))
    content["plan"] |= fields
    return json.dumps(content)


def saved(shapes: Any = SHAPES, step: Any = train_step, **options: Any) -> None:
    remat(step, plan=small_plan(), **options).plan(*shapes)


def without_matplotlib() -> None:
    module = sys.modules.pop("matplotlib", None)
    sys.modules["matplotlib"] = None  # type: ignore[assignment]
    try:
        small_plan().plot("plan.png")
    finally:
        del sys.modules["matplotlib"]
        if module is not None:
            sys.modules["matplotlib"] = module


def on_a_tpu() -> None:
    """As `jax.devices()[0].platform` says it there; no such device is needed."""
    device = SimpleNamespace(platform="tpu")
    compile._platform([None, SimpleNamespace(device_set=[device])])


def turned() -> Any:
    (device,) = X.devices()
    place = jax.sharding.SingleDeviceSharding(device)
    return jax.device_put(X, Format(Layout((1, 0)), place))


def symbolic() -> Any:
    return jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 8"), jnp.float32)


def inside_a_map() -> None:
    mesh = jax.make_mesh((1,), ("data",), (jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("data")
    planned = remat(double, "1GiB")
    jax.shard_map(planned, mesh=mesh, in_specs=spec, out_specs=spec)(X)


def plan_double(budget: Any, **options: Any) -> Callable[[], Any]:
    return lambda: remat(double, budget, **options).plan(X)


MISTAKES: dict[str, tuple[Callable[[], Any], type[Exception], str, str]] = {
    # what was done: (how, error, cause, remedy)
    "a unit that is two": (plan_double("12G"), ValueError, "could mean GiB", "12GiB"),
    "bits": (plan_double("12Gb"), ValueError, "reads as bits", "capital B"),
    "per cent": (plan_double("50%"), ValueError, "'50%'", "written as a float: 0.5"),
    "share above 1": (plan_double(1.5), ValueError, "at most 1", "a float in"),
    "zero": (plan_double(0), ValueError, "at least one byte", "an int in bytes"),
    "negative": (plan_double(-5), ValueError, "at least one byte", "an int in bytes"),
    "nan": (plan_double(float("nan")), ValueError, "not a finite", "a float in"),
    "words": (plan_double("lots"), ValueError, "does not read as", '"12GiB"'),
    "a quoted share": (plan_double("0.5"), ValueError, "no unit", "without quotes"),
    "a bool": (plan_double(True), TypeError, "a bool is neither", "an int in bytes"),
    "a list": (plan_double([1]), TypeError, "a list is neither", "an int in bytes"),
    "no limit here": (plan_double(None), ValueError, "reports none", '"12GiB"'),
    "another kind of device": (on_a_tpu, ValueError, "'tpu'", "`jax.checkpoint`"),
    "inside a map": (
        inside_a_map, TypeError, "inside of `jax.shard_map`", "Put the map into the",
    ),
    "out of reach": (
        lambda: remat(train_step, "290kB", time_limit=0.3).plan(*make_args(64)),
        coop_jax.BudgetError, "the smallest program it found", "Raise `budget` to",
    ),
    "under the arguments": (
        lambda: remat(double, 100).plan(X),
        coop_jax.BudgetError, "Arguments and outputs alone take", "Donate the state",
    ),
    "effects in the way": (
        with_effects_in_the_way, RuntimeError, "cannot be computed again", "Raise the",
    ),
    "policy": (plan_double(1, policy="lru"), ValueError, "'lru' is not", "'coop'"),
    "cost model": (
        plan_double(1, cost_model="x"), ValueError, "'x' is not one of", "'roofline'",
    ),
    "time limit": (plan_double(1, time_limit=0), ValueError, "not 0", "seconds above"),
    "misspelt option": (
        plan_double(1, donate_argnum=0), TypeError, "no option `donate_argnum`",
        "Did you mean `donate_argnums`",
    ),
    "budget in place of step": (
        lambda: remat("12GiB"), TypeError, "not str", r"write `coop_jax.remat\(",  # type: ignore
    ),
    "compiler options of jit": (
        lambda: remat(jax.jit(double, compiler_options={"a": 1}), 1).plan(X), TypeError,
        "shows to nobody", r"remat\(step, budget, compiler_options=",
    ),
    "a layout": (
        lambda: remat(double, 1).plan(turned()), TypeError, "layout of its own",
        "Pass it without",
    ),
    "a layout of jit": (
        lambda: remat(double, 1, out_shardings=turned().format).plan(X), TypeError,
        "asks for layouts", "Give it shardings, without",
    ),
    "a symbolic shape": (
        lambda: remat(double, 1).plan(symbolic()), TypeError, "symbolic shape",
        "Plan for concrete shapes",
    ),
    "a device by option": (
        plan_double(1, device=jax.devices()[0]), TypeError, "cannot take `device`",
        "jax.device_put",
    ),
    "a reference": (
        lambda: remat(lambda r: r[...] * 2, 1).plan(jax.new_ref(X)), TypeError,
        "is a `jax.Ref`", "Pass its value",
    ),
    "options of a jitted step": (
        lambda: remat(jax.jit(double), 1, donate_argnums=0), TypeError,
        "already under `jax.jit`", "give them there",
    ),
    "a framework's jit": (
        lambda: remat(Framework(), 1).plan(X), TypeError,
        "Framework is not a function of `jax.jit`", "Pass the function beneath",
    ),
    "not jittable": (
        lambda: remat(branches_on_a_tracer, 1).plan(X),
        jax.errors.TracerBoolConversionError, "Attempted boolean", "static_argnums",
    ),
    "arguments missing": (
        lambda: remat(two, 1).plan(X), TypeError, "missing 1 required",
        "Make `jax.jit",
    ),
    "no arrays": (
        lambda: remat(two, 1).plan(X, "y"), TypeError, "'str'", "Make `jax.jit",
    ),
    "no arrays returned": (
        lambda: remat(lambda x: "y", 1).plan(X), TypeError, "not a valid JAX type",
        "Make `jax.jit",
    ),
    "tracer leak": (
        closes_over_a_tracer, TypeError, "values of an enclosing",
        "Pass them as arguments",
    ),
    "jit disabled": (
        under_disabled_jit, RuntimeError, "`jax_disable_jit` is on",
        "Call the step itself",
    ),
    "ambiguous static arguments": (
        ambiguous_statics, TypeError, "can be matched in", "`static_argnames`",
    ),
    "donated twice": (
        lambda: remat(two, "1GiB", donate_argnums=(0, 1))(X, X),
        jax.errors.JaxRuntimeError, "passed in two places", "Copy it",
    ),
    "a path as plan": (
        lambda: remat(double, plan="plan.json"), TypeError, "not str",  # type: ignore
        "coop_jax.load_plan",
    ),
    "budget and plan": (
        lambda: remat(double, 0.5, plan=small_plan()), ValueError, "not both",
        "a plan has the budget",
    ),
    "plan of another step": (
        lambda: saved(step=lambda w, x: (w, x.sum()), donate_argnums=0),
        coop_jax.PlanError, "computes something else", "Plan again",
    ),
    "plan of other shapes": (
        lambda: saved(make_args(64), donate_argnums=0), coop_jax.PlanError,
        r"was float32\[1024,64\]", "Plan again",
    ),
    "plan without donation": (
        saved, coop_jax.PlanError, "donated when it was made", "Plan again",
    ),
    "half a file": (
        lambda: from_text(changed()[:5000]), coop_jax.PlanError, "cut short",
        "Plan again",
    ),
    "another format": (
        lambda: from_text("{}"), coop_jax.PlanError, 'no `"format"', "Plan again",
    ),
    "a later version": (
        lambda: from_text(changed(version=2)), coop_jax.PlanError, "version 2",
        "Plan again",
    ),
    "edited by hand": (
        lambda: from_text(changed_plan(budget=1)), coop_jax.PlanError,
        "changed by hand", "Plan again",
    ),
    "picture of no kind": (
        lambda: small_plan().plot("plan"), ValueError, "does not say what", "end it",
    ),
    "missing extra": (
        without_matplotlib, ImportError, "matplotlib, which is not installed",
        "pip install matplotlib",
    ),
    "old jax": (
        lambda: check_jax("0.10.0"), ImportError, "this is jax 0.10.0", "pip install",
    ),
    "measure of a number": (
        lambda: coop_jax.measure(5), TypeError, "not int", "write `coop_jax.measure",  # type: ignore
    ),
    "one point": (
        lambda: coop_jax.frontier(double, X, points=1), ValueError, "not 1",
        "at least 2",
    ),
    "frontier options twice": (
        lambda: coop_jax.frontier(remat(double, 1), X, donate_argnums=0), TypeError,
        "planned already", "give options there",
    ),
    "largest batch of a share": (
        lambda: coop_jax.largest_batch(make_args, train_step, 0.5), ValueError,
        "relative", "Give bytes",
    ),
    "largest batch of none": (
        lambda: coop_jax.largest_batch(make_args, train_step, 1, multiple_of=8, most=4),
        ValueError, "leave no batch size", "most=4",
    ),
    "arguments in a list": (
        lambda: coop_jax.largest_batch(lambda n: [X], double, "1GiB"), TypeError,  # type: ignore
        "not as list", r"return \(state, batch\)",
    ),
}  # fmt: skip


def test_there_are_enough_of_them() -> None:
    assert len(MISTAKES) >= 30


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_with_cause_and_remedy(name: str) -> None:
    how, kind, cause, remedy = MISTAKES[name]
    with pytest.raises(kind) as caught:
        how()
    said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    for wanted in (cause, remedy):
        assert re.search(wanted, said), said


def test_the_oldest_jax_is_the_one_that_is_required() -> None:
    root = Path(__file__).absolute().parent.parent
    assert '"jax>=0.11.2,' in (root / "pyproject.toml").read_text()
    check_jax("0.11.2")
    check_jax("0.12.0.1")
    with pytest.raises(ImportError):
        check_jax("0.11.1")


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
