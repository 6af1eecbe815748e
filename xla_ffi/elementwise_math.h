// Elementary functions that the compiler can vectorise.
//
// For float32 each is evaluated without branches by a short polynomial, where that
// is too coarse in float64, and rounded: at most 2 ulp from the exact value. Those
// that take a `V` take a float or a vector of them. For float64 they are those of
// the C library.

#ifndef COOP_JAX_XLA_FFI_ELEMENTWISE_MATH_H_
#define COOP_JAX_XLA_FFI_ELEMENTWISE_MATH_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#define COOP_INLINE inline __attribute__((always_inline))
#define COOP_LAMBDA __attribute__((always_inline))

namespace coop_jax {

template <class To, class From>
COOP_INLINE To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// A number, or a vector that is this number all over.
template <class V, class T>
COOP_INLINE V Splat(T x) {
  return V{} + x;
}

// Horner's rule; coefficients from the constant on.
template <class V, class T, int n>
COOP_INLINE V Polynomial(V x, const T (&c)[n]) {
  V y = Splat<V>(c[n - 1]);
#pragma GCC unroll 16
  for (int i = n - 2; i >= 0; --i) y = y * x + c[i];
  return y;
}

// Integers as wide as floats.
template <class V>
struct BitsOf {
  typedef uint32_t Type __attribute__((vector_size(sizeof(V))));
};
template <>
struct BitsOf<float> {
  using Type = uint32_t;
};
template <class V>
using Bits = typename BitsOf<V>::Type;

template <class V>
COOP_INLINE V Abs(V x) {
  return BitCast<V>(BitCast<Bits<V>>(x) & 0x7fffffffu);
}
COOP_INLINE double Abs(double x) { return std::fabs(x); }

// `magnitude` with the sign of `x`.
template <class V>
COOP_INLINE V WithSign(V magnitude, V x) {
  Bits<V> sign = BitCast<Bits<V>>(x) & 0x80000000u;
  return BitCast<V>(BitCast<Bits<V>>(magnitude) | sign);
}

// 2^k for k in [-126, 127], as a difference modulo 2^32.
template <class V>
COOP_INLINE V PowerOfTwo(Bits<V> k) {
  return BitCast<V>((k + 127) << 23);
}

// e^x = 2^power (1 + fraction), for |x| < 2^20. After Cody and Waite: x = k ln 2 + r,
// |r| <= ln(2) / 2, and a minimax polynomial in r, to 2e-8 of the fraction.
template <class V>
struct SplitExp {
  Bits<V> power;
  V fraction;
};

// As above, of first - rest, to which x is near.
template <class V>
COOP_INLINE SplitExp<V> SplitExpOf(V x, V first, V rest) {
  constexpr float kShift = 0x1.8p23f;  // adding it rounds to an integer
  constexpr float kFit[] = {0.5f, 0.1666654348f, 0.04166628048f, 0.008366609924f,
                            0.001394649036f};
  V shifted = x * 1.44269504f + kShift, k = shifted - kShift;
  V high = first - k * 0.693359375f, low = k * 2.12194440e-4f - rest, r = high + low;
  Bits<V> power = BitCast<Bits<V>>(shifted) - BitCast<uint32_t>(kShift);
  return {power, high + (low + r * r * Polynomial(r, kFit))};
}
template <class V>
COOP_INLINE SplitExp<V> SplitExpOf(V x) {
  return SplitExpOf(x, x, V{});
}

// e^x to 2e-9 relative, for x in [-700, 700]; NaN stays NaN. As above.
COOP_INLINE double ExpOf(double x) {
  constexpr double kShift = 0x1.8p52;
  double shifted = x * 1.4426950408889634 + kShift;
  double r = x - (shifted - kShift) * 0.6931471805599453;
  constexpr double kFit[] = {1.000000000556211,    1.000000036432859,
                             0.49999992058860515,  0.16666419675716687,
                             0.04166822809952101,  0.008374857306521934,
                             0.0013836824361459835};
  uint64_t power = (BitCast<uint64_t>(shifted) + 1023) << 52;
  return Polynomial(r, kFit) * BitCast<double>(power);
}

// Into [low, high]; NaN stays NaN.
template <class V, class T>
COOP_INLINE V Clamp(V x, T low, T high) {
  V least = Splat<V>(low), most = Splat<V>(high);
  x = x > most ? most : x;
  return x < least ? least : x;
}

// ln x to 1e-12 for positive normal x: x = 2^k m, sqrt(1/2) < m < sqrt(2), and
// the series of atanh((m - 1) / (m + 1)).
COOP_INLINE double LogOf(double x) {
  constexpr uint64_t kRootHalf = 0x3fe6a09e667f3bcd;
  uint64_t bits = BitCast<uint64_t>(x);
  uint64_t above = bits - kRootHalf;
  double k = static_cast<double>(
      static_cast<int32_t>(static_cast<int64_t>(above) >> 52));
  double m = BitCast<double>((above & 0xfffffffffffff) + kRootHalf);
  double s = (m - 1) / (m + 1);
  constexpr double kSeries[] = {1.0,      1.0 / 3,  1.0 / 5,  1.0 / 7, 1.0 / 9,
                                1.0 / 11, 1.0 / 13, 1.0 / 15, 1.0 / 17};
  return 2 * s * Polynomial(s * s, kSeries) + k * 0.6931471805599453;
}

template <class V>
COOP_INLINE V Exp(V x) {
  SplitExp<V> e = SplitExpOf(Clamp(x, -104.f, 89.f));
  // In two steps: the power may be out of a float's range where e^x is not.
  Bits<V> half = ((e.power + 256) >> 1) - 128;
  return (1 + e.fraction) * PowerOfTwo<V>(half) * PowerOfTwo<V>(e.power - half);
}
COOP_INLINE double Exp(double x) { return std::exp(x); }

COOP_INLINE float Exp2(float x) {
  return static_cast<float>(
      ExpOf(Clamp(x, -151, 129) * 0.6931471805599453));
}
COOP_INLINE double Exp2(double x) { return std::exp2(x); }

template <class V>
COOP_INLINE V Expm1(V x) {
  SplitExp<V> e = SplitExpOf(Clamp(x, -18.f, 89.f));
  V half = PowerOfTwo<V>(e.power - 1);
  return 2 * (half * e.fraction + (half - 0.5f));
}
COOP_INLINE double Expm1(double x) { return std::expm1(x); }

COOP_INLINE float Log(float x) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  float y = static_cast<float>(LogOf(x));
  y = x == kInfinity ? x : y;
  y = x == 0 ? -kInfinity : y;
  return x >= 0 ? y : kNaN;
}
COOP_INLINE double Log(double x) { return std::log(x); }

COOP_INLINE float Log1p(float x) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr double kTaylor[] = {1.0, -1.0 / 2, 1.0 / 3};
  double wide = x, small = wide * Polynomial(wide, kTaylor);
  float y = static_cast<float>(std::fabs(wide) < 1e-3 ? small : LogOf(1 + wide));
  y = x == kInfinity ? x : y;
  y = x == -1 ? -kInfinity : y;
  return x >= -1 ? y : kNaN;
}
COOP_INLINE double Log1p(double x) { return std::log1p(x); }

// With h = (e^2x - 1) / 2: h / (1 + h), as h - h^2 / (1 + h) where h is small and
// 1 - 1 / (1 + h) elsewhere, so that the quotient's error hardly counts.
template <class V>
COOP_INLINE V Tanh(V x) {
  V magnitude = Abs(x), most = Splat<V>(10.f), one = Splat<V>(1.f);
  SplitExp<V> e = SplitExpOf(2 * (magnitude > most ? most : magnitude));
  V half = PowerOfTwo<V>(e.power - 1), h = half * e.fraction + (half - 0.5f);
  V first = h < 1 ? h : one, over = h < 1 ? h * h : one;
  return WithSign(first - over / (1 + h), x);
}
COOP_INLINE double Tanh(double x) { return std::tanh(x); }

// 1 / (1 + e^-x); 0 where that is no normal number.
template <class V>
COOP_INLINE V Logistic(V x) {
  V zero = V{}, one = Splat<V>(1.f);
  SplitExp<V> e = SplitExpOf(Clamp(-x, -30.f, 88.f));
  V power = PowerOfTwo<V>(e.power);
  return (x < -87.3f ? zero : one) / ((power * e.fraction + 1) + power);
}
COOP_INLINE double Logistic(double x) { return 1 / (1 + std::exp(-x)); }

// A number of 11 bits near x, so that the product of two such is exact.
template <class V>
COOP_INLINE V Leading(V x) {
  return BitCast<V>(BitCast<Bits<V>>(x) & 0xffffe000u);
}

// erf(x) where |x| < 3/4, and erfc(|x|) elsewhere; 0 from 9.33 on, where erfc is less
// than 2^-129.
template <class V>
struct SplitErf {
  V near, tail;
};

// `near` is x and x times a minimax fit in x^2, to 2e-9. With m = |x|, `tail` is
// e^(-m^2) u (1 + z) / 2, where u = a / (m + b) and z is a minimax fit in u, to 4e-9.
// Both fits are linear programs, whose coefficients were rounded one after the other.
//
// Rounding m^2 or u costs ulps, so what is lost goes into the exponent. It is found by
// exact products, with or without fused multiply-add. m^2 = high^2 + low (m + high),
// and u is too large by the factor 1 + (u (m + b) - a) / a. What e^(-m^2) is multiplied
// by grows as u^p with 1.1 < p < 1.5; a is near p, so it is about e^(u (m + b) - a)
// times too large.
//
// So erfc is within 1.9 ulp, with fused multiply-add 1.6, and erf within 1.1: measured
// at every float from 2^-32 on where they are normal numbers.
template <class V>
COOP_INLINE SplitErf<V> SplitErfOf(V x) {
  constexpr float kA = 1.385f, kB = 1.25f, kCentre = 0.22253367f;
  constexpr float kTailFit[] = {0.9221233f, 0.3453144f, -0.35003367f, -0.38028157f,
                                0.32121855f, 0.49821666f, -0.86026126f, 0.4002751f};
  constexpr float kNearFit[] = {0.12837917f, -0.3761262f, 0.11283379f, -0.026834335f,
                                0.005113157f, -0.00067375833f};
  V magnitude = Abs(x), most = Splat<V>(9.36f);  // there 2^(power - 1) comes to 0
  V m = magnitude > most ? most : magnitude, square = m * m;
  V high = Leading(m), low = m - high, sum = high + kB;
  V u = kA / (m + kB), first = Leading(u);
  V excess = (sum * first - kA) + sum * (u - first);  // sum u - a
  V rest = excess + low * (m + high + u);
  SplitExp<V> e = SplitExpOf(-square, -(high * high), rest);
  V t = u - kCentre, z = t * Polynomial(t, kTailFit);
  V tail = (u + u * (e.fraction + z * (1 + e.fraction))) * PowerOfTwo<V>(e.power - 1);
  return {x + x * Polynomial(square, kNearFit), tail};
}

template <class V>
COOP_INLINE V Erf(V x) {
  SplitErf<V> split = SplitErfOf(x);
  return Abs(x) < 0.75f ? split.near : WithSign(1 - split.tail, x);
}
COOP_INLINE double Erf(double x) { return std::erf(x); }

template <class V>
COOP_INLINE V Erfc(V x) {
  SplitErf<V> split = SplitErfOf(x);
  V far = x < 0 ? 2 - split.tail : split.tail;
  return Abs(x) < 0.75f ? 1 - split.near : far;
}
COOP_INLINE double Erfc(double x) { return std::erfc(x); }

// x^n for n in [0, 3].
template <class T>
COOP_INLINE T SmallPow(T x, int64_t n) {
  T odd = n & 1 ? x : 1, square = n & 2 ? x * x : 1;
  return square * odd;
}

// x^n by repeated squaring, in float64.
template <class T>
COOP_INLINE T IntegerPow(T x, int64_t n) {
  double base = x, power = 1;
  for (uint64_t left = n < 0 ? -n : n; left > 0; left >>= 1) {
    power = left & 1 ? power * base : power;
    base *= base;
  }
  return static_cast<T>(n < 0 ? 1 / power : power);
}

// `chosen`, or `x` where that is NaN. Of vectors the bits are joined: GCC merges two
// selections into one that it does element by element.
template <class V>
COOP_INLINE V UnlessNaN(V x, V chosen) {
  if constexpr (std::is_floating_point_v<V>) {
    return x != x ? x : chosen;
  } else {
    Bits<V> nan = x == x ? Bits<V>{} : BitCast<Bits<V>>(x);
    return BitCast<V>(BitCast<Bits<V>>(chosen) | nan);
  }
}

// Maximum and minimum that pass NaN on.
template <class V>
COOP_INLINE V Max(V x, V y) {
  return UnlessNaN(x, x > y ? x : y);
}
template <class V>
COOP_INLINE V Min(V x, V y) {
  return UnlessNaN(x, x < y ? x : y);
}

// bfloat16 and float16, rounded to nearest, ties to even.
COOP_INLINE float FromBF16(uint16_t bits) {
  return BitCast<float>(static_cast<uint32_t>(bits) << 16);
}
template <class V>
COOP_INLINE V RoundBF16(V x) {
  Bits<V> bits = BitCast<Bits<V>>(x);
  Bits<V> rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  V number = BitCast<V>(rounded & 0xffff0000u);
  return x == x ? number : BitCast<V>((bits | 0x400000u) & 0xffff0000u);
}
COOP_INLINE uint16_t ToBF16(float x) {
  uint32_t bits = BitCast<uint32_t>(x);
  uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return static_cast<uint16_t>(x == x ? rounded : (bits >> 16) | 0x40);
}

COOP_INLINE float FromF16(uint16_t bits) {
  uint32_t sign = (bits & 0x8000u) << 16, rest = (bits & 0x7fffu) << 13;
  // Subnormal halves are multiples of 2^-24. No float may be subnormal on the way: XLA
  // runs calls on threads that take those for 0.
  float subnormal = static_cast<float>(static_cast<int32_t>(bits & 0x3ffu)) * 0x1p-24f;
  uint32_t normal = rest + (112u << 23), special = rest | 0x7f800000;
  uint32_t magnitude = (bits & 0x7c00u) == 0x7c00u ? special : normal;
  magnitude = (bits & 0x7c00u) == 0 ? BitCast<uint32_t>(subnormal) : magnitude;
  return BitCast<float>(magnitude | sign);
}
COOP_INLINE uint16_t ToF16(float x) {
  uint32_t bits = BitCast<uint32_t>(x);
  uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  // Normal halves: move the exponent's bias by 112, round at bit 13.
  uint32_t normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Subnormal ones: adding 1/2 aligns the bits that remain at bit 0.
  float aligned = BitCast<float>(magnitude) + 0.5f;
  uint32_t subnormal = BitCast<uint32_t>(aligned) - BitCast<uint32_t>(0.5f);
  uint32_t half = magnitude < (113u << 23) ? subnormal : normal;
  half = magnitude >= 0x477ff000 ? 0x7c00 : half;  // 65520 and more
  half = magnitude > 0x7f800000 ? 0x7e00 : half;
  return static_cast<uint16_t>(half | sign);
}

// Counter based random bits, as `jax.random.bits` draws them with partitionable
// threefry: Threefry-2x32 with 20 rounds (Salmon et al., SC 2011) of the
// element's number, both halves joined by exclusive or.
COOP_INLINE uint32_t RotateLeft(uint32_t x, int d) {
  return (x << d) | (x >> (32 - d));
}
COOP_INLINE uint32_t RandomBits(uint32_t key0, uint32_t key1, uint64_t counter) {
  const uint32_t keys[3] = {key0, key1, key0 ^ key1 ^ 0x1bd11bda};
  uint32_t x = static_cast<uint32_t>(counter >> 32) + keys[0];
  uint32_t y = static_cast<uint32_t>(counter) + keys[1];
#define COOP_ROUND(d) \
  x += y;             \
  y = RotateLeft(y, d) ^ x;
#define COOP_ROUNDS(i, p, q, r, s)                                           \
  COOP_ROUND(p) COOP_ROUND(q) COOP_ROUND(r) COOP_ROUND(s) x += keys[i % 3]; \
  y += keys[(i + 1) % 3] + i;
  COOP_ROUNDS(1, 13, 15, 26, 6)
  COOP_ROUNDS(2, 17, 29, 16, 24)
  COOP_ROUNDS(3, 13, 15, 26, 6)
  COOP_ROUNDS(4, 17, 29, 16, 24)
  COOP_ROUNDS(5, 13, 15, 26, 6)
#undef COOP_ROUNDS
#undef COOP_ROUND
  return x ^ y;
}

}  // namespace coop_jax

#endif  // COOP_JAX_XLA_FFI_ELEMENTWISE_MATH_H_
