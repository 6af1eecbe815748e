#include "kernels.h"

#include <limits>

#include "chain.h"
#include "elementwise_math.h"
#include "instructions.h"

namespace coop_jax {
namespace {

constexpr int64_t kLanes = 16;

// Folds a block into `total`, in lanes so that it can be vectorised.
template <class T, class F>
COOP_INLINE double FoldWith(const T* x, int64_t n, T identity, double total, F f) {
  T lanes[kLanes];
  for (T& lane : lanes) lane = identity;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] = f(lanes[j], x[i + j]);
  }
  for (; i < n; ++i) lanes[i % kLanes] = f(lanes[i % kLanes], x[i]);
  double block = lanes[0];
  for (int64_t j = 1; j < kLanes; ++j) block = f(block, double{lanes[j]});
  return f(total, block);
}

template <class T>
COOP_INLINE double Fold(Opcode opcode, const T* x, int64_t n, double total) {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  auto add = [](auto a, auto b) COOP_LAMBDA { return a + b; };
  auto max = [](auto a, auto b) COOP_LAMBDA { return Max(a, b); };
  auto min = [](auto a, auto b) COOP_LAMBDA { return Min(a, b); };
  switch (opcode) {
    case Opcode::kReduceSum:
      return FoldWith(x, n, T{0}, total, add);
    case Opcode::kReduceMax:
      return FoldWith(x, n, -kInfinity, total, max);
    default:
      return FoldWith(x, n, kInfinity, total, min);
  }
}

// Gives all `n` places of a register the value of the first.
COOP_INLINE void Spread(const Row& row, const Step& step, int64_t n) {
  if (row.program.instructions[step.instruction].result == Type::kF64) {
    double* to = row.Target<double>(step.target);
    return Fill(to, n, to[0]);
  }
  uint32_t* to = row.Target<uint32_t>(step.target);
  Fill(to, n, to[0]);
}

// Continues a reduction with a block of `n` elements.
COOP_INLINE double FoldStep(const Row& row, const Step& step, int64_t n,
                            double total) {
  const Instruction& made = row.program.instructions[step.instruction];
  if (made.type == Type::kF64) {
    return Fold(made.opcode, row.Value<double>(step.a), n, total);
  }
  return Fold(made.opcode, row.Value<float>(step.a), n, total);
}

// Puts a reduction's result into its register.
COOP_INLINE void FinishStep(const Row& row, const Step& step, int64_t n,
                            double total) {
  if (row.program.instructions[step.instruction].type == Type::kF64) {
    *row.Target<double>(step.target) = total;
  } else {
    *row.Target<float>(step.target) = static_cast<float>(total);
  }
  if (step.spread) Spread(row, step, n);
}

// Runs a step on elements [at, at + n) of a row. A load is spared where the
// register can be the operand itself; with `is_last`, the step writes the result
// itself where it can. Returns whether it has.
template <int bytes>
COOP_INLINE bool ExecuteStep(const Row& row, const Step& step, int64_t at, int64_t n,
                             bool is_last) {
  const Program& program = row.program;
  const Instruction& made = program.instructions[step.instruction];
  if (made.uniform) {
    Execute(row, step, 0, 1);
    if (step.spread) Spread(row, step, n);
    return false;
  }
  if (made.opcode == Opcode::kLoad) {
    char* from = Direct(row, program.operands[made.a], row.operands[made.a], at, n);
    if (from != nullptr) {
      row.places[step.target] = from;
      return false;
    }
  }
  char* home = row.homes[step.target];
  char* to = is_last ? Direct(row, program.result, row.result, at, n) : nullptr;
  if (to != nullptr) row.homes[step.target] = to;
  if (step.links.empty()) {
    Execute(row, step, at, n);
  } else if (row.distance > 0) {
    ExecuteChain<bytes, 2>(row, step, n);
  } else {
    ExecuteChain<bytes, 1>(row, step, n);
  }
  row.homes[step.target] = home;
  return to != nullptr;
}

// One source, compiled for several instruction sets, with vectors as wide as theirs.
#define COOP_KERNELS(name, target, bytes)                                           \
  target bool ExecuteOn##name(const Row& row, const Step& step, int64_t at,         \
                              int64_t n, bool is_last) {                            \
    return ExecuteStep<bytes>(row, step, at, n, is_last);                           \
  }                                                                                 \
  target double FoldOn##name(const Row& row, const Step& step, int64_t n,           \
                             double total) {                                        \
    return FoldStep(row, step, n, total);                                           \
  }                                                                                 \
  target void FinishOn##name(const Row& row, const Step& step, int64_t n,           \
                             double total) {                                        \
    FinishStep(row, step, n, total);                                                \
  }                                                                                 \
  target void StoreOn##name(const Row& row, int64_t start, int64_t n, int source) { \
    Store(row, start, n, source);                                                   \
  }                                                                                 \
  constexpr Kernels k##name = {ExecuteOn##name, FoldOn##name,       \
                                 FinishOn##name, StoreOn##name};

COOP_KERNELS(Any, , 16)

// With the sanitizers it is the plain ones that are looked at.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
COOP_KERNELS(Avx2, __attribute__((target("arch=x86-64-v3"))), 32)
COOP_KERNELS(Avx512, __attribute__((target("arch=x86-64-v4"))), 64)

const Kernels& Fastest() {
  bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  bool has_avx512 =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512cd");
  if (has_avx2 && has_avx512) return kAvx512;
  return has_avx2 ? kAvx2 : kAny;
}
#else
const Kernels& Fastest() { return kAny; }
#endif

}  // namespace

const Kernels& KernelsOfMachine() {
  static const Kernels& kernels = Fastest();
  return kernels;
}

}  // namespace coop_jax
