#include "cuda_source.h"

#include <algorithm>
#include <string>
#include <vector>

#include "cuda_prelude.h"
#include "text.h"

namespace coop_jax {
namespace {

constexpr int64_t kThreads = 256;
constexpr int64_t kMostThreads = 512;
constexpr int64_t kMostBlocks = 0x7fffffff;
constexpr int kPackBytes = 16;

// In memory, and in a register.
const char* StorageType(Storage storage) {
  constexpr const char* kTypes[] = {"float", "double", "u16", "u16",
                                    "int",   "u32",    "u8"};
  return kTypes[static_cast<int>(storage)];
}
const char* RegisterType(Type type) {
  constexpr const char* kTypes[] = {"float", "double", "int", "u32", "u32"};
  return kTypes[static_cast<int>(type)];
}
std::string Loaded(Storage storage, const std::string& x) {
  constexpr const char* kLoads[] = {"same", "same", "from_bf16", "from_f16",
                                    "same", "same", "from_pred"};
  return std::string(kLoads[static_cast<int>(storage)]) + "(" + x + ")";
}
std::string Stored(Storage storage, const std::string& x) {
  constexpr const char* kStores[] = {"same", "same", "to_bf16", "to_f16",
                                     "same", "same", "to_pred"};
  return std::string(kStores[static_cast<int>(storage)]) + "(" + x + ")";
}

// What an instruction computes from `x`, `y` and `z`; `$T` is its type. Integer
// arithmetic is unsigned, so that it wraps around.
const char* Template(Opcode opcode, Type type) {
  bool is_floating = type == Type::kF32 || type == Type::kF64;
  switch (opcode) {
    case Opcode::kRoundBF16: return "from_bf16(to_bf16(x))";
    case Opcode::kRoundF16: return "from_f16(to_f16(x))";
    case Opcode::kNeg: return is_floating ? "-x" : "$T(0u - u32(x))";
    case Opcode::kAbs:
      return is_floating ? "fabs(x)" : type == Type::kS32
          ? "$T(x < 0 ? 0u - u32(x) : u32(x))" : "x";
    case Opcode::kSign: return "sign_of<$T>(x)";
    case Opcode::kFloor: return "floor(x)";
    case Opcode::kCeil: return "ceil(x)";
    case Opcode::kExp: return "exp(x)";
    case Opcode::kExp2: return "exp2(x)";
    case Opcode::kExpm1: return "expm1(x)";
    case Opcode::kLog: return "log(x)";
    case Opcode::kLog1p: return "log1p(x)";
    case Opcode::kTanh: return "tanh(x)";
    case Opcode::kLogistic: return "logistic_of<$T>(x)";
    case Opcode::kErf: return "erf(x)";
    // float32's own erfc and pow are good to 4 ulp only.
    case Opcode::kErfc: return "$T(erfc(double(x)))";
    case Opcode::kPow: return "$T(pow(double(x), double(y)))";
    case Opcode::kSqrt: return "sqrt(x)";
    case Opcode::kRsqrt: return "$T(1) / sqrt(x)";
    case Opcode::kNot: return type == Type::kPred ? "x ^ 1u" : "~x";
    case Opcode::kIsFinite: return "u32(isfinite(x))";
    case Opcode::kAdd: return is_floating ? "x + y" : "$T(u32(x) + u32(y))";
    case Opcode::kSub: return is_floating ? "x - y" : "$T(u32(x) - u32(y))";
    case Opcode::kMul: return is_floating ? "x * y" : "$T(u32(x) * u32(y))";
    case Opcode::kDiv: return "x / y";
    case Opcode::kMax: return "max_of<$T>(x, y)";
    case Opcode::kMin: return "min_of<$T>(x, y)";
    case Opcode::kAnd: return "x & y";
    case Opcode::kOr: return "x | y";
    case Opcode::kXor: return "x ^ y";
    case Opcode::kShiftLeft: return "$T(shift_left(x, y))";
    case Opcode::kShiftRightLogical: return "$T(shift_right(x, y))";
    case Opcode::kShiftRightArithmetic: return "$T(shift_right_signed(x, y))";
    case Opcode::kEq: return "u32(x == y)";
    case Opcode::kNe: return "u32(x != y)";
    case Opcode::kLt: return "u32(x < y)";
    case Opcode::kLe: return "u32(x <= y)";
    case Opcode::kGt: return "u32(x > y)";
    case Opcode::kGe: return "u32(x >= y)";
    case Opcode::kSelect: return "x ? z : y";
    default: return "";
  }
}

std::string Converted(Type from, Type to) {
  bool is_floating = from == Type::kF32 || from == Type::kF64;
  if (to == Type::kPred) return "u32(x != 0)";
  if (to == Type::kS32 && is_floating) return "to_s32(x)";
  if (to == Type::kU32 && is_floating) return "to_u32(x)";
  return std::string(RegisterType(to)) + "(x)";
}

std::string Bits(Type from, Type to) {
  if (from == to) return "x";
  if (to == Type::kF32) return "__uint_as_float(u32(x))";
  if (from == Type::kF32) return std::string(RegisterType(to)) + "(__float_as_uint(x))";
  return std::string(RegisterType(to)) + "(x)";
}

class Writer {
 public:
  explicit Writer(const Program& program) : program_(program) {
    // The widest element decides how many make up a pack.
    int widest = Width(program.result.storage);
    for (const Array& array : program.operands) {
      if (IsPacked(array)) widest = std::max(widest, Width(array.storage));
    }
    pack_ = std::max(1, kPackBytes / widest);
    is_wide_ = program.rows * program.row_size >= (int64_t{1} << 31) - 1024 * kPackBytes;
    for (const Map& map : program.maps) is_wide_ |= map.last >= (int64_t{1} << 31);
  }

  int pack() const { return pack_; }

  std::string Write() {
    out_ << kCudaPrelude << "typedef " << (is_wide_ ? "u64" : "u32")
         << " index;\n\nextern \"C\" __global__ void " << kKernelName << "(";
    for (size_t k = 0; k < program_.operands.size(); ++k) {
      out_ << "const " << StorageType(program_.operands[k].storage) << "* in" << k
           << ", ";
    }
    out_ << StorageType(program_.result.storage) << "* out) {\n";
    if (program_.has_reductions) {
      out_ << "for (index row = blockIdx.x; row < " << program_.rows
           << "u; row += gridDim.x) {\n";
    }
    for (size_t m = 0; m < program_.maps.size(); ++m) Base(m);
    for (size_t p = 0; p < program_.phases.size(); ++p) {
      for (int k : program_.phases[p].uniform) Compute(k, "index(0)");
      Walk(p);
    }
    out_ << (program_.has_reductions ? "}\n}\n" : "}\n");
    return out_.str();
  }

 private:
  // The element that a map addresses at the row's start.
  void Base(size_t m) {
    out_ << "const index base" << m << " = 0";
    int64_t step = 1;
    int outer = static_cast<int>(program_.dimensions.size()) - program_.row_rank;
    for (int d = outer - 1; d >= 0; --d) {
      int64_t stride = program_.maps[m].strides[d];
      if (stride != 0) {
        out_ << " + index(row / " << step << "u % " << program_.dimensions[d]
             << "u) * " << stride << "u";
      }
      step *= program_.dimensions[d];
    }
    out_ << ";\n";
  }

  // The element that a map addresses at place `i` of the row.
  std::string Place(int64_t m, const std::string& i) const {
    Text text;
    text << "(base" << m;
    const auto& row = program_.maps[m].row;
    int64_t step = 1;
    for (size_t d = row.size(); d-- > 0;) {
      if (row[d].stride != 0) {
        text << " + ";
        step == 1 ? text << i : text << i << " / " << step << "u";
        if (d > 0) text << " % " << row[d].size << "u";
        if (row[d].stride != 1) text << " * " << row[d].stride << "u";
      }
      step *= row[d].size;
    }
    return text.str() + ")";
  }

  bool IsPacked(const Array& array) const {
    const auto& row = program_.maps[array.map].row;
    return row.size() == 1 && row[0].stride == 1;
  }

  void Walk(size_t p) {
    const Phase& phase = program_.phases[p];
    bool is_final = p + 1 == program_.phases.size();
    for (int k : phase.varying) {
      const Instruction& made = program_.instructions[k];
      if (!IsReduction(made.opcode)) continue;
      out_ << RegisterType(made.type) << " fold" << k << " = "
           << Identity(made.opcode) << ";\n";
    }
    const char* thread =
        program_.has_reductions ? "threadIdx.x" : "(index(blockIdx.x) * blockDim.x + threadIdx.x)";
    const char* threads =
        program_.has_reductions ? "blockDim.x" : "index(gridDim.x) * blockDim.x";
    out_ << "for (index start = " << thread << " * index(" << pack_ << "u); start < "
         << program_.row_size << "u; start += " << threads << " * index(" << pack_
         << "u)) {\n"
         << "const int count = min(index(" << pack_ << "u), index("
         << program_.row_size << "u) - start);\n";
    for (int k : phase.varying) LoadPack(k);
    if (is_final) {
      out_ << "Pack<" << StorageType(program_.result.storage) << ", " << pack_
           << "> packed;\n";
    }
    out_ << "#pragma unroll\nfor (int j = 0; j < " << pack_
         << "; ++j) {\nif (j >= count) break;\nconst index i = start + j;\n";
    for (int k : phase.varying) Compute(k, "i");
    if (is_final) StoreElement();
    out_ << "}\n";
    if (is_final && IsPacked(program_.result)) {
      out_ << "store_pack<" << StorageType(program_.result.storage) << ", " << pack_
           << ">(out + base" << program_.result.map << " + start, count, packed);\n";
    }
    out_ << "}\n";
    for (int k : phase.varying) {
      const Instruction& made = program_.instructions[k];
      if (!IsReduction(made.opcode)) continue;
      out_ << "const " << RegisterType(made.type) << " v" << k << " = "
           << (made.opcode == Opcode::kReduceSum   ? "block_add"
               : made.opcode == Opcode::kReduceMax ? "block_max"
                                                   : "block_min")
           << "<" << RegisterType(made.type) << ">(fold" << k << ", "
           << Identity(made.opcode) << ");\n";
    }
  }

  static const char* Identity(Opcode opcode) {
    if (opcode == Opcode::kReduceSum) return "0";
    return opcode == Opcode::kReduceMax ? "-__int_as_float(0x7f800000)"
                                        : "__int_as_float(0x7f800000)";
  }

  void LoadPack(int k) {
    const Instruction& made = program_.instructions[k];
    if (made.opcode != Opcode::kLoad) return;
    const Array& array = program_.operands[made.a];
    if (!IsPacked(array)) return;
    std::string pack = "pack" + std::to_string(k);
    out_ << "Pack<" << StorageType(array.storage) << ", " << pack_ << "> " << pack
         << ";\nload_pack<" << StorageType(array.storage) << ", " << pack_ << ">(in"
         << made.a << " + base" << array.map << " + start, count, " << pack << ");\n";
  }

  void StoreElement() {
    const Array& result = program_.result;
    size_t last = program_.instructions.size() - 1;
    std::string value = Stored(result.storage, "v" + std::to_string(last));
    if (IsPacked(result)) {
      out_ << "packed.x[j] = " << value << ";\n";
    } else {
      out_ << "out[" << Place(result.map, "i") << "] = " << value << ";\n";
    }
  }

  // Declares the value of an instruction at place `i`.
  void Compute(int k, const std::string& i) {
    const Instruction& made = program_.instructions[k];
    if (IsReduction(made.opcode)) {
      std::string fold = "fold" + std::to_string(k);
      const char* f = made.opcode == Opcode::kReduceSum   ? "add_of"
                      : made.opcode == Opcode::kReduceMax ? "max_of"
                                                          : "min_of";
      out_ << fold << " = " << f << "<" << RegisterType(made.type) << ">(" << fold
           << ", v" << made.a << ");\n";
      return;
    }
    out_ << "const " << RegisterType(made.result) << " v" << k << " = "
         << Expression(k, i) << ";\n";
  }

  std::string Expression(int k, const std::string& i) const {
    const Instruction& made = program_.instructions[k];
    const std::string type = RegisterType(made.type);
    switch (made.opcode) {
      case Opcode::kLoad: {
        const Array& array = program_.operands[made.a];
        if (!made.uniform && IsPacked(array)) {
          return Loaded(array.storage, "pack" + std::to_string(k) + ".x[j]");
        }
        return Loaded(array.storage,
                      "in" + std::to_string(made.a) + "[" + Place(array.map, i) + "]");
      }
      case Opcode::kLiteral:
        if (made.type == Type::kF64) {
          return "__longlong_as_double(" +
                 std::to_string(static_cast<uint64_t>(made.a)) + "ull)";
        }
        if (made.type == Type::kF32) {
          return "__uint_as_float(" + std::to_string(static_cast<uint32_t>(made.a)) +
                 "u)";
        }
        return type + "(" + std::to_string(static_cast<uint32_t>(made.a)) + "u)";
      case Opcode::kIota:
        return type + "(u32" + Place(made.a, i) + ")";
      case Opcode::kRandomBits:
        return "random_bits(in" + std::to_string(made.a) + ", " + Place(made.b, i) +
               ")";
      case Opcode::kIntegerPow:
        return "power_of<" + type + ">(v" + std::to_string(made.a) + ", " +
               std::to_string(made.b) + ")";
      case Opcode::kConvert:
        return Substitute(Converted(program_.instructions[made.a].result, made.type),
                          made);
      case Opcode::kBitcast:
        return Substitute(Bits(program_.instructions[made.a].result, made.type), made);
      default:
        return Substitute(Template(made.opcode, made.type), made);
    }
  }

  // Puts values in the place of `x`, `y` and `z`, and a type in that of `$T`.
  static std::string Substitute(const std::string& text, const Instruction& made) {
    auto is_letter = [](char c) { return isalnum(c) || c == '_'; };
    std::string made_text;
    for (size_t at = 0; at < text.size(); ++at) {
      bool stands_alone = (at == 0 || !is_letter(text[at - 1])) &&
                          (at + 1 == text.size() || !is_letter(text[at + 1]));
      if (text[at] == '$') {
        made_text += RegisterType(made.type);
        ++at;
      } else if (stands_alone && text[at] >= 'x' && text[at] <= 'z') {
        int64_t reads[] = {made.a, made.b, made.c};
        made_text += "v" + std::to_string(reads[text[at] - 'x']);
      } else {
        made_text += text[at];
      }
    }
    return made_text;
  }

  const Program& program_;
  Text out_;
  int pack_;
  bool is_wide_;
};

int64_t RoundUp(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

}  // namespace

std::string CudaSource(const Program& program) { return Writer(program).Write(); }

Launch LaunchOf(const Program& program) {
  int64_t packs = (program.row_size + Writer(program).pack() - 1) / Writer(program).pack();
  if (program.has_reductions) {
    int64_t block = std::min(RoundUp(packs, 32), kMostThreads);
    return {std::min(program.rows, kMostBlocks), block};
  }
  return {std::min((packs + kThreads - 1) / kThreads, kMostBlocks), kThreads};
}

}  // namespace coop_jax
