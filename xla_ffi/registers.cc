// Splits a decoded program into walks over a row, and gives its values registers.
//
// A reduction's result is known only after a walk, so what depends on it runs on
// a later one; what else that needs is computed again. Values that are the same
// all over a row keep their register through all walks; the others share the
// rest, by last use. For short rows there is a second order, in which nothing is
// computed again and all values share the registers.

#include <algorithm>
#include <string>
#include <vector>

#include "program.h"

namespace coop_jax {
namespace {

// Orders the steps of each phase and gives them registers.
class Allocator {
 public:
  explicit Allocator(Program* program) : program_(*program) {}

  std::string Allocate() {
    const auto& instructions = program_.instructions;
    int last = static_cast<int>(instructions.size()) - 1;
    register_of_.assign(instructions.size(), -1);
    needed_.assign(instructions.size(), false);
    Need(last);
    Whole();
    program_.phases.resize(instructions[last].reductions + 1);
    for (int k = 0; k <= last; ++k) {
      if (!needed_[k] || !instructions[k].uniform) continue;
      register_of_[k] = persistent_++;
      if (!IsReduction(instructions[k].opcode)) {
        program_.phases[instructions[k].reductions].uniform.push_back({k});
      }
    }
    program_.registers = persistent_;
    for (size_t p = 0; p < program_.phases.size(); ++p) Varying(p);
    for (Phase& phase : program_.phases) {
      for (Step& step : phase.uniform) Fill(&step);
    }
    program_.result_register = register_of_[last];
    if (program_.registers > kMaxRegisters) {
      return "needs " + std::to_string(program_.registers) +
             " registers; there are " + std::to_string(kMaxRegisters);
    }
    return "";
  }

 private:
  // One walk over everything.
  void Whole() {
    const auto& instructions = program_.instructions;
    int last = static_cast<int>(instructions.size()) - 1;
    std::vector<int> last_read(instructions.size(), -1);
    for (int k = 0; k <= last; ++k) {
      int64_t reads[3];
      int count = needed_[k] ? Reads(instructions[k], reads) : 0;
      for (int i = 0; i < count; ++i) last_read[reads[i]] = k;
    }
    int used = 0;
    std::vector<int> free;
    for (int k = 0; k <= last; ++k) {
      if (!needed_[k]) continue;
      if (free.empty()) free.push_back(used++);
      register_of_[k] = free.back();
      free.pop_back();
      Step step{k};
      Fill(&step);
      program_.whole.push_back(step);
      Release(k, last_read, false, &free);
    }
    program_.whole_registers = used;
    program_.whole_result_register = register_of_[last];
  }

  // Frees the registers of what an instruction is the last to read.
  void Release(int k, const std::vector<int>& last_read, bool keeps_uniform,
               std::vector<int>* free) const {
    int64_t reads[3];
    int count = Reads(program_.instructions[k], reads);
    std::sort(reads, reads + count);
    for (int i = 0; i < count; ++i) {
      bool is_repeated = i > 0 && reads[i] == reads[i - 1];
      bool is_kept = keeps_uniform && program_.instructions[reads[i]].uniform;
      if (!is_repeated && !is_kept && last_read[reads[i]] == k) {
        free->push_back(register_of_[reads[i]]);
      }
    }
  }

  // Whether something reads all of a uniform value's register.
  bool IsSpread(int k) const {
    int last = static_cast<int>(program_.instructions.size()) - 1;
    if (k == last) return true;
    for (int reader = k + 1; reader <= last; ++reader) {
      const Instruction& made = program_.instructions[reader];
      if (!needed_[reader] || (made.uniform && !IsReduction(made.opcode))) continue;
      int64_t reads[3];
      int count = Reads(made, reads);
      for (int i = 0; i < count; ++i) {
        if (reads[i] == k) return true;
      }
    }
    return false;
  }

  void Need(int k) {
    // Reads point backwards, so one sweep finds all.
    needed_[k] = true;
    for (; k >= 0; --k) {
      if (!needed_[k]) continue;
      int64_t reads[3];
      int count = Reads(program_.instructions[k], reads);
      for (int i = 0; i < count; ++i) needed_[reads[i]] = true;
    }
  }

  void Varying(size_t p) {
    const auto& instructions = program_.instructions;
    int last = static_cast<int>(instructions.size()) - 1;
    bool is_final = p + 1 == program_.phases.size();
    std::vector<bool> wanted(instructions.size(), false);
    std::vector<int> last_read(instructions.size(), -1);
    for (int k = last; k >= 0; --k) {
      const Instruction& made = instructions[k];
      bool is_reduced = needed_[k] && IsReduction(made.opcode) &&
                        made.reductions == static_cast<int>(p) + 1;
      bool is_result = is_final && k == last && !made.uniform;
      if (!is_reduced && !is_result && !wanted[k]) continue;
      wanted[k] = true;
      int64_t reads[3];
      int count = Reads(made, reads);
      for (int i = 0; i < count; ++i) {
        if (instructions[reads[i]].uniform) continue;
        wanted[reads[i]] = true;
        last_read[reads[i]] = std::max(last_read[reads[i]], k);
      }
    }
    std::vector<int> free;
    int used = persistent_;
    for (int k = 0; k <= last; ++k) {
      if (!wanted[k]) continue;
      Step step{k};
      // The target is no register that is read, so that widths may differ.
      if (!IsReduction(instructions[k].opcode)) {
        if (free.empty()) free.push_back(used++);
        register_of_[k] = free.back();
        free.pop_back();
      }
      Fill(&step);
      program_.phases[p].varying.push_back(step);
      Release(k, last_read, true, &free);
    }
    program_.registers = std::max(program_.registers, used);
  }

  void Fill(Step* step) {
    int64_t reads[3] = {0, 0, 0};
    int count = Reads(program_.instructions[step->instruction], reads);
    step->target = register_of_[step->instruction];
    step->spread = program_.instructions[step->instruction].uniform &&
                   IsSpread(step->instruction);
    if (count > 0) step->a = register_of_[reads[0]];
    if (count > 1) step->b = register_of_[reads[1]];
    if (count > 2) step->c = register_of_[reads[2]];
  }

  Program& program_;
  std::vector<int> register_of_;
  std::vector<bool> needed_;
  int persistent_ = 0;
};

}  // namespace

std::string AllocateRegisters(Program* program) {
  return Allocator(program).Allocate();
}

}  // namespace coop_jax
