// How a program runs on the CPU: the order of its steps, and their registers.

#ifndef COOP_JAX_XLA_FFI_SCHEDULE_H_
#define COOP_JAX_XLA_FFI_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "program.h"

namespace coop_jax {

inline constexpr int kMaxRegisters = 64;
// Of one register in a walk by blocks, and of all registers together.
inline constexpr int64_t kBlockBytes = 4096;
inline constexpr int64_t kRegisterBytes = kMaxRegisters * kBlockBytes;
// A multiple of what is done at once of each of two rows, in floats, on any machine.
inline constexpr int64_t kPairWidth = 64;

// What links do to float32s; those that take an operand last.
enum class LinkOp {
  kNeg, kAbs, kExp, kExpm1, kTanh, kLogistic, kErf, kErfc, kRoundBF16,
  kAdd, kSub, kSubFrom, kMul, kDiv, kDivInto, kMax, kMin,
};

// An instruction as part of a chain.
struct Link {
  LinkOp op;
  int operand = 0;         // a register
  bool is_scalar = false;  // only the operand's first element counts
};

// An instruction with the registers it works on, or a chain of several, each of
// which alone reads the one before it: `links` are applied to `a` one after the
// other, without a register in between.
struct Step {
  int instruction = 0;  // the last of them
  int target = 0, a = 0, b = 0, c = 0;
  bool spread = false;  // uniform, and read by what is not
  // Much is computed between one block that is read and the next, so that the machine
  // does not fetch it ahead by itself.
  bool fetches_ahead = false;
  std::vector<Link> links;
};

// One walk over a row. Uniform steps run once, before it.
struct Walk {
  std::vector<Step> uniform, varying;
};

struct Register {
  int64_t offset = 0;       // of its bytes on the stack
  bool is_per_row = false;  // holds a row, in a walk by blocks
};

struct Schedule {
  Program program;             // cut into rows
  std::vector<Step> repeated;  // run once, on a whole row
  // Either this, once for each row, block by block:
  std::vector<Walk> walks;
  // in which two rows may be done at once;
  bool pairs_rows = false;
  // or, if all values of a row fit into the registers at once:
  bool is_whole = false;
  std::vector<Step> whole;

  std::vector<Register> registers;
  int result_register = 0;
  int64_t block = 0;  // elements
};

// Whether elements lie in memory as they do in a register.
bool IsAsInRegister(Storage storage);

// Cuts the space of a program without reductions into rows, if it divides well.
void CutIntoRows(Program* program);

// Returns what is wrong, or "".
std::string MakeSchedule(Program program, Schedule* schedule);

}  // namespace coop_jax

#endif  // COOP_JAX_XLA_FFI_SCHEDULE_H_
