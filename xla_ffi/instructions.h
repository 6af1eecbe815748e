// What each instruction does to a block of a row. All of it is inlined into the
// interpreter, which is compiled for several instruction sets.

#ifndef COOP_JAX_XLA_FFI_INSTRUCTIONS_H_
#define COOP_JAX_XLA_FFI_INSTRUCTIONS_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "elementwise_math.h"
#include "blocks.h"
#include "program.h"

namespace coop_jax {

template <class A, class T, class F>
COOP_INLINE void Unary(const Row& row, const Step& step, int64_t n, F f) {
  const A* a = row.Value<A>(step.a);
  T* t = row.Target<T>(step.target);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) t[i] = f(a[i]);
}

template <class A, class T, class F>
COOP_INLINE void Binary(const Row& row, const Step& step, int64_t n, F f) {
  const A* a = row.Value<A>(step.a);
  const A* b = row.Value<A>(step.b);
  T* t = row.Target<T>(step.target);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) t[i] = f(a[i], b[i]);
}

#define COOP_UNARY(opcode, expression)                            \
  case Opcode::opcode:                                            \
    return Unary<T, T>(row, step, n, [](T x) COOP_LAMBDA { return expression; })
#define COOP_BINARY(opcode, expression) \
  case Opcode::opcode:                  \
    return Binary<T, T>(row, step, n, [](T x, T y) COOP_LAMBDA { return expression; })
#define COOP_COMPARE(opcode, expression)      \
  case Opcode::opcode:                        \
    return Binary<T, uint32_t>(row, step, n, [](T x, T y) COOP_LAMBDA { \
      return static_cast<uint32_t>(expression); })

// Instructions on float32 and float64.
template <class T>
COOP_INLINE void Floating(const Row& row, const Instruction& made,
                          const Step& step, int64_t n) {
  switch (made.opcode) {
    COOP_UNARY(kNeg, -x);
    COOP_UNARY(kAbs, std::fabs(x));
    COOP_UNARY(kSign, x > 0 ? T{1} : x < 0 ? T{-1} : x);
    COOP_UNARY(kFloor, std::floor(x));
    COOP_UNARY(kCeil, std::ceil(x));
    COOP_UNARY(kExp, Exp(x));
    COOP_UNARY(kExp2, Exp2(x));
    COOP_UNARY(kExpm1, Expm1(x));
    COOP_UNARY(kLog, Log(x));
    COOP_UNARY(kLog1p, Log1p(x));
    COOP_UNARY(kTanh, Tanh(x));
    COOP_UNARY(kLogistic, Logistic(x));
    COOP_UNARY(kErf, Erf(x));
    COOP_UNARY(kErfc, Erfc(x));
    COOP_UNARY(kSqrt, std::sqrt(x));
    COOP_UNARY(kRsqrt, 1 / std::sqrt(x));
    COOP_BINARY(kAdd, x + y);
    COOP_BINARY(kSub, x - y);
    COOP_BINARY(kMul, x * y);
    COOP_BINARY(kDiv, x / y);
    COOP_BINARY(kMax, Max(x, y));
    COOP_BINARY(kMin, Min(x, y));
    COOP_BINARY(kPow, static_cast<T>(std::pow(double{x}, double{y})));
    COOP_COMPARE(kEq, x == y);
    COOP_COMPARE(kNe, x != y);
    COOP_COMPARE(kLt, x < y);
    COOP_COMPARE(kLe, x <= y);
    COOP_COMPARE(kGt, x > y);
    COOP_COMPARE(kGe, x >= y);
    case Opcode::kIsFinite:
      return Unary<T, uint32_t>(row, step, n, [](T x) COOP_LAMBDA {
        return static_cast<uint32_t>(std::fabs(x) <= std::numeric_limits<T>::max());
      });
    case Opcode::kRoundBF16:
      return Unary<T, T>(row, step, n, [](T x) COOP_LAMBDA {
        return static_cast<T>(RoundBF16(static_cast<float>(x)));
      });
    case Opcode::kRoundF16:
      return Unary<T, T>(row, step, n, [](T x) COOP_LAMBDA {
        return static_cast<T>(FromF16(ToF16(static_cast<float>(x))));
      });
    case Opcode::kIntegerPow: {
      int64_t power = made.b;
      if (power >= 0 && power <= 3) {
        return Unary<T, T>(row, step, n, [power](T x) COOP_LAMBDA {
          return SmallPow(x, power);
        });
      }
      return Unary<T, T>(row, step, n, [power](T x) COOP_LAMBDA {
        return IntegerPow(x, power);
      });
    }
    default:
      return;
  }
}

// Instructions on 32-bit integers and predicates. Arithmetic wraps around, so
// it is done unsigned; S is the type that orders them.
template <class S>
COOP_INLINE void Integer(const Row& row, const Instruction& made,
                         const Step& step, int64_t n) {
  using T = uint32_t;
  constexpr bool kIsSigned = std::numeric_limits<S>::is_signed;
  switch (made.opcode) {
    COOP_UNARY(kNeg, T{0} - x);
    COOP_UNARY(kAbs, kIsSigned && static_cast<S>(x) < 0 ? T{0} - x : x);
    COOP_UNARY(kSign, kIsSigned && static_cast<S>(x) < 0 ? ~T{0} : T{x != 0});
    COOP_BINARY(kAdd, x + y);
    COOP_BINARY(kSub, x - y);
    COOP_BINARY(kMul, x * y);
    COOP_BINARY(kMax, static_cast<S>(x) > static_cast<S>(y) ? x : y);
    COOP_BINARY(kMin, static_cast<S>(x) < static_cast<S>(y) ? x : y);
    COOP_BINARY(kAnd, x & y);
    COOP_BINARY(kOr, x | y);
    COOP_BINARY(kXor, x ^ y);
    COOP_BINARY(kShiftLeft, y < 32 ? x << (y & 31) : 0);
    COOP_BINARY(kShiftRightLogical, y < 32 ? x >> (y & 31) : 0);
    COOP_BINARY(kShiftRightArithmetic,
                static_cast<T>(static_cast<int32_t>(x) >> (y < 32 ? y : 31)));
    COOP_COMPARE(kEq, x == y);
    COOP_COMPARE(kNe, x != y);
    COOP_COMPARE(kLt, static_cast<S>(x) < static_cast<S>(y));
    COOP_COMPARE(kLe, static_cast<S>(x) <= static_cast<S>(y));
    COOP_COMPARE(kGt, static_cast<S>(x) > static_cast<S>(y));
    COOP_COMPARE(kGe, static_cast<S>(x) >= static_cast<S>(y));
    case Opcode::kNot: {
      T mask = made.type == Type::kPred ? 1 : ~T{0};
      return Unary<T, T>(row, step, n, [mask](T x) COOP_LAMBDA { return x ^ mask; });
    }
    default:
      return;
  }
}

// To an integer: towards zero, saturated, NaN to 0, as XLA does.
template <class To>
COOP_INLINE To ToInteger(double x) {
  constexpr double kLow = std::numeric_limits<To>::min();
  constexpr double kHigh = std::numeric_limits<To>::max();
  x = x < kHigh ? x : kHigh;
  x = x > kLow ? x : kLow;
  return static_cast<To>(x);
}

template <class From>
COOP_INLINE void Convert(const Row& row, Type to, const Step& step, int64_t n) {
  switch (to) {
    case Type::kF32:
      return Unary<From, float>(row, step, n, [](From x) COOP_LAMBDA {
        return static_cast<float>(x);
      });
    case Type::kF64:
      return Unary<From, double>(row, step, n, [](From x) COOP_LAMBDA {
        return static_cast<double>(x);
      });
    case Type::kPred:
      return Unary<From, uint32_t>(row, step, n, [](From x) COOP_LAMBDA {
        return static_cast<uint32_t>(x != 0);
      });
    case Type::kS32:
      return Unary<From, int32_t>(row, step, n, [](From x) COOP_LAMBDA {
        if constexpr (std::numeric_limits<From>::is_integer) {
          return static_cast<int32_t>(x);
        } else {
          return x == x ? ToInteger<int32_t>(x) : 0;
        }
      });
    case Type::kU32:
      return Unary<From, uint32_t>(row, step, n, [](From x) COOP_LAMBDA {
        if constexpr (std::numeric_limits<From>::is_integer) {
          return static_cast<uint32_t>(x);
        } else {
          return x == x ? ToInteger<uint32_t>(x) : 0;
        }
      });
  }
}

COOP_INLINE void ConvertFrom(const Row& row, Type from, Type to,
                             const Step& step, int64_t n) {
  switch (from) {
    case Type::kF32:
      return Convert<float>(row, to, step, n);
    case Type::kF64:
      return Convert<double>(row, to, step, n);
    case Type::kS32:
      return Convert<int32_t>(row, to, step, n);
    default:
      return Convert<uint32_t>(row, to, step, n);
  }
}

template <class T>
COOP_INLINE void Fill(T* to, int64_t n, T value) {
  for (int64_t i = 0; i < n; ++i) to[i] = value;
}

// Instructions without operands in registers.
template <class T>
COOP_INLINE void IotaRun(T* to, int64_t n, int64_t first, int64_t stride) {
  uint32_t from = static_cast<uint32_t>(first), by = static_cast<uint32_t>(stride);
  for (uint32_t i = 0; i < n; ++i) to[i] = static_cast<T>(from + i * by);
}

COOP_INLINE void Iota(const Row& row, const Instruction& made, int64_t start,
                      int64_t n, int target) {
  const Map& map = row.program.maps[made.a];
  ForRuns(map, row.Base(map), start, n,
          [&](int64_t at, int64_t first, int64_t stride, int64_t count) COOP_LAMBDA {
            if (made.type == Type::kF64) {
              return IotaRun(row.Target<double>(target) + at, count, first, stride);
            }
            if (made.type == Type::kF32) {
              return IotaRun(row.Target<float>(target) + at, count, first, stride);
            }
            IotaRun(row.Target<uint32_t>(target) + at, count, first, stride);
          });
}

COOP_INLINE void Random(const Row& row, const Instruction& made, int64_t start,
                        int64_t n, int target) {
  const Map& map = row.program.maps[made.b];
  const uint32_t* key = static_cast<const uint32_t*>(row.operands[made.a]);
  uint32_t key0 = key[0], key1 = key[1];
  uint32_t* to = row.Target<uint32_t>(target);
  ForRuns(map, row.Base(map), start, n,
          [&](int64_t at, int64_t first, int64_t stride, int64_t count) COOP_LAMBDA {
            for (int64_t i = 0; i < count; ++i) {
              to[at + i] = RandomBits(key0, key1, first + i * stride);
            }
          });
}

COOP_INLINE void Execute(const Row& row, const Step& step, int64_t start,
                         int64_t n) {
  const Instruction& made = row.program.instructions[step.instruction];
  switch (made.opcode) {
    case Opcode::kLoad:
      return Load(row, made.a, start, n, step.target);
    case Opcode::kIota:
      return Iota(row, made, start, n, step.target);
    case Opcode::kRandomBits:
      return Random(row, made, start, n, step.target);
    case Opcode::kLiteral:
      if (made.type == Type::kF64) {
        return Fill(row.Target<double>(step.target), n, BitCast<double>(made.a));
      }
      return Fill(row.Target<uint32_t>(step.target), n,
                  static_cast<uint32_t>(made.a));
    case Opcode::kConvert:
      return ConvertFrom(row, row.program.instructions[made.a].result, made.type,
                         step, n);
    case Opcode::kBitcast:
      if (made.type == Type::kF64) {
        return Unary<double, double>(row, step, n, Same<double>);
      }
      return Unary<uint32_t, uint32_t>(row, step, n, Same<uint32_t>);
    case Opcode::kSelect: {
      const uint32_t* which = row.Value<uint32_t>(step.a);
      auto select = [&](const auto* no, const auto* yes) COOP_LAMBDA {
        auto* to = row.Target<std::decay_t<decltype(*no)>>(step.target);
#pragma GCC ivdep
        for (int64_t i = 0; i < n; ++i) to[i] = which[i] ? yes[i] : no[i];
      };
      if (made.type == Type::kF64) {
        return select(row.Value<double>(step.b), row.Value<double>(step.c));
      }
      return select(row.Value<uint32_t>(step.b), row.Value<uint32_t>(step.c));
    }
    default:
      break;
  }
  switch (made.type) {
    case Type::kF32:
      return Floating<float>(row, made, step, n);
    case Type::kF64:
      return Floating<double>(row, made, step, n);
    case Type::kS32:
      return Integer<int32_t>(row, made, step, n);
    default:
      return Integer<uint32_t>(row, made, step, n);
  }
}

#undef COOP_UNARY
#undef COOP_BINARY
#undef COOP_COMPARE

}  // namespace coop_jax

#endif  // COOP_JAX_XLA_FFI_INSTRUCTIONS_H_
