"""What kernels move and multiply, counted on compiled programs."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks.roofline import roofline
from benchmarks.traffic import kernels, traffic

SIDE = 512
ARRAY = SIDE * SIDE * 4

SLICED = """
%inside (p0: f32[8,64], p1: s32[], p2: f32[8,64]) -> f32[8,64] {
  %p0 = f32[8,64]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  %row = f32[1,64]{1,0} dynamic-slice(%p0, %p1, %zero), dynamic_slice_sizes={1,64}
  %p2 = f32[8,64]{1,0} parameter(2)
  %twice = f32[1,64]{1,0} add(%row, %row)
  ROOT %put = f32[8,64]{1,0} dynamic-update-slice(%p2, %twice, %p1, %zero)
}

%body (carried: (s32[], f32[8,64], f32[8,64])) -> (s32[], f32[8,64], f32[8,64]) {
  %carried = (s32[], f32[8,64]{1,0}, f32[8,64]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%carried), index=0
  %from = f32[8,64]{1,0} get-tuple-element(%carried), index=1
  %to = f32[8,64]{1,0} get-tuple-element(%carried), index=2
  %new = f32[8,64]{1,0} fusion(%from, %i, %to), kind=kLoop, calls=%inside
  ROOT %out = (s32[], f32[8,64]{1,0}, f32[8,64]{1,0}) tuple(%i, %from, %new)
}

%cond (c: (s32[], f32[8,64], f32[8,64])) -> pred[] {
  %c = (s32[], f32[8,64]{1,0}, f32[8,64]{1,0}) parameter(0)
  ROOT %on = pred[] constant(true)
}

ENTRY %main (x: f32[8,64], y: f32[8,64], i: s32[]) -> f32[8,64] {
  %x = f32[8,64]{1,0} parameter(0)
  %y = f32[8,64]{1,0} parameter(1)
  %i.1 = s32[] parameter(2)
  %start = (s32[], f32[8,64]{1,0}, f32[8,64]{1,0}) tuple(%i.1, %x, %y)
  %loop = (s32[], f32[8,64]{1,0}, f32[8,64]{1,0}) while(%start), condition=%cond, \
body=%body, backend_config={"known_trip_count":{"n":"8"}}
  ROOT %last = f32[8,64]{1,0} get-tuple-element(%loop), index=2
}
"""


@pytest.mark.parametrize(
    ("step", "moved"),
    [
        (lambda x: 2 * x + 1, 2 * ARRAY),
        (lambda x: (jnp.tanh(x) + x) * 3, 2 * ARRAY),
        (lambda x: x @ x.T + 0 * x, None),
    ],
)
def test_a_kernel_reads_its_operands_and_writes_its_results(step, moved) -> None:
    x = jax.ShapeDtypeStruct((SIDE, SIDE), jnp.float32)
    found = traffic(jax.jit(step).lower(x).compile().as_text() or "")
    assert found == moved if moved else found >= 3 * ARRAY


def test_what_is_under_way_counts_once_and_scratch_not_at_all() -> None:
    apart = SLICED.replace(
        "%new = f32[8,64]{1,0} fusion(",
        "%begun = ((f32[8,64], s32[], f32[8,64]), f32[8,64], u32[]) fusion-start(",
    ).replace(
        "  ROOT %out",
        "  %new = f32[8,64]{1,0} fusion-done(%begun)\n  ROOT %out",
    )
    assert traffic(apart) == traffic(SLICED)
    call = """
ENTRY %main (x: f32[8,64]) -> f32[8,64] {
  %x = f32[8,64]{1,0} parameter(0)
  %made = (f32[8,64]{1,0}, s8[4096]{0}) custom-call(%x), custom_call_target="product"
  ROOT %y = f32[8,64]{1,0} get-tuple-element(%made), index=0
}
"""
    assert traffic(call) == 2 * 8 * 64 * 4


def test_loops_move_what_each_iteration_slices() -> None:
    row, number = 64 * 4, 4
    assert traffic(SLICED) == 8 * (2 * row + number)


LIBRARY_CALLS = """
ENTRY %main (x: bf16[8,28,28,64], k: bf16[64,3,3,16], a: bf16[4,256,512]) -> pred[] {
  %x = bf16[8,28,28,64]{3,2,1,0} parameter(0)
  %k = bf16[64,3,3,16]{3,2,1,0} parameter(1)
  %a = bf16[4,256,512]{2,1,0} parameter(2)
  %out = (bf16[8,28,28,64]{3,2,1,0}, u8[0]{0}) custom-call(%x, %k), \
dim_labels=b01f_o01i->b01f, feature_group_count=4, custom_call_target="__cudnn$conv\
Forward"
  %y = bf16[8,28,28,64]{3,2,1,0} get-tuple-element(%out), index=0
  %dk = (bf16[64,3,3,16]{3,2,1,0}, u8[0]{0}) custom-call(%x, %y), \
dim_labels=b01f_o01i->b01f, feature_group_count=4, custom_call_target="__cudnn$conv\
BackwardFilter"
  %dx = (bf16[8,28,28,64]{3,2,1,0}, u8[0]{0}) custom-call(%y, %k), \
dim_labels=b01f_o01i->b01f, feature_group_count=4, custom_call_target="__cudnn$conv\
BackwardInput"
  %p = (bf16[4,512,512]{2,1,0}, s8[4194304]{0}) custom-call(%a, %a), \
custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{\
"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],\
"rhs_contracting_dimensions":["1"],"lhs_batch_dimensions":["0"]}}}
  ROOT %done = pred[] constant(true)
}
"""


def test_flops_of_library_calls() -> None:
    found = [(kernel.flops, kernel.kind) for kernel in kernels(LIBRARY_CALLS)]
    convolution = 2 * (8 * 28 * 28 * 64) * (3 * 3 * 16)
    assert found[:3] == [(convolution, "bf16")] * 3
    assert found[3:] == [(2 * (4 * 512 * 512) * 256, "bf16")]


def test_flops_of_products_are_those_that_xla_counts() -> None:
    x = jax.ShapeDtypeStruct((SIDE, SIDE), jnp.float32)
    compiled = jax.jit(lambda x: x @ x @ x).lower(x).compile()
    found = sum(kernel.flops for kernel in kernels(compiled.as_text() or ""))
    by_xla = compiled.cost_analysis() or {}
    assert found == pytest.approx(by_xla["flops"], rel=0.01)


def test_a_kernel_takes_as_long_as_its_arithmetic_or_its_bytes() -> None:
    [*convolutions, product] = kernels(LIBRARY_CALLS)
    expected = sum(kernel.bytes for kernel in convolutions) / 4.8e12
    expected += max(product.flops / 989e12, product.bytes / 4.8e12)
    assert roofline(LIBRARY_CALLS).seconds == pytest.approx(expected)
    assert roofline(LIBRARY_CALLS).bytes == traffic(LIBRARY_CALLS)
    moved = roofline(SLICED)
    assert moved.seconds == pytest.approx(moved.bytes / 4.8e12)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
