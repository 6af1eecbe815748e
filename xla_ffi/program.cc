#include "program.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace coop_jax {
namespace {

constexpr int64_t kLargest = int64_t{1} << 46;  // elements, and strides

bool IsBinary(Opcode opcode) {
  return opcode >= Opcode::kAdd && opcode <= Opcode::kGe;
}
bool IsComparison(Opcode opcode) {
  return opcode >= Opcode::kEq && opcode <= Opcode::kGe;
}
bool IsFloating(Type type) { return type == Type::kF32 || type == Type::kF64; }
bool IsInteger(Type type) { return type == Type::kS32 || type == Type::kU32; }

// Whether an instruction exists for this type (of its result; of its operands
// for comparisons).
bool IsDefined(Opcode opcode, Type type) {
  switch (opcode) {
    case Opcode::kLoad:
    case Opcode::kLiteral:
    case Opcode::kConvert:
    case Opcode::kBitcast:
    case Opcode::kSelect:
    case Opcode::kEq:
    case Opcode::kNe:
      return true;
    case Opcode::kIota:
      return type != Type::kPred;
    case Opcode::kRandomBits:
      return type == Type::kU32;
    case Opcode::kRoundBF16:
    case Opcode::kRoundF16:
      return type == Type::kF32;
    case Opcode::kNot:
    case Opcode::kAnd:
    case Opcode::kOr:
    case Opcode::kXor:
      return !IsFloating(type);
    case Opcode::kShiftLeft:
    case Opcode::kShiftRightLogical:
    case Opcode::kShiftRightArithmetic:
      return IsInteger(type);
    case Opcode::kNeg:
    case Opcode::kAbs:
    case Opcode::kSign:
    case Opcode::kAdd:
    case Opcode::kSub:
    case Opcode::kMul:
    case Opcode::kLt:
    case Opcode::kLe:
    case Opcode::kGt:
    case Opcode::kGe:
      return type != Type::kPred;
    case Opcode::kMax:
    case Opcode::kMin:
      return true;
    default:
      return IsFloating(type);
  }
}

// Reads words in order; remembers whether they ran out.
class Reader {
 public:
  Reader(const int64_t* words, size_t size) : words_(words), left_(size) {}

  int64_t Next() {
    if (left_ == 0) {
      truncated_ = true;
      return 0;
    }
    --left_;
    return *words_++;
  }
  // A number in [0, limit).
  bool Next(int64_t limit, int* value) {
    int64_t word = Next();
    if (word < 0 || word >= limit) return false;
    *value = static_cast<int>(word);
    return true;
  }
  bool truncated() const { return truncated_; }
  size_t left() const { return left_; }

 private:
  const int64_t* words_;
  size_t left_;
  bool truncated_ = false;
};

// The product of sizes; -1 if it is too large or one is negative.
int64_t Product(const std::vector<int64_t>& sizes) {
  int64_t product = 1;
  bool is_empty = false;
  for (int64_t size : sizes) {
    if (size < 0 || size > kLargest) return -1;
    is_empty |= size == 0;
    if (__builtin_mul_overflow(product, std::max<int64_t>(size, 1), &product) ||
        product > kLargest) {
      return -1;
    }
  }
  return is_empty ? 0 : product;
}

class Decoder {
 public:
  Decoder(const int64_t* words, size_t size, Program* program)
      : reader_(words, size), program_(*program) {}

  std::string Decode() {
    for (auto part : {&Decoder::Header, &Decoder::Maps, &Decoder::Arrays,
                      &Decoder::Instructions, &Decoder::ResultMap}) {
      std::string error = (this->*part)();
      if (reader_.truncated()) return "the program is truncated";
      if (!error.empty()) return error;
    }
    if (reader_.left() != 0) {
      return std::to_string(reader_.left()) + " words follow the program";
    }
    return "";
  }

 private:
  std::string Header() {
    int64_t version = reader_.Next();
    if (version != kVersion) {
      return "program version " + std::to_string(version) + ", not " +
             std::to_string(kVersion);
    }
    if (!reader_.Next(kMaxRank + 1, &rank_)) return "a rank above 8";
    if (!reader_.Next(rank_ + 1, &program_.row_rank)) return "a row too wide";
    if (!reader_.Next(2 * kMaxInstructions, &maps_)) return "too many maps";
    if (!reader_.Next(kMaxOperands + 1, &operands_)) return "too many operands";
    if (!reader_.Next(kMaxInstructions + 1, &instructions_)) {
      return "too many instructions";
    }
    if (instructions_ == 0) return "no instructions";
    program_.dimensions.clear();
    for (int d = 0; d < rank_; ++d) program_.dimensions.push_back(reader_.Next());
    size_ = Product(program_.dimensions);
    return size_ < 0 ? "dimensions out of range" : "";
  }

  std::string Maps() {
    for (int m = 0; m < maps_ && !reader_.truncated(); ++m) {
      Map map;
      for (int d = 0; d < rank_; ++d) {
        int64_t stride = reader_.Next(), reach = 0;
        if (stride < 0 || stride > kLargest) return "a stride out of range";
        int64_t steps = std::max<int64_t>(program_.dimensions[d] - 1, 0);
        if (__builtin_mul_overflow(stride, steps, &reach) ||
            __builtin_add_overflow(map.last, reach, &map.last)) {
          return "a stride out of range";
        }
        map.strides.push_back(stride);
      }
      program_.maps.push_back(std::move(map));
    }
    return "";
  }

  std::string Arrays() {
    for (int k = 0; k < operands_; ++k) {
      program_.operands.emplace_back();
      std::string error = ReadArray(&program_.operands.back());
      if (!error.empty()) return "operand " + std::to_string(k) + ": " + error;
    }
    std::string error = ReadArray(&program_.result);
    return error.empty() ? "" : "result: " + error;
  }

  std::string ReadArray(Array* array) {
    int storage = 0, rank = 0;
    if (!reader_.Next(kStorages, &storage)) return "an unknown element type";
    array->storage = static_cast<Storage>(storage);
    if (!reader_.Next(maps_, &array->map)) return "a map that is not there";
    if (!reader_.Next(256, &rank)) return "a rank out of range";
    for (int d = 0; d < rank; ++d) array->dimensions.push_back(reader_.Next());
    array->size = Product(array->dimensions);
    if (array->size < 0) return "dimensions out of range";
    if (size_ != 0 && program_.maps[array->map].last >= array->size) {
      return "addressed beyond its " + std::to_string(array->size) + " elements";
    }
    return "";
  }

  std::string Instructions() {
    for (int k = 0; k < instructions_; ++k) {
      int opcode = 0, type = 0;
      if (!reader_.Next(kOpcodes, &opcode)) return At(k) + "unknown opcode";
      if (!reader_.Next(kTypes, &type)) return At(k) + "unknown type";
      Instruction made{static_cast<Opcode>(opcode), static_cast<Type>(type),
                       reader_.Next(), reader_.Next(), reader_.Next()};
      if (reader_.truncated()) return "";
      std::string error = Check(&made);
      if (!error.empty()) return At(k) + error;
      program_.has_reductions |= IsReduction(made.opcode);
      program_.has_f64 |= made.result == Type::kF64;
      program_.instructions.push_back(made);
    }
    if (program_.instructions.back().result != TypeOf(program_.result.storage)) {
      return "the last instruction is not of the result's type";
    }
    if (!program_.has_reductions && program_.row_rank != rank_) {
      return "without reductions the row is the whole space";
    }
    return "";
  }

  static std::string At(int k) {
    return "instruction " + std::to_string(k) + ": ";
  }

  std::string Check(Instruction* made) {
    if (!IsDefined(made->opcode, made->type)) return "no such type for it";
    made->result = IsComparison(made->opcode) || made->opcode == Opcode::kIsFinite
                       ? Type::kPred
                       : made->type;
    int64_t reads[3];
    int count = Reads(*made, reads);
    for (int i = 0; i < count; ++i) {
      if (reads[i] < 0 ||
          reads[i] >= static_cast<int64_t>(program_.instructions.size())) {
        return "reads an instruction that is not before it";
      }
      const Instruction& read = program_.instructions[reads[i]];
      made->reductions = std::max(made->reductions, read.reductions);
    }
    if (IsReduction(made->opcode)) ++made->reductions;
    return CheckLeaf(made) ? CheckTypes(*made, reads, count)
                           : "an operand, map or exponent out of range";
  }

  // Checks what an instruction names other than instructions.
  bool CheckLeaf(Instruction* made) {
    switch (made->opcode) {
      case Opcode::kLoad:
        if (made->a < 0 || made->a >= operands_) return false;
        return TypeOf(program_.operands[made->a].storage) == made->type;
      case Opcode::kIota:
        return made->a >= 0 && made->a < maps_;
      case Opcode::kRandomBits: {
        if (made->a < 0 || made->a >= operands_) return false;
        if (made->b < 0 || made->b >= maps_) return false;
        Array& key = program_.operands[made->a];
        key.is_key = true;
        return key.storage == Storage::kU32 && key.size == 2;
      }
      case Opcode::kIntegerPow:
        return made->b >= -1024 && made->b <= 1024;
      default:
        return true;
    }
  }

  std::string CheckTypes(const Instruction& made, const int64_t reads[3],
                         int count) {
    auto type = [&](int i) { return program_.instructions[reads[i]].result; };
    switch (made.opcode) {
      case Opcode::kConvert:
        return "";
      case Opcode::kBitcast: {
        bool is_wide = type(0) == Type::kF64 || made.type == Type::kF64;
        bool is_pred = type(0) == Type::kPred || made.type == Type::kPred;
        if (type(0) != made.type && (is_wide || is_pred)) return "other width";
        return "";
      }
      case Opcode::kSelect:
        if (type(0) != Type::kPred) return "selects by what is no predicate";
        return type(1) == made.type && type(2) == made.type ? "" : "mixed types";
      default:
        for (int i = 0; i < count; ++i) {
          if (type(i) != made.type) return "mixed types";
        }
        return "";
    }
  }

  // Every element of the result must be written exactly once.
  std::string ResultMap() {
    const Map& map = program_.maps[program_.result.map];
    std::vector<Map::Dimension> order;
    for (int d = 0; d < rank_; ++d) {
      if (program_.dimensions[d] != 1) {
        order.push_back({program_.dimensions[d], map.strides[d]});
      }
    }
    std::sort(order.begin(), order.end(),
              [](auto& x, auto& y) { return x.stride < y.stride; });
    int64_t dense = 1;
    for (const Map::Dimension& dimension : order) {
      if (size_ == 0) break;
      if (dimension.stride != dense) return "the result is not dense";
      dense *= dimension.size;
    }
    if (size_ != program_.result.size) {
      return "the result is not of the program's size";
    }
    return "";
  }

  Reader reader_;
  Program& program_;
  int rank_ = 0, maps_ = 0, operands_ = 0, instructions_ = 0;
  int64_t size_ = 1;
};

}  // namespace

int Width(Storage storage) {
  switch (storage) {
    case Storage::kF64:
      return 8;
    case Storage::kBF16:
    case Storage::kF16:
      return 2;
    case Storage::kPred:
      return 1;
    default:
      return 4;
  }
}

Type TypeOf(Storage storage) {
  switch (storage) {
    case Storage::kF64:
      return Type::kF64;
    case Storage::kS32:
      return Type::kS32;
    case Storage::kU32:
      return Type::kU32;
    case Storage::kPred:
      return Type::kPred;
    default:
      return Type::kF32;
  }
}

const char* Name(Storage storage) {
  constexpr const char* kNames[] = {"f32", "f64", "bf16", "f16",
                                    "s32", "u32", "pred"};
  return kNames[static_cast<int>(storage)];
}

int Reads(const Instruction& instruction, int64_t reads[3]) {
  reads[0] = instruction.a;
  reads[1] = instruction.b;
  reads[2] = instruction.c;
  if (instruction.opcode <= Opcode::kRandomBits) return 0;
  if (instruction.opcode == Opcode::kSelect) return 3;
  return IsBinary(instruction.opcode) ? 2 : 1;
}

std::string Decode(const int64_t* words, size_t size, Program* program) {
  *program = Program();
  std::string error = Decoder(words, size, program).Decode();
  if (error.empty()) Derive(program);
  return error;
}

}  // namespace coop_jax
