"""`coop_jax.remat`: the function users call."""

import functools
import os
import types
import warnings
from collections.abc import Callable, Iterable, Mapping
from itertools import compress
from typing import Any, overload

import jax
import jax.extend.core as jexc
from jax.core import Tracer

from ._budget import BudgetLike, parse_budget
from ._fitting.compile import flat_step, shortened, unchecked_keys
from ._fitting.dispatch import Remembered, Signatures, of_any_step, placement
from ._fitting.fit import Request, cache_at, fit
from ._fitting.lowering import lower
from ._fitting.saved import Fitted
from ._measure import device_limit
from ._native.inplace import InPlace
from ._options import check_jit_options, check_leaves, check_options
from ._plan import Plan
from ._planning.planner import Effort
from ._program.dynamic import Asked, asked_of, dynamic, dynamic_positions
from ._program.mutations import warning_of_changes
from ._program.rules import Never, make_rules

_DIFFERENTIATED = (
    "coop_jax: what `coop_jax.remat` returned is differentiated. Its budget says "
    "nothing about the memory of that gradient, which is computed as without a plan. "
    "Pass the whole training step, gradient and update included, to `coop_jax.remat`."
)
_TRACING = (
    "coop_jax: the step is traced as `jax.jit` does, and that failed. Make "
    "`jax.jit(step)(*args)` work first; what decides control flow in Python belongs in "
    "`static_argnums`, and what of a model is no array is split off first "
    "(`equinox.partition`, `flax.nnx.split`). Of a function under another library's "
    "`jit`, pass the function beneath."
)


@overload
def remat(
    fun: Callable, budget: BudgetLike = ..., **options: Any
) -> "Rematerialized": ...
@overload
def remat(
    *, budget: BudgetLike = ..., **options: Any
) -> Callable[[Callable], "Rematerialized"]: ...
def remat(
    fun: Callable | None = None,
    budget: BudgetLike = None,
    *,
    policy: str = "coop",
    cost_model: str = "roofline",
    time_limit: float = 20.0,
    inplace: InPlace = "auto",
    override_checkpoint: bool = False,
    recompute_collectives: bool = False,
    save_names: Iterable[str] = (),
    recompute_names: Iterable[str] = (),
    never_recompute: Never = (),
    plan: Plan | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: bool = True,
    **jit_options: Any,
) -> Any:
    """Makes a training step fit a memory budget.

    The whole step is traced (forward, backward, optimizer), compiled once as it is,
    and, if it is over the budget (on CPU also where a plan computes less), rewritten:
    values are computed later, or dropped and
    computed again, in an order that XLA is made to follow. The program that comes back
    is compiled and measured before it is used. Results are those of the step; random
    bits are identical; effects happen once and in order.

    Args:
      fun: the training step: a plain function, or one already under `jax.jit`, whose
        donation, static arguments and shardings are kept. One that `remat` returned is
        planned anew as it was written. Without it, returns a decorator.
      budget: bytes per device for arguments, outputs and temporaries together, as XLA's
        `memory_analysis()` gives them (`argument + output - alias + temp`): an int,
        `"12GiB"` or `"800MB"`, a float in (0, 1] as a share of what the step takes as
        written, `"min"` for the smallest reachable, or up to 5 % more where that
        saves a larger share of the time, or None for the device's limit less 5 %.
      policy: the planner; `"coop"` unless you compare planners.
      cost_model: where the cost of an operation comes from: `"roofline"` (its flops and
        bytes at typical rates), or `"measured"` (timed on the device, each distinct
        operation compiled alone: minutes for a large step).
      time_limit: seconds per plan after which a plan that fits is taken as it is.
      inplace: whether a plan may compute chains of cheap operations (softmax,
        normalisation, dropout) by a native call that overwrites an operand: "auto" for
        where no other plan is as small, False for never, True for wherever XLA holds
        more bytes by itself. Without the native library "auto" is False.
      override_checkpoint: whether the step is taken as without its own
        `jax.checkpoint`s, so that the plan alone decides. By default what they
        recompute stays recomputed, and what they save by name stays saved.
      recompute_collectives: whether a partitioned step may communicate again to
        compute a value again; by default no collective runs more often than written.
      save_names: names (`jax.ad_checkpoint.checkpoint_name`) of values that are
        computed once, whatever the budget.
      recompute_names: names of values that are never kept for the backward pass: it
        computes them again, with or without a budget, as under `jax.checkpoint`.
      never_recompute: what never runs again: primitives, by themselves or by name
        (`"dot_general"`), or a function of a `jax.extend.core.JaxprEqn` that says so.
      plan: a plan made before (`coop_jax.load_plan`), to run without planning; instead
        of a budget.
      cache_dir: directory where plans are kept and looked up; any number of processes
        may share it. By default `coop_jax` in JAX's compilation cache directory if that
        is set, else plans live as long as the process.
      progress: whether long planning shows a line on a terminal (stderr).
      **jit_options: `compiler_options`, and for a plain function what else `jax.jit`
        takes: `donate_argnums`, `donate_argnames`, `static_argnums`,
        `static_argnames`, `in_shardings`, `out_shardings`.

    Returns:
      A `Rematerialized` function, called like the step. It plans once per set of
      shapes.

    Raises:
      ValueError: the budget is not one (at once, not at the first call); at planning,
        a name or primitive does not occur in the step.
      BudgetError: at planning, if no program that small was found.
      PlanError: at the first call, if `plan` was made for another step, other shapes,
        another device or other versions.

    Example:
      >>> import jax, jax.numpy as jnp, coop_jax
      >>> def step(w, x):
      ...     loss, grad = jax.value_and_grad(lambda w: jnp.sum((x @ w) ** 2))(w)
      ...     return w - 0.1 * grad, loss
      >>> step = coop_jax.remat(
      ...     step, budget="1GiB", donate_argnums=0, never_recompute="dot_general"
      ... )
      >>> w, loss = step(jnp.ones((8, 8)), jnp.ones((4, 8)))
    """
    asked = parse_budget(budget)
    check_options(asked, policy, cost_model, time_limit, inplace, plan)
    check_jit_options(jit_options, remat)
    rules = make_rules(override_checkpoint, recompute_collectives, save_names,
                       recompute_names, never_recompute)  # fmt: skip
    request = Request(
        asked,
        policy,
        cost_model,
        Effort(time_limit=time_limit),
        inplace=inplace,
        rules=rules,
        plan=plan,
        cache=cache_at(cache_dir),
        progress=progress,
    )
    if fun is None:
        return functools.partial(_planned, request=request, jit_options=jit_options)
    return _planned(fun, request, jit_options)


def _planned(
    fun: Any, request: Request, jit_options: dict[str, Any]
) -> "Rematerialized":
    """The step under the budget of a request."""
    if not callable(fun):
        raise TypeError(
            f"`coop_jax.remat` takes a function, not {type(fun).__name__}: write "
            "`coop_jax.remat(train_step, budget)`."
        )
    written, compiler_options = fun, {}
    if isinstance(fun, Rematerialized):
        written, compiler_options = fun._jitted, fun._compiler_options
    # A function under `jax.jit` would not say which it has.
    jit_options = dict(jit_options)
    compiler_options = jit_options.pop("compiler_options", None) or compiler_options
    if not isinstance(written, jax.stages.Wrapped):
        jitted: Any = jax.jit(warning_of_changes(written), **jit_options)
    elif jit_options:
        raise TypeError(
            f"{', '.join(jit_options)}: `{getattr(fun, '__name__', 'the step')}` is "
            "already under `jax.jit`, whose options are kept; give them there."
        )
    else:
        jitted = written
    static = {k: v for k, v in jit_options.items() if k.startswith("static_")}
    return Rematerialized(jitted, request, compiler_options, **static)


class Rematerialized:
    """A training step under a memory budget; made by `coop_jax.remat`.

    Called like the step it was made from, it plans when shapes are new, and runs.

    Raises:
      BudgetError: no program within the budget was found.
      PlanError: the step has a saved plan, and that was made for something else.

    Example:
      >>> step = coop_jax.remat(train_step, budget=0.6, donate_argnums=0)
      >>> step.plan(state, batch).is_planned
      True
    """

    def __init__(
        self,
        jitted: Any,
        request: Request,
        compiler_options: dict[str, Any],
        **static: Any,
    ):
        self._jitted = jitted
        self._compiler_options = compiler_options
        self._static = static
        self._request = request
        self._fitted = Remembered[Fitted]()
        self._signatures = Signatures(**static)
        self._known = Remembered[tuple[Fitted, Any]]()
        functools.update_wrapper(self, jitted, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the step; plans first if these shapes are new."""
        leaves = jax.tree.leaves((args, kwargs))
        signature = self._signatures.of(args, kwargs, leaves)
        place = None if signature is None else placement(leaves)
        if signature is not None and (known := self._known.get(signature, place)):
            fitted, out_tree = known
            passed = list(compress(leaves, signature.dynamic))
            return jax.tree.unflatten(out_tree, _run(fitted, passed))
        traced, leaves, asked = self._trace(args, kwargs)
        fitted = self._fit(traced, leaves, asked)
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            flat = _call_traced(fitted, leaves)
        else:
            flat = _run(fitted, leaves)
        # Of arguments that are static unknown to us a signature says too little.
        if signature is not None and len(leaves) == sum(signature.dynamic):
            self._known.put(signature, place, (fitted, traced.out_tree))
        return jax.tree.unflatten(traced.out_tree, flat)

    def __repr__(self) -> str:
        return f"<coop_jax.remat of {self._jitted!r}>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Binds a decorated method to its instance, as `jax.jit` functions do.

        What else it has is reached unbound: `model.step.plan(model, batch)`.
        """
        return self if instance is None else types.MethodType(self, instance)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Rematerialized":
        """Itself, as functions are."""
        return self

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """Plans for these arguments without running.

        Args:
          *args: as for the step: arrays or `jax.ShapeDtypeStruct`s.
          **kwargs: its named arguments.

        Returns:
          The plan that the step runs by on such arguments.

        Raises:
          BudgetError: no program within the budget was found.
          PlanError: the step has a saved plan, and that was made for something else.

        Example:
          >>> plan = step.plan(state, batch)
          >>> plan.measured.total <= plan.budget
          True
        """
        return self._fit(*self._trace(args, kwargs)).plan

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Plans, and lowers the planned step as `jax.jit(step).lower` would.

        Args:
          *args: as for the step: arrays or `jax.ShapeDtypeStruct`s.
          **kwargs: its named arguments.

        Returns:
          The ordinary `jax.stages.Lowered`, to compile, or to read as StableHLO.

        Raises:
          BudgetError: no program within the budget was found.
          PlanError: the step has a saved plan, and that was made for something else.

        Example:
          >>> compiled = step.lower(state, batch).compile()
        """
        traced, leaves, asked = self._trace(args, kwargs)
        return lower(self._fit(traced, leaves, asked), traced)

    def _trace(self, args: tuple, kwargs: dict) -> tuple[Any, list[Any], Asked]:
        traced, leaves, asked = trace_step(self._jitted, args, kwargs, self._static)
        return traced, leaves, asked._replace(compiler_options=self._compiler_options)

    def _fit(self, traced: Any, leaves: list[Any], asked: Asked) -> Fitted:
        places = tuple(_placement(leaf) for leaf in leaves)
        default = jax.config.jax_default_device
        key = traced.jaxpr, traced.in_tree, places, default
        if found := self._fitted.get(of_any_step(), key):
            return found
        step = flat_step(traced, leaves, self._request.rules, asked)
        limit = device_limit(leaf.sharding for leaf in step.leaves)
        fitted = fit(step, self._request, limit)
        return self._fitted.put(of_any_step(), key, fitted)


def trace_step(
    jitted: Any, args: tuple, kwargs: dict, static: Mapping[str, Any]
) -> tuple[Any, list[Any], Asked]:
    """Traces a jitted step.

    Args:
      jitted: the step.
      args: positional arguments, some of them perhaps static.
      kwargs: named ones.
      static: `static_argnums` and `static_argnames`, as far as they are known.

    Returns:
      `jax.stages.Traced`, its dynamic leaves, and what its `jax.jit` was given.
    """
    if jax.config.jax_disable_jit:
        raise RuntimeError(
            "`coop_jax.remat` rewrites what XLA compiles, and `jax_disable_jit` is "
            "on. Call the step itself to debug it."
        )
    if jax.sharding.get_abstract_mesh().manual_axes:
        raise TypeError(
            "the planned step is called inside of `jax.shard_map`, where it is not "
            "known which devices it runs on. Put the map into the step, and call the "
            "planned step outside: `coop_jax.remat(jax.shard_map(step, ...), budget)`."
        )
    try:
        traced = jitted.trace(*args, **kwargs)
    except Exception as error:
        error.add_note(_TRACING)
        raise
    if not hasattr(type(traced), "args_info"):
        raise TypeError(
            f"{type(jitted).__name__} is not a function of `jax.jit`. Pass "
            "the function beneath it, with its state split into arrays."
        )
    try:
        _ = traced.args_info
    except Exception as error:
        raise TypeError(
            "an argument's pytree node takes nothing but arrays for its leaves: "
            f"{error} `coop_jax` is built on `jax.jit(step).lower(...)`, which cannot "
            "take it either. Pass its arrays, and make the node inside the step; or "
            "let its class accept any leaf, as JAX asks of pytrees."
        ) from error
    positions = dynamic_positions(jitted, traced, args, static)
    leaves = jax.tree.leaves(dynamic(traced, args, kwargs, positions))
    check_leaves(leaves)
    return traced, leaves, asked_of(jitted, traced, args, kwargs, positions)


def _run(fitted: Fitted, leaves: list[Any]) -> list[Any]:
    is_checked = jax.config.jax_debug_nans or jax.config.jax_debug_infs
    try:
        return (_jitted(fitted) if is_checked else fitted.compiled)(*leaves)
    except jax.errors.JaxRuntimeError as error:
        donated = [leaves[i] for i in fitted.step.donated]
        if len({id(leaf) for leaf in donated}) < len(donated):
            error.add_note(
                "coop_jax: one array is passed in two places of donated arguments, and "
                "its bytes can be given away once. Copy it (`jnp.copy`) in one place."
            )
        raise


@functools.lru_cache(maxsize=4)
def _jitted(fitted: Fitted) -> Callable[..., list[Any]]:
    """The program under `jax.jit`, which alone says where a NaN comes from."""
    return fitted.step.jit(fitted.function)


def _call_traced(fitted: Fitted, leaves: list[Any]) -> list[Any]:
    """The planned step inside another trace; its derivative is the step's own."""
    as_written = jexc.jaxpr_as_fun(fitted.step.traced.jaxpr)
    call = jax.custom_jvp(fitted.step.jit(fitted.function))

    @call.defjvp
    def derivative(primals: Any, tangents: Any) -> Any:
        warnings.warn(_DIFFERENTIATED, stacklevel=2)
        return jax.jvp(as_written, primals, tangents)

    with unchecked_keys():
        return call(*leaves)


def _placement(leaf: Any) -> Any:
    """What besides its type decides how a leaf's step is compiled."""
    if isinstance(leaf, Tracer) or not getattr(leaf, "committed", True):
        return None
    return shortened(getattr(leaf, "sharding", None))
