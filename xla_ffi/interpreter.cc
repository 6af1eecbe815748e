#include "interpreter.h"

#include <algorithm>
#include <limits>

#include "kernels.h"

namespace coop_jax {
namespace {

bool HasRows(const Program& program) {
  return program.has_reductions || program.rows > 1;
}

double Identity(Opcode opcode) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (opcode == Opcode::kReduceSum) return 0;
  return opcode == Opcode::kReduceMax ? -kInfinity : kInfinity;
}

class Interpreter {
 public:
  Interpreter(const Schedule& schedule, const void* const* operands, void* result)
      : schedule_(schedule),
        program_(schedule.program),
        last_(static_cast<int>(program_.instructions.size()) - 1),
        row_{program_, operands, result, 0, homes_, places_} {
    const size_t count = schedule.registers.size();
    for (size_t k = 0; k < count; ++k) {
      homes_[k] = places_[k] = bytes_ + schedule.registers[k].offset;
      if (schedule.registers[k].is_per_row) per_row_[per_row_count_++] = k;
    }
    for (const Step& step : schedule.repeated) {
      bool is_row =
          schedule.is_whole || !program_.instructions[step.instruction].uniform;
      int64_t n = program_.row_size;
      kernels_.execute(row_, step, 0, is_row ? n : std::min(n, schedule.block), false);
    }
    std::copy(places_, places_ + count, starts_);
  }

  void RunPieces(int64_t begin, int64_t end) {
    if (!HasRows(program_)) {
      return Walks(begin * schedule_.block,
                   std::min(end * schedule_.block, program_.row_size));
    }
    // Two rows at once lie half of them apart: each half is read from row to row, as
    // the machine fetches memory ahead. Of two neighbours each would leave out every
    // other page.
    const int64_t pairs = schedule_.pairs_rows ? (end - begin) / 2 : 0;
    row_.distance = pairs * program_.row_size;
    RunRows(begin, begin + pairs);
    row_.distance = 0;
    RunRows(begin + 2 * pairs, end);
  }

 private:
  void RunRows(int64_t begin, int64_t end) {
    for (row_.number = begin; row_.number < end; ++row_.number) {
      schedule_.is_whole ? Whole() : Walks(0, program_.row_size);
    }
  }

  bool Reduces(const Step& step) const {
    return IsReduction(program_.instructions[step.instruction].opcode);
  }

  // A reduction's value before its first element.
  double Start(const Step& step) const {
    return Identity(program_.instructions[step.instruction].opcode);
  }

  void Walks(int64_t start, int64_t end) {
    for (const Walk& walk : schedule_.walks) {
      RunWalk(walk, start, end, &walk == &schedule_.walks.back());
    }
  }

  // Runs a walk over elements [start, end) of the row.
  void RunWalk(const Walk& walk, int64_t start, int64_t end, bool is_final) {
    double totals[kMaxRegisters];
    for (const Step& step : walk.varying) {
      if (Reduces(step)) totals[step.target] = Start(step);
    }
    int64_t widest = std::min(schedule_.block, end - start);
    for (const Step& step : walk.uniform) {
      kernels_.execute(row_, step, 0, widest, false);
    }
    for (int64_t at = start; at < end; at += schedule_.block) {
      int64_t n = std::min(schedule_.block, end - at);
      MoveTo(at);
      bool is_stored = false;
      for (const Step& step : walk.varying) {
        if (Reduces(step)) {
          totals[step.target] = kernels_.fold(row_, step, n, totals[step.target]);
        } else {
          bool is_last = is_final && step.instruction == last_;
          is_stored = kernels_.execute(row_, step, at, n, is_last);
        }
      }
      if (is_final && !is_stored) {
        kernels_.store(row_, at, n, schedule_.result_register);
      }
    }
    for (const Step& step : walk.varying) {
      if (Reduces(step)) kernels_.finish(row_, step, widest, totals[step.target]);
    }
  }

  // What was computed once for all rows is read from element `at` on.
  void MoveTo(int64_t at) {
    const int64_t width = program_.has_f64 ? sizeof(double) : sizeof(float);
    for (size_t i = 0; i < per_row_count_; ++i) {
      const size_t k = per_row_[i];
      places_[k] = starts_[k] + at * width;
    }
  }

  // Runs a whole row at once.
  void Whole() {
    int64_t n = program_.row_size;
    bool is_stored = false;
    for (const Step& step : schedule_.whole) {
      if (Reduces(step)) {
        double total = kernels_.fold(row_, step, n, Start(step));
        kernels_.finish(row_, step, n, total);
      } else {
        is_stored = kernels_.execute(row_, step, 0, n, step.instruction == last_);
      }
    }
    if (!is_stored) kernels_.store(row_, 0, n, schedule_.result_register);
  }

  const Kernels& kernels_ = KernelsOfMachine();
  const Schedule& schedule_;
  const Program& program_;
  const int last_;
  alignas(64) char bytes_[kRegisterBytes];
  // Of each register: where it is written, where its value is, and where that is
  // for all rows.
  char* homes_[kMaxRegisters];
  char* places_[kMaxRegisters];
  char* starts_[kMaxRegisters];
  // The registers that hold a row.
  size_t per_row_[kMaxRegisters], per_row_count_ = 0;
  Row row_;
};

}  // namespace

int64_t Pieces(const Schedule& schedule) {
  const Program& program = schedule.program;
  if (program.rows == 0 || program.row_size == 0) return 0;
  if (HasRows(program)) return program.rows;
  return (program.row_size + schedule.block - 1) / schedule.block;
}

int64_t PieceSize(const Schedule& schedule) {
  const Program& program = schedule.program;
  return HasRows(program) ? program.row_size : schedule.block;
}

void Run(const Schedule& schedule, const void* const* operands, void* result,
         int64_t begin, int64_t end) {
  Interpreter(schedule, operands, result).RunPieces(begin, end);
}

}  // namespace coop_jax
