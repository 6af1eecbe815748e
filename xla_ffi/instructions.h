// What each instruction does to a block of a row. All of it is inlined into the
// interpreter, which is compiled for several instruction sets.

#ifndef COOP_JAX_XLA_FFI_INSTRUCTIONS_H_
#define COOP_JAX_XLA_FFI_INSTRUCTIONS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "elementwise_math.h"
#include "program.h"

namespace coop_jax {

// Where the elements of one walk over a row begin, and what reductions have
// gathered.
struct Row {
  const Program& program;
  const void* const* operands;
  void* result;
  int64_t number;
  char* registers;
  int64_t stride;  // bytes of a register

  template <class T>
  T* Register(int k) const {
    return reinterpret_cast<T*>(registers + k * stride);
  }

  // The element that a map addresses at the row's start.
  int64_t Base(const Map& map) const {
    int64_t rest = number, base = 0;
    int outer = static_cast<int>(program.dimensions.size()) - program.row_rank;
    for (int d = outer - 1; d >= 0; --d) {
      base += rest % program.dimensions[d] * map.strides[d];
      rest /= program.dimensions[d];
    }
    return base;
  }
};

// Calls `f(at, first, stride, count)` for each run of equally spaced elements
// among `[start, start + size)` of a row; `at` counts from `start`.
template <class F>
COOP_INLINE void ForRuns(const Map& map, int64_t base, int64_t start,
                         int64_t size, F f) {
  const auto& row = map.row;
  const Map::Dimension inner = row.back();
  for (int64_t at = 0; at < size;) {
    int64_t rest = start + at, column = rest % inner.size, first = base;
    if (row.size() == 1) column = rest;
    first += column * inner.stride;
    rest /= inner.size;
    for (size_t d = row.size() - 1; d-- > 0;) {
      first += rest % row[d].size * row[d].stride;
      rest /= row[d].size;
    }
    int64_t count = row.size() == 1 ? size : std::min(size - at, inner.size - column);
    f(at, first, inner.stride, count);
    at += count;
  }
}

template <class From, class To, class F>
COOP_INLINE void LoadRun(const From* from, int64_t stride, To* to, int64_t n,
                         F convert) {
  if (stride == 1) {
    for (int64_t i = 0; i < n; ++i) to[i] = convert(from[i]);
  } else if (stride == 0) {
    To value = convert(from[0]);
    for (int64_t i = 0; i < n; ++i) to[i] = value;
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = convert(from[i * stride]);
  }
}

template <class From, class To, class F>
COOP_INLINE void LoadAs(const Row& row, const Array& array, const void* data,
                        int64_t start, int64_t n, To* to, F convert) {
  const Map& map = row.program.maps[array.map];
  const From* from = static_cast<const From*>(data);
  ForRuns(map, row.Base(map), start, n,
          [&](int64_t at, int64_t first, int64_t stride, int64_t count)
              __attribute__((always_inline)) {
                LoadRun(from + first, stride, to + at, count, convert);
              });
}

template <class T>
COOP_INLINE T Same(T x) {
  return x;
}

COOP_INLINE void Load(const Row& row, int64_t operand, int64_t start, int64_t n,
                      int target) {
  const Array& array = row.program.operands[operand];
  const void* data = row.operands[operand];
  switch (array.storage) {
    case Storage::kF32:
    case Storage::kS32:
    case Storage::kU32:
      return LoadAs<uint32_t>(row, array, data, start, n,
                              row.Register<uint32_t>(target), Same<uint32_t>);
    case Storage::kF64:
      return LoadAs<uint64_t>(row, array, data, start, n,
                              row.Register<uint64_t>(target), Same<uint64_t>);
    case Storage::kBF16:
      return LoadAs<uint16_t>(row, array, data, start, n,
                              row.Register<float>(target), FromBF16);
    case Storage::kF16:
      return LoadAs<uint16_t>(row, array, data, start, n,
                              row.Register<float>(target), FromF16);
    case Storage::kPred:
      return LoadAs<uint8_t>(row, array, data, start, n,
                             row.Register<uint32_t>(target),
                             [](uint8_t x) { return uint32_t{x != 0}; });
  }
}

template <class To, class From, class F>
COOP_INLINE void StoreAs(const Row& row, int64_t start, int64_t n,
                         const From* from, F convert) {
  const Map& map = row.program.maps[row.program.result.map];
  To* data = static_cast<To*>(row.result);
  ForRuns(map, row.Base(map), start, n,
          [&](int64_t at, int64_t first, int64_t stride, int64_t count)
              __attribute__((always_inline)) {
                To* to = data + first;
                if (stride == 1) {
                  for (int64_t i = 0; i < count; ++i) to[i] = convert(from[at + i]);
                } else {
                  for (int64_t i = 0; i < count; ++i) {
                    to[i * stride] = convert(from[at + i]);
                  }
                }
              });
}

COOP_INLINE void Store(const Row& row, int64_t start, int64_t n, int source) {
  switch (row.program.result.storage) {
    case Storage::kF32:
    case Storage::kS32:
    case Storage::kU32:
      return StoreAs<uint32_t>(row, start, n, row.Register<uint32_t>(source),
                               Same<uint32_t>);
    case Storage::kF64:
      return StoreAs<uint64_t>(row, start, n, row.Register<uint64_t>(source),
                               Same<uint64_t>);
    case Storage::kBF16:
      return StoreAs<uint16_t>(row, start, n, row.Register<float>(source), ToBF16);
    case Storage::kF16:
      return StoreAs<uint16_t>(row, start, n, row.Register<float>(source), ToF16);
    case Storage::kPred:
      return StoreAs<uint8_t>(
          row, start, n, row.Register<uint32_t>(source),
          [](uint32_t x) { return static_cast<uint8_t>(x); });
  }
}

template <class A, class T, class F>
COOP_INLINE void Unary(const Row& row, const Step& step, int64_t n, F f) {
  const A* a = row.Register<A>(step.a);
  T* t = row.Register<T>(step.target);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) t[i] = f(a[i]);
}

template <class A, class T, class F>
COOP_INLINE void Binary(const Row& row, const Step& step, int64_t n, F f) {
  const A* a = row.Register<A>(step.a);
  const A* b = row.Register<A>(step.b);
  T* t = row.Register<T>(step.target);
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
        return static_cast<T>(FromBF16(ToBF16(static_cast<float>(x))));
      });
    case Opcode::kRoundF16:
      return Unary<T, T>(row, step, n, [](T x) COOP_LAMBDA {
        return static_cast<T>(FromF16(ToF16(static_cast<float>(x))));
      });
    case Opcode::kIntegerPow: {
      int64_t power = made.b;
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
              return IotaRun(row.Register<double>(target) + at, count, first, stride);
            }
            if (made.type == Type::kF32) {
              return IotaRun(row.Register<float>(target) + at, count, first, stride);
            }
            IotaRun(row.Register<uint32_t>(target) + at, count, first, stride);
          });
}

COOP_INLINE void Random(const Row& row, const Instruction& made, int64_t start,
                        int64_t n, int target) {
  const Map& map = row.program.maps[made.b];
  const uint32_t* key = static_cast<const uint32_t*>(row.operands[made.a]);
  uint32_t key0 = key[0], key1 = key[1];
  uint32_t* to = row.Register<uint32_t>(target);
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
        return Fill(row.Register<double>(step.target), n, BitCast<double>(made.a));
      }
      return Fill(row.Register<uint32_t>(step.target), n,
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
      const uint32_t* which = row.Register<uint32_t>(step.a);
      auto select = [&](const auto* no, const auto* yes, auto* to) COOP_LAMBDA {
#pragma GCC ivdep
        for (int64_t i = 0; i < n; ++i) to[i] = which[i] ? yes[i] : no[i];
      };
      if (made.type == Type::kF64) {
        return select(row.Register<double>(step.b), row.Register<double>(step.c),
                      row.Register<double>(step.target));
      }
      return select(row.Register<uint32_t>(step.b), row.Register<uint32_t>(step.c),
                    row.Register<uint32_t>(step.target));
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
