"""Bytes that kernels move, counted on compiled programs."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks.traffic import traffic

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


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
