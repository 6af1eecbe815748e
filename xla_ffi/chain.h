// Runs the links of a chain, a few vectors at a time that stay in the machine's
// registers from the first link to the last.
//
// An instruction on its own reads and writes a register of the program, in the
// cache, for each element, which costs more than most arithmetic does.

#ifndef COOP_JAX_XLA_FFI_CHAIN_H_
#define COOP_JAX_XLA_FFI_CHAIN_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "blocks.h"
#include "elementwise_math.h"
#include "schedule.h"

namespace coop_jax {

// Floats side by side, in vectors of `bytes`.
template <int bytes>
struct Tile {
  typedef float Vector __attribute__((vector_size(bytes)));
  typedef float Unaligned
      __attribute__((vector_size(bytes), aligned(4), may_alias));
  static constexpr int kVectors = 8, kLanes = bytes / 4, kSize = kVectors * kLanes;

  static COOP_INLINE Vector Load(const float* from) {
    return *reinterpret_cast<const Unaligned*>(from);
  }
  static COOP_INLINE void Store(Vector x, float* to) {
    *reinterpret_cast<Unaligned*>(to) = x;
  }
};

// How far ahead is fetched what is read next, in floats: more than a page.
constexpr int64_t kAhead = 1152;

#define COOP_EACH_VECTOR \
  _Pragma("GCC unroll 8") for (int j = 0; j < T::kVectors; ++j)
#define COOP_UNARY_LINK(op, expression) \
  case LinkOp::op:                      \
    COOP_EACH_VECTOR {                  \
      V x = v[j];                       \
      v[j] = expression;                \
    }                                   \
    break
#define COOP_BINARY_LINK(op, expression) \
  case LinkOp::op:                       \
    if (link.is_scalar) {                \
      V y = Splat<V>(*operand);          \
      COOP_EACH_VECTOR {                 \
        V x = v[j];                      \
        v[j] = expression;               \
      }                                  \
    } else {                             \
      COOP_EACH_VECTOR {                 \
        V x = v[j], y = T::Load(operand + j % kColumns * T::kLanes); \
        v[j] = expression;               \
      }                                  \
    }                                    \
    break

// Runs a chain on `n` elements of one row, or of two: a tile is then half as wide, and
// operands that both share are read once. Of two rows `n` is a multiple of such a tile.
template <int bytes, int rows>
COOP_INLINE void ExecuteChain(const Row& row, const Step& step, int64_t n) {
  using T = Tile<bytes>;
  using V = typename T::Vector;
  constexpr int kWidth = T::kSize / rows, kColumns = T::kVectors / rows;
  static_assert(kPairWidth % (T::kSize / 2) == 0);
  alignas(64) float part[T::kSize];
  if (n % kWidth != 0) std::memset(part, 0, sizeof(part));
  const Link* links = step.links.data();
  const size_t count = step.links.size();
  const float* head = row.Value<float>(step.a);
  float* target = row.Target<float>(step.target);
  const int64_t distance = row.distance;
  auto place_of = [distance](int j) COOP_LAMBDA {
    return j / kColumns * distance + j % kColumns * T::kLanes;
  };
  for (int64_t i = 0; i < n; i += kWidth) {
    // The last tile may be a part of one, which is copied to where all of it can
    // be read.
    const size_t rest = std::min<int64_t>(kWidth, n - i) * sizeof(float);
    const bool is_part = rows == 1 && rest < sizeof(part);
    auto place = [&](const float* from) COOP_LAMBDA {
      if (!is_part) return from + i;
      std::memcpy(part, from + i, rest);
      return static_cast<const float*>(part);
    };
    V v[T::kVectors];
    const float* from = place(head);
    if (step.fetches_ahead) {
      const float* ahead = head + i + kAhead;
      COOP_EACH_VECTOR __builtin_prefetch(ahead + place_of(j));
    }
    COOP_EACH_VECTOR v[j] = T::Load(from + place_of(j));
    for (size_t k = 0; k < count; ++k) {
      const Link& link = links[k];
      const float* operand = nullptr;
      if (link.op >= LinkOp::kAdd) {
        operand = row.Value<float>(link.operand);
        if (!link.is_scalar) operand = place(operand);
      }
      switch (link.op) {
        COOP_UNARY_LINK(kNeg, -x);
        COOP_UNARY_LINK(kAbs, Abs(x));
        COOP_UNARY_LINK(kExp, Exp(x));
        COOP_UNARY_LINK(kExpm1, Expm1(x));
        COOP_UNARY_LINK(kTanh, Tanh(x));
        COOP_UNARY_LINK(kLogistic, Logistic(x));
        COOP_UNARY_LINK(kErf, Erf(x));
        COOP_UNARY_LINK(kErfc, Erfc(x));
        COOP_UNARY_LINK(kRoundBF16, RoundBF16(x));
        COOP_BINARY_LINK(kAdd, x + y);
        COOP_BINARY_LINK(kSub, x - y);
        COOP_BINARY_LINK(kSubFrom, y - x);
        COOP_BINARY_LINK(kMul, x * y);
        COOP_BINARY_LINK(kDiv, x / y);
        COOP_BINARY_LINK(kDivInto, y / x);
        COOP_BINARY_LINK(kMax, Max(x, y));
        COOP_BINARY_LINK(kMin, Min(x, y));
      }
    }
    float* to = is_part ? part : target + i;
    COOP_EACH_VECTOR T::Store(v[j], to + place_of(j));
    if (is_part) std::memcpy(target + i, part, rest);
  }
}

#undef COOP_EACH_VECTOR
#undef COOP_UNARY_LINK
#undef COOP_BINARY_LINK

}  // namespace coop_jax

#endif  // COOP_JAX_XLA_FFI_CHAIN_H_
