"""A float64 oracle: evaluates any JAX function as written, but in double precision.

The function is traced in its own dtypes, so it draws the same random bits and takes the
same shapes. Its jaxpr is then re-bound equation by equation with every floating value
carried as float64; integers, booleans and keys are untouched. Calls are inlined and the
bodies of loops, branches and reducers are rewritten alike. Conversions between floating
dtypes and `reduce_precision` thereby become the identity. A primitive that looks at the
bits of a float, or that we cannot see into, runs in its original dtypes.

Nothing here knows of `coop_jax`: what it says of a step is independent of the planner.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core as jexc
import jax.extend.core.primitives as jexp
import jax.numpy as jnp
import numpy as np

# The parameter that holds the body of each call; the body replaces the call.
_CALLS = {
    jexp.jit_p: "jaxpr",
    jexp.remat_p: "jaxpr",
    jexp.closed_call_p: "call_jaxpr",
    jexp.custom_jvp_call_p: "call_jaxpr",
    jexp.custom_vjp_call_p: "call_jaxpr",
}

# By name, since not all are public: bits of floats, random floats, opaque code.
_IN_ORIGINAL_DTYPES = {
    "bitcast_convert_type",
    "nextafter",
    "random_gamma",
    "rng_uniform",
    "ffi_call",
    "pallas_call",
    "pure_callback",
    "io_callback",
    "debug_callback",
    "debug_print",
}


def evaluate(fn: Callable, *args) -> Any:
    """Returns `fn(*args)` computed in float64 on the CPU.

    Floating leaves are float64 numpy arrays; integers and booleans are numpy arrays
    of their own dtypes; keys stay keys.
    """
    jaxpr, out_shape = jax.make_jaxpr(fn, return_shape=True)(*args)
    leaves = [
        _widen_concrete(leaf, aval)
        for leaf, aval in zip(jax.tree.leaves(args), jaxpr.in_avals, strict=True)
    ]
    consts = [_widen_concrete(c, jax.typeof(c)) for c in jaxpr.consts]
    cpu = jax.devices("cpu")[0]
    with jax.enable_x64(True), jax.default_device(cpu):
        run = jax.jit(lambda consts, leaves: _eval_jaxpr(jaxpr, consts, leaves))
        outs = run(*jax.device_put((consts, leaves), cpu))
        outs = [out if _is_key(out.dtype) else np.asarray(out) for out in outs]
    return jax.tree.unflatten(jax.tree.structure(out_shape), outs)


def relative_error(out: Any, reference: Any) -> float:
    """Largest over floating leaves of `max|out - reference| / max|reference|`.

    Raises ValueError if an integer, boolean or key leaf, a shape or the structure
    differs. NaN anywhere makes the result NaN, which is below no bound.
    """
    if jax.tree.structure(out) != jax.tree.structure(reference):
        raise ValueError("the outputs have different structures")
    expected = jax.tree.leaves(reference)
    paths_and_leaves = jax.tree.leaves_with_path(out)
    errors = [
        _leaf_error(jax.tree_util.keystr(path), leaf, ref)
        for (path, leaf), ref in zip(paths_and_leaves, expected, strict=True)
    ]
    return float(np.max(errors, initial=0.0))


def _leaf_error(name: str, leaf: Any, ref: Any) -> float:
    leaf, ref = _as_numpy(leaf), _as_numpy(ref)
    if leaf.shape != ref.shape:
        raise ValueError(f"output {name} has shape {leaf.shape}, not {ref.shape}")
    if not jnp.issubdtype(ref.dtype, np.inexact):
        if not np.array_equal(leaf, ref):
            raise ValueError(f"output {name} is {ref.dtype} and differs")
        return 0.0
    leaf, ref = leaf.astype(_widen(leaf.dtype)), ref.astype(_widen(ref.dtype))
    tiny = np.finfo(np.float64).tiny
    largest = np.max(np.abs(ref), initial=0.0)
    return np.max(np.abs(leaf - ref), initial=0.0) / (largest + tiny)


def _as_numpy(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and _is_key(leaf.dtype):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _eval_jaxpr(jaxpr: jexc.Jaxpr, consts: list, args: list) -> list:
    """Evaluates `jaxpr` on widened values, widening its literals as they are read."""
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

    def read(atom):
        if isinstance(atom, jexc.Literal):
            return _widen_concrete(atom.val, atom.aval)
        return env[atom]

    for eqn in jaxpr.eqns:
        with eqn.ctx.manager:
            outs = _eval_eqn(eqn, [read(atom) for atom in eqn.invars])
        env.update(zip(eqn.outvars, outs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _eval_eqn(eqn: jexc.JaxprEqn, args: list) -> list:
    if eqn.primitive in _CALLS:
        body = eqn.params[_CALLS[eqn.primitive]]
        return _eval_jaxpr(body, _widen_consts(body), args)
    if eqn.primitive is jexp.reduce_precision_p:
        return args
    if eqn.primitive.name in _IN_ORIGINAL_DTYPES:
        avals: list[Any] = [atom.aval for atom in eqn.invars]
        args = [_cast(x, a.dtype) for x, a in zip(args, avals, strict=True)]
        return [_cast(x, _widen(x.dtype)) for x in _bind(eqn, args, eqn.params)]
    return _bind(eqn, args, _widen_params(eqn.params))


def _bind(eqn: jexc.JaxprEqn, args: list, params: dict) -> list:
    outs = eqn.primitive.bind(*args, **eqn.primitive.get_bind_params(params))
    return outs if eqn.primitive.multiple_results else [outs]


def _widen_params(params: dict) -> dict:
    """Parameters with floating dtypes as float64 and the bodies rewritten to match."""

    def widen(leaf):
        if isinstance(leaf, jexc.Jaxpr):
            return _widen_jaxpr(leaf)
        if isinstance(leaf, np.dtype):
            return _widen(leaf)
        if isinstance(leaf, type) and issubclass(leaf, np.generic):
            return _widen(np.dtype(leaf))
        return leaf

    params = {name: jax.tree.map(widen, value) for name, value in params.items()}
    if "precision" in params:  # may name an algorithm that float64 does not have
        params["precision"] = None
    return params


def _widen_jaxpr(jaxpr: jexc.Jaxpr) -> jexc.Jaxpr:
    consts = _widen_consts(jaxpr)
    avals: Any = jaxpr.in_avals
    args = [jax.ShapeDtypeStruct(a.shape, _widen(a.dtype)) for a in avals]
    return jax.make_jaxpr(lambda *args: _eval_jaxpr(jaxpr, consts, list(args)))(*args)


def _widen_consts(jaxpr: jexc.Jaxpr) -> list:
    return [_widen_concrete(c, jax.typeof(c)) for c in jaxpr.consts]


def _widen_concrete(value: Any, aval: Any) -> Any:
    """`value` as a program with `aval` there sees it, then widened."""
    if _is_key(aval.dtype):
        return value
    return np.asarray(value, aval.dtype).astype(_widen(aval.dtype))


def _widen(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, np.floating):
        return np.dtype(np.float64)
    if jnp.issubdtype(dtype, np.complexfloating):
        return np.dtype(np.complex128)
    return dtype


def _cast(value: Any, dtype: Any) -> Any:
    return value if value.dtype == dtype else jax.lax.convert_element_type(value, dtype)


def _is_key(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jax.dtypes.extended)
