// What follows from a program's dimensions and instructions: how maps walk over a
// row, which values vary where, and the walks over a row that reductions take.
//
// A reduction's result is known only after a walk, so what depends on it runs on a
// later one; what else that needs is computed again.

#include <algorithm>
#include <vector>

#include "program.h"

namespace coop_jax {
namespace {

class Deriver {
 public:
  explicit Deriver(Program* program)
      : program_(*program),
        outer_(static_cast<int>(program->dimensions.size()) - program->row_rank) {}

  void Derive() {
    program_.rows = program_.row_size = 1;
    for (size_t d = 0; d < program_.dimensions.size(); ++d) {
      bool is_outer = static_cast<int>(d) < outer_;
      (is_outer ? program_.rows : program_.row_size) *= program_.dimensions[d];
    }
    for (Map& map : program_.maps) map.row = RowOf(map);
    for (Instruction& made : program_.instructions) Vary(&made);
    Need();
    program_.phases.assign(program_.instructions.back().reductions + 1, Phase());
    for (size_t k = 0; k < program_.instructions.size(); ++k) {
      const Instruction& made = program_.instructions[k];
      if (needed_[k] && made.uniform && !IsReduction(made.opcode)) {
        program_.phases[made.reductions].uniform.push_back(static_cast<int>(k));
      }
    }
    for (size_t p = 0; p < program_.phases.size(); ++p) Walk(p);
  }

 private:
  std::vector<Map::Dimension> RowOf(const Map& map) const {
    std::vector<Map::Dimension> row;
    for (size_t d = outer_; d < program_.dimensions.size(); ++d) {
      int64_t size = program_.dimensions[d], stride = map.strides[d];
      if (size == 1) continue;
      if (!row.empty() && row.back().stride == size * stride) {
        row.back().size *= size;
        row.back().stride = stride;
      } else {
        row.push_back({size, stride});
      }
    }
    if (row.empty()) row.push_back({1, 0});
    return row;
  }

  void Vary(Instruction* made) const {
    made->uniform = made->repeats = true;
    switch (made->opcode) {
      case Opcode::kLoad:
        return VaryAs(program_.operands[made->a].map, made);
      case Opcode::kIota:
        return VaryAs(made->a, made);
      case Opcode::kRandomBits:
        return VaryAs(made->b, made);
      default:
        break;
    }
    int64_t reads[3];
    int count = Reads(*made, reads);
    for (int i = 0; i < count; ++i) {
      made->uniform &= program_.instructions[reads[i]].uniform;
      made->repeats &= program_.instructions[reads[i]].repeats;
    }
    if (IsReduction(made->opcode)) {
      made->uniform = true;
      made->repeats = false;  // it takes a walk over each row
    }
  }

  void VaryAs(int64_t m, Instruction* made) const {
    const Map& map = program_.maps[m];
    made->uniform =
        map.row.size() == 1 && (map.row[0].stride == 0 || map.row[0].size <= 1);
    for (int d = 0; d < outer_; ++d) {
      made->repeats &= map.strides[d] == 0 || program_.dimensions[d] == 1;
    }
  }

  void Need() {
    // Reads point backwards, so one sweep finds all.
    needed_.assign(program_.instructions.size(), false);
    needed_.back() = true;
    for (size_t k = needed_.size(); k-- > 0;) {
      if (!needed_[k]) continue;
      int64_t reads[3];
      int count = Reads(program_.instructions[k], reads);
      for (int i = 0; i < count; ++i) needed_[reads[i]] = true;
    }
  }

  void Walk(size_t p) {
    const auto& instructions = program_.instructions;
    int last = static_cast<int>(instructions.size()) - 1;
    bool is_final = p + 1 == program_.phases.size();
    std::vector<bool> wanted(instructions.size(), false);
    std::vector<int>& varying = program_.phases[p].varying;
    for (int k = last; k >= 0; --k) {
      const Instruction& made = instructions[k];
      bool is_reduced = needed_[k] && IsReduction(made.opcode) &&
                        made.reductions == static_cast<int>(p) + 1;
      bool is_result = is_final && k == last && !made.uniform;
      if (!is_reduced && !is_result && !wanted[k]) continue;
      varying.push_back(k);
      int64_t reads[3];
      int count = Reads(made, reads);
      for (int i = 0; i < count; ++i) {
        if (!instructions[reads[i]].uniform) wanted[reads[i]] = true;
      }
    }
    std::reverse(varying.begin(), varying.end());
  }

  Program& program_;
  int outer_;
  std::vector<bool> needed_;
};

}  // namespace

void Derive(Program* program) { Deriver(program).Derive(); }

}  // namespace coop_jax
