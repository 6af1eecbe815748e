// Orders a program's instructions into steps and gives their values registers.
//
// Values that are the same in every row are computed once, those that are the same
// all over a row keep their register through all walks; the others share the rest,
// by last use. For short rows there is one walk, in which nothing is computed again.

#include "schedule.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace coop_jax {
namespace {

// The link that an instruction on float32s is; `reversed`: of the second operand,
// to which the first is applied.
std::optional<LinkOp> LinkOpOf(Opcode opcode, bool reversed) {
  switch (opcode) {
    case Opcode::kNeg: return LinkOp::kNeg;
    case Opcode::kAbs: return LinkOp::kAbs;
    case Opcode::kExp: return LinkOp::kExp;
    case Opcode::kExpm1: return LinkOp::kExpm1;
    case Opcode::kTanh: return LinkOp::kTanh;
    case Opcode::kLogistic: return LinkOp::kLogistic;
    case Opcode::kErf: return LinkOp::kErf;
    case Opcode::kErfc: return LinkOp::kErfc;
    case Opcode::kRoundBF16: return LinkOp::kRoundBF16;
    case Opcode::kAdd: return LinkOp::kAdd;
    case Opcode::kSub: return reversed ? LinkOp::kSubFrom : LinkOp::kSub;
    case Opcode::kMul: return LinkOp::kMul;
    case Opcode::kDiv: return reversed ? LinkOp::kDivInto : LinkOp::kDiv;
    case Opcode::kMax: return LinkOp::kMax;
    case Opcode::kMin: return LinkOp::kMin;
    default: return std::nullopt;
  }
}

// Whether an instruction takes as long as reading its operand from memory does.
bool IsLong(Opcode opcode) {
  switch (opcode) {
    case Opcode::kRandomBits:
    case Opcode::kExp:
    case Opcode::kExp2:
    case Opcode::kExpm1:
    case Opcode::kLog:
    case Opcode::kLog1p:
    case Opcode::kTanh:
    case Opcode::kLogistic:
    case Opcode::kErf:
    case Opcode::kErfc:
    case Opcode::kPow: return true;
    default: return IsReduction(opcode);
  }
}

class Scheduler {
 public:
  explicit Scheduler(Schedule* schedule)
      : schedule_(*schedule),
        program_(schedule->program),
        instructions_(schedule->program.instructions),
        last_(static_cast<int>(instructions_.size()) - 1),
        width_(program_.has_f64 ? sizeof(double) : sizeof(float)) {
    needed_.assign(instructions_.size(), false);
    for (const Phase& phase : program_.phases) {
      for (int k : phase.uniform) needed_[k] = true;
      for (int k : phase.varying) needed_[k] = true;
    }
    for (int k = 0; k <= last_; ++k) {
      const Instruction& made = instructions_[k];
      bool is_in_rows = needed_[k] && !made.repeats;
      bool varies = !made.uniform || IsReduction(made.opcode);
      is_long_ |= is_in_rows && varies && IsLong(made.opcode);
    }
  }

  std::string Make() {
    schedule_.block = kBlockBytes / width_;
    for (bool is_whole : {true, false}) {
      if (is_whole && !program_.has_reductions) continue;
      for (bool keeps_rows : {true, false}) {
        Begin(is_whole, keeps_rows);
        is_whole ? Whole() : Walks();
        schedule_.result_register = register_of_[last_];
        schedule_.pairs_rows = !is_whole && PairsRows();
        if (Fits()) return "";
      }
    }
    return "needs " + std::to_string(schedule_.registers.size()) +
           " registers; there are " + std::to_string(kMaxRegisters);
  }

 private:
  // Starts over, with the steps that run once.
  void Begin(bool is_whole, bool keeps_rows) {
    schedule_.is_whole = is_whole;
    schedule_.registers.clear();
    schedule_.repeated.clear();
    schedule_.walks.clear();
    schedule_.whole.clear();
    shared_.clear();
    register_of_.assign(instructions_.size(), -1);
    runs_once_.assign(instructions_.size(), false);
    for (int k = 0; k <= last_; ++k) {
      const Instruction& made = instructions_[k];
      runs_once_[k] = needed_[k] && made.repeats && program_.rows > 1 &&
                      (made.uniform || keeps_rows);
    }
    for (int k = 0; k <= last_; ++k) {
      if (!runs_once_[k]) continue;
      Keep(k);
      schedule_.registers.back().is_per_row = !instructions_[k].uniform;
      schedule_.repeated.push_back(StepOf({k}));
    }
  }

  // Gives a value a register of its own.
  void Keep(int k) {
    register_of_[k] = static_cast<int>(schedule_.registers.size());
    schedule_.registers.emplace_back();
  }

  void Whole() {
    std::vector<int> list;
    for (int k = 0; k <= last_; ++k) {
      if (needed_[k] && !runs_once_[k]) list.push_back(k);
    }
    schedule_.whole = Steps(list);
  }

  void Walks() {
    for (int k = 0; k <= last_; ++k) {
      if (needed_[k] && instructions_[k].uniform && !runs_once_[k]) Keep(k);
    }
    for (const Phase& phase : program_.phases) {
      Walk walk;
      std::vector<int> list;
      for (int k : phase.uniform) {
        if (!runs_once_[k]) walk.uniform.push_back(StepOf({k}));
      }
      for (int k : phase.varying) {
        if (!runs_once_[k]) list.push_back(k);
      }
      walk.varying = Steps(list);
      schedule_.walks.push_back(std::move(walk));
    }
  }

  // Lays the registers out; whether there is room.
  bool Fits() {
    int64_t row = (program_.row_size * width_ + 63) / 64 * 64, bytes = 0;
    for (int k = 0; k <= last_; ++k) {
      // What is read where it lies takes no bytes.
      if (runs_once_[k] && IsInPlace(k)) {
        schedule_.registers[register_of_[k]].offset = -1;
      }
    }
    for (Register& each : schedule_.registers) {
      bool is_row = schedule_.is_whole || each.is_per_row;
      bool is_empty = each.offset < 0;
      each.offset = bytes;
      if (!is_empty) bytes += is_row ? row : std::min(row, kBlockBytes);
    }
    return schedule_.registers.size() <= kMaxRegisters && bytes <= kRegisterBytes;
  }

  // Whether a row is one chain, from memory to memory, of what all rows share.
  bool PairsRows() const {
    bool is_even = program_.row_size % kPairWidth == 0;
    if (!is_even || program_.row_size > schedule_.block) return false;
    if (schedule_.walks.size() != 1) return false;
    const Walk& walk = schedule_.walks[0];
    if (!walk.uniform.empty()) return false;
    const auto& steps = walk.varying;
    if (steps.size() != 2 || steps[1].links.empty()) return false;
    const Instruction& load = instructions_[steps[0].instruction];
    bool begins = load.opcode == Opcode::kLoad && steps[1].a == steps[0].target;
    if (!begins) return false;
    for (const Link& link : steps[1].links) {
      bool has_operand = link.op >= LinkOp::kAdd;
      if (has_operand && !RunsOnce(link.operand)) return false;
    }
    return IsDense(program_.operands[load.a]) && IsDense(program_.result);
  }

  // Whether an array lies in memory as its rows follow each other.
  bool IsDense(const Array& array) const {
    const auto& strides = program_.maps[array.map].strides;
    int64_t size = 1;
    for (size_t d = strides.size(); d-- > 0; size *= program_.dimensions[d]) {
      if (program_.dimensions[d] > 1 && strides[d] != size) return false;
    }
    return IsAsInRegister(array.storage);
  }

  // Whether a register holds what is computed once for all rows.
  bool RunsOnce(int number) const {
    for (int k = 0; k <= last_; ++k) {
      if (register_of_[k] == number && runs_once_[k]) return true;
    }
    return false;
  }

  bool IsInPlace(int k) const {
    if (instructions_[k].opcode != Opcode::kLoad) return false;
    const Array& array = program_.operands[instructions_[k].a];
    const auto& row = program_.maps[array.map].row;
    return row.size() == 1 && row[0].stride == 1 && IsAsInRegister(array.storage);
  }

  // Whether an instruction is done as a link. Of its operands at least one varies.
  bool IsLink(int k) const {
    const Instruction& made = instructions_[k];
    return made.type == Type::kF32 && !made.uniform &&
           LinkOpOf(made.opcode, false).has_value();
  }

  // Steps that run a list of instructions, in which links follow each other.
  std::vector<Step> Steps(const std::vector<int>& list) {
    FindReads(list);
    std::vector<std::vector<int>> groups;
    for (int k : list) {
      if (!IsFused(k)) groups.push_back(ChainTo(k));
    }
    std::vector<int> last_use(instructions_.size(), -1);
    for (size_t g = 0; g < groups.size(); ++g) {
      for (int k : groups[g]) {
        ForReads(k, [&](int read) { last_use[read] = static_cast<int>(g); });
      }
    }
    std::vector<int> free = shared_;
    std::vector<Step> steps;
    for (size_t g = 0; g < groups.size(); ++g) {
      // The target is no register that is read, so that widths may differ.
      int result = groups[g].back();
      for (int k : groups[g]) {
        if (k != result) register_of_[k] = -1;
      }
      bool is_kept = register_of_[result] >= 0 && instructions_[result].uniform;
      if (!is_kept) register_of_[result] = Take(&free);
      steps.push_back(StepOf(groups[g]));
      for (int k : groups[g]) {
        ForReads(k, [&](int read) {
          if (last_use[read] != static_cast<int>(g)) return;
          last_use[read] = -1;
          int number = register_of_[read];
          bool is_shared = std::count(shared_.begin(), shared_.end(), number) > 0;
          if (is_shared) free.push_back(number);
        });
      }
    }
    return steps;
  }

  int Take(std::vector<int>* free) {
    if (free->empty()) {
      shared_.push_back(static_cast<int>(schedule_.registers.size()));
      free->push_back(shared_.back());
      schedule_.registers.emplace_back();
    }
    int taken = free->back();
    free->pop_back();
    return taken;
  }

  template <class F>
  void ForReads(int k, F f) const {
    int64_t reads[3];
    int count = Reads(instructions_[k], reads);
    for (int i = 0; i < count; ++i) f(static_cast<int>(reads[i]));
  }

  // Counts who reads what among a list.
  void FindReads(const std::vector<int>& list) {
    reads_.assign(instructions_.size(), 0);
    reader_.assign(instructions_.size(), -1);
    is_listed_.assign(instructions_.size(), false);
    for (int k : list) {
      is_listed_[k] = true;
      ForReads(k, [&](int read) {
        ++reads_[read];
        reader_[read] = k;
      });
    }
  }

  // The operand that an instruction continues the chain of, or -1.
  int ContinuedBy(int k) const {
    int found = -1;
    if (!IsLink(k)) return found;
    ForReads(k, [&](int read) {
      bool can_be = is_listed_[read] && IsLink(read) && reads_[read] == 1;
      if (can_be) found = std::max(found, read);
    });
    return found;
  }

  bool IsFused(int k) const {
    return k != last_ && reads_[k] == 1 && ContinuedBy(reader_[k]) == k;
  }

  std::vector<int> ChainTo(int k) const {
    std::vector<int> chain;
    for (; k >= 0; k = ContinuedBy(k)) chain.push_back(k);
    std::reverse(chain.begin(), chain.end());
    return chain;
  }

  Step StepOf(const std::vector<int>& chain) const {
    Step step;
    step.instruction = chain.back();
    step.target = register_of_[step.instruction];
    step.spread = instructions_[step.instruction].uniform && IsSpread(step.instruction);
    if (IsLink(chain[0])) {
      AddLinks(chain, &step);
      return step;
    }
    int64_t reads[3] = {0, 0, 0};
    int count = Reads(instructions_[step.instruction], reads);
    if (count > 0) step.a = register_of_[reads[0]];
    if (count > 1) step.b = register_of_[reads[1]];
    if (count > 2) step.c = register_of_[reads[2]];
    return step;
  }

  void AddLinks(const std::vector<int>& chain, Step* step) const {
    int before = -1;
    for (int k : chain) {
      int64_t reads[3];
      int count = Reads(instructions_[k], reads);
      int64_t taken = before;
      if (before < 0) {
        taken = instructions_[reads[0]].uniform ? reads[1] : reads[0];
        step->a = register_of_[taken];
      }
      Link link{*LinkOpOf(instructions_[k].opcode, reads[0] != taken)};
      if (count > 1) {
        int64_t other = reads[0] == taken ? reads[1] : reads[0];
        link.operand = register_of_[other];
        link.is_scalar = instructions_[other].uniform;
      }
      step->links.push_back(link);
      before = k;
    }
    step->fetches_ahead = is_long_;
  }

  // Whether something reads all of a uniform value's register.
  bool IsSpread(int k) const {
    bool is_spread = k == last_;
    for (int reader = k + 1; reader <= last_; ++reader) {
      const Instruction& made = instructions_[reader];
      bool reads_first = made.uniform && !IsReduction(made.opcode);
      if (!needed_[reader] || reads_first || IsLink(reader)) continue;
      ForReads(reader, [&](int read) { is_spread |= read == k; });
    }
    return is_spread;
  }

  Schedule& schedule_;
  const Program& program_;
  const std::vector<Instruction>& instructions_;
  const int last_;
  const int64_t width_;
  bool is_long_ = false;
  std::vector<bool> needed_, runs_once_;
  std::vector<int> register_of_;
  std::vector<int> shared_;  // registers that values take turns in
  // Among the list that is made into steps.
  std::vector<int> reads_, reader_;
  std::vector<bool> is_listed_;
};

}  // namespace

bool IsAsInRegister(Storage storage) {
  return storage == Storage::kF32 || storage == Storage::kF64 ||
         storage == Storage::kS32 || storage == Storage::kU32;
}

std::string MakeSchedule(Program program, Schedule* schedule) {
  schedule->program = std::move(program);
  CutIntoRows(&schedule->program);
  return Scheduler(schedule).Make();
}

}  // namespace coop_jax
