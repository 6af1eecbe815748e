#include "interpreter.h"

#include <algorithm>
#include <limits>

#include "elementwise_math.h"
#include "instructions.h"

// One body, compiled for several instruction sets; the loader picks one.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && \
    !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define COOP_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define COOP_CLONES
#endif

namespace coop_jax {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kRegisterBytes = kMaxRegisters * kBlock * sizeof(double);

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

double Identity(Opcode opcode) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (opcode == Opcode::kReduceSum) return 0;
  return opcode == Opcode::kReduceMax ? -kInfinity : kInfinity;
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
COOP_INLINE void Finish(const Row& row, const Step& step, int64_t n, double total) {
  if (row.program.instructions[step.instruction].type == Type::kF64) {
    *row.Target<double>(step.target) = total;
  } else {
    *row.Target<float>(step.target) = static_cast<float>(total);
  }
  if (step.spread) Spread(row, step, n);
}

COOP_INLINE void ExecuteUniform(const Row& row, const Step& step, int64_t n) {
  Execute(row, step, 0, 1);
  if (step.spread) Spread(row, step, n);
}

// Runs a step on elements [at, at + n) of a row. A load is spared where the
// register can be the operand itself; with `is_last`, the step writes the result
// itself where it can. Returns whether it has.
COOP_INLINE bool ExecuteVarying(const Row& row, const Step& step, int64_t at,
                                int64_t n, bool is_last) {
  const Program& program = row.program;
  const Instruction& made = program.instructions[step.instruction];
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
  Execute(row, step, at, n);
  row.homes[step.target] = home;
  return to != nullptr;
}

// Runs a phase on elements [start, end) of a row.
COOP_CLONES void RunPhase(const Row& row, const Phase& phase, int64_t start,
                          int64_t end, bool is_final) {
  const Program& program = row.program;
  const int last = static_cast<int>(program.instructions.size()) - 1;
  double totals[kMaxRegisters];
  for (const Step& step : phase.varying) {
    totals[step.target] = Identity(program.instructions[step.instruction].opcode);
  }
  int64_t width = std::min(kBlock, end - start);
  for (const Step& step : phase.uniform) ExecuteUniform(row, step, width);
  for (int64_t at = start; at < end; at += kBlock) {
    int64_t n = std::min(kBlock, end - at);
    bool is_stored = false;
    for (const Step& step : phase.varying) {
      if (IsReduction(program.instructions[step.instruction].opcode)) {
        totals[step.target] = FoldStep(row, step, n, totals[step.target]);
      } else {
        bool is_last = is_final && step.instruction == last;
        is_stored = ExecuteVarying(row, step, at, n, is_last);
      }
    }
    if (is_final && !is_stored) Store(row, at, n, program.result_register);
  }
  for (const Step& step : phase.varying) {
    if (IsReduction(program.instructions[step.instruction].opcode)) {
      Finish(row, step, width, totals[step.target]);
    }
  }
}

// Runs a whole row at once.
COOP_CLONES void RunWhole(const Row& row) {
  const Program& program = row.program;
  int64_t n = program.row_size;
  const int last = static_cast<int>(program.instructions.size()) - 1;
  bool is_stored = false;
  for (const Step& step : program.whole) {
    const Instruction& made = program.instructions[step.instruction];
    if (IsReduction(made.opcode)) {
      Finish(row, step, n, FoldStep(row, step, n, Identity(made.opcode)));
    } else if (made.uniform) {
      ExecuteUniform(row, step, n);
    } else {
      is_stored = ExecuteVarying(row, step, 0, n, step.instruction == last);
    }
  }
  if (!is_stored) Store(row, 0, n, program.whole_result_register);
}

void RunPhases(const Row& row, int64_t start, int64_t end) {
  size_t phases = row.program.phases.size();
  for (size_t p = 0; p < phases; ++p) {
    RunPhase(row, row.program.phases[p], start, end, p + 1 == phases);
  }
}

}  // namespace

int64_t Pieces(const Program& program) {
  if (program.rows == 0 || program.row_size == 0) return 0;
  if (program.has_reductions) return program.rows;
  return (program.row_size + kBlock - 1) / kBlock;
}

int64_t PieceSize(const Program& program) {
  return program.has_reductions ? program.row_size : kBlock;
}

void Run(const Program& program, const void* const* operands, void* result,
         int64_t begin, int64_t end) {
  alignas(64) char registers[kRegisterBytes];
  int64_t width = program.has_f64 ? sizeof(double) : sizeof(float);
  // Rounded up, so that registers are aligned.
  int64_t whole = (program.row_size * width + 63) / 64 * 64;
  bool is_whole = program.has_reductions &&
                  program.whole_registers <= kMaxRegisters &&
                  whole <= kRegisterBytes / program.whole_registers;
  char* homes[kMaxRegisters];
  char* places[kMaxRegisters];
  int count = is_whole ? program.whole_registers : program.registers;
  for (int k = 0; k < count; ++k) {
    homes[k] = registers + k * (is_whole ? whole : kBlock * width);
  }
  Row row{program, operands, result, 0, homes, places};
  if (!program.has_reductions) {
    RunPhases(row, begin * kBlock, std::min(end * kBlock, program.row_size));
    return;
  }
  for (row.number = begin; row.number < end; ++row.number) {
    is_whole ? RunWhole(row) : RunPhases(row, 0, program.row_size);
  }
}

}  // namespace coop_jax
