// The part of every kernel's source that does not depend on its program.

#ifndef COOP_JAX_XLA_FFI_CUDA_PRELUDE_H_
#define COOP_JAX_XLA_FFI_CUDA_PRELUDE_H_

namespace coop_jax {

inline constexpr char kCudaPrelude[] = R"cuda(
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

template <class S, int n>
struct alignas(sizeof(S) * n) Pack { S x[n]; };

template <class S, int n>
__device__ bool is_aligned(const S* p) {
  return reinterpret_cast<u64>(p) % (sizeof(S) * n) == 0;
}
template <class S, int n>
__device__ void load_pack(const S* p, int count, Pack<S, n>& pack) {
  if (count == n && is_aligned<S, n>(p)) {
    pack = *reinterpret_cast<const Pack<S, n>*>(p);
  } else {
#pragma unroll
    for (int j = 0; j < n; ++j) if (j < count) pack.x[j] = p[j];
  }
}
template <class S, int n>
__device__ void store_pack(S* p, int count, const Pack<S, n>& pack) {
  if (count == n && is_aligned<S, n>(p)) {
    *reinterpret_cast<Pack<S, n>*>(p) = pack;
  } else {
#pragma unroll
    for (int j = 0; j < n; ++j) if (j < count) p[j] = pack.x[j];
  }
}

__device__ float from_bf16(u16 x) { return __uint_as_float(u32(x) << 16); }
__device__ u16 to_bf16(float x) {
  u32 bits = __float_as_uint(x);
  return x == x ? (bits + 0x7fff + ((bits >> 16) & 1)) >> 16 : (bits >> 16) | 0x40;
}
__device__ float from_f16(u16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
__device__ u16 to_f16(float x) {
  u16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
template <class T> __device__ T same(T x) { return x; }
__device__ u32 from_pred(u8 x) { return x != 0; }
__device__ u8 to_pred(u32 x) { return x != 0; }

template <class T> __device__ T max_of(T x, T y) { return x != x || x > y ? x : y; }
template <class T> __device__ T min_of(T x, T y) { return x != x || x < y ? x : y; }
template <class T> __device__ T add_of(T x, T y) { return x + y; }
template <class T> __device__ T sign_of(T x) {
  return x > T(0) ? T(1) : x < T(0) ? T(-1) : x;
}
template <class T> __device__ T logistic_of(T x) { return T(1) / (T(1) + exp(-x)); }
template <class T> __device__ T power_of(T x, int n) {
  double base = x, power = 1;
  for (u32 left = n < 0 ? -n : n; left > 0; left >>= 1) {
    if (left & 1) power *= base;
    base *= base;
  }
  return T(n < 0 ? 1 / power : power);
}
__device__ int to_s32(double x) { return x == x ? __double2int_rz(x) : 0; }
__device__ u32 to_u32(double x) { return x == x ? __double2uint_rz(x) : 0; }
__device__ u32 shift_left(u32 x, u32 y) { return y < 32 ? x << y : 0; }
__device__ u32 shift_right(u32 x, u32 y) { return y < 32 ? x >> y : 0; }
__device__ u32 shift_right_signed(u32 x, u32 y) { return int(x) >> (y < 32 ? y : 31); }

__device__ u32 random_bits(const u32* key, u64 counter) {
  const u32 keys[3] = {key[0], key[1], key[0] ^ key[1] ^ 0x1bd11bda};
  const int turns[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  u32 x = u32(counter >> 32) + keys[0], y = u32(counter) + keys[1];
#pragma unroll
  for (int i = 1; i <= 5; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      x += y;
      y = __funnelshift_l(y, y, turns[(i - 1) % 2][j]) ^ x;
    }
    x += keys[i % 3];
    y += keys[(i + 1) % 3] + i;
  }
  return x ^ y;
}

#define COOP_BLOCK_FOLD(name, f)                                       \
  template <class T>                                                   \
  __device__ T name(T x, T identity) {                                 \
    __shared__ T folded[32];                                           \
    for (int d = 16; d > 0; d /= 2) x = f(x, __shfl_xor_sync(~0u, x, d)); \
    __syncthreads();                                                   \
    if (threadIdx.x % 32 == 0) folded[threadIdx.x / 32] = x;           \
    __syncthreads();                                                   \
    x = threadIdx.x % 32 < blockDim.x / 32 ? folded[threadIdx.x % 32] : identity; \
    for (int d = 16; d > 0; d /= 2) x = f(x, __shfl_xor_sync(~0u, x, d)); \
    return x;                                                          \
  }
COOP_BLOCK_FOLD(block_add, add_of)
COOP_BLOCK_FOLD(block_max, max_of)
COOP_BLOCK_FOLD(block_min, min_of)
)cuda";

}  // namespace coop_jax

#endif  // COOP_JAX_XLA_FFI_CUDA_PRELUDE_H_
