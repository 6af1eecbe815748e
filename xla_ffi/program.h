// A program: what one in-place call computes, as data.
//
// A program walks an iteration space of up to eight dimensions. The trailing
// `row_rank` of them are the row, over which reductions run; a program without
// reductions has a single row. Each point of the space computes the same list
// of instructions in single assignment form; the last one is the result.
// Operands, the result, iotas and random counters are addressed by maps: the
// element at a point is the sum over dimensions of index times stride, so a
// broadcast is a stride of zero.
//
// The program travels as 64-bit words, in this order:
//
//   version rank row_rank #maps #operands #instructions
//   dimensions[rank]
//   strides[rank]                       of each map
//   storage map rank dimensions[rank]   of each operand
//   storage map rank dimensions[rank]   of the result
//   opcode type a b c                   of each instruction
//
// `Decode` trusts nothing: after it succeeds, running the program on buffers
// of the stated types and shapes stays inside them.

#ifndef COOP_JAX_XLA_FFI_PROGRAM_H_
#define COOP_JAX_XLA_FFI_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace coop_jax {

inline constexpr int64_t kVersion = 1;
inline constexpr int kMaxRank = 8;
inline constexpr int kMaxInstructions = 512;
inline constexpr int kMaxOperands = 32;

// How elements lie in memory.
enum class Storage { kF32, kF64, kBF16, kF16, kS32, kU32, kPred };
inline constexpr int kStorages = 7;

// What instructions compute with. bfloat16 and float16 compute in float32; a
// predicate is a 32-bit 0 or 1.
enum class Type { kF32, kF64, kS32, kU32, kPred };
inline constexpr int kTypes = 5;

// The numbers are part of the format.
enum class Opcode {
  kLoad,        // a: operand
  kLiteral,     // a: bits of the value
  kIota,        // a: map
  kRandomBits,  // a: operand with a threefry key, b: map of the counter
  kConvert, kBitcast, kRoundBF16, kRoundF16,  // a: instruction
  kNeg, kAbs, kSign, kFloor, kCeil, kExp, kExp2, kExpm1, kLog, kLog1p, kTanh,
  kLogistic, kErf, kErfc, kSqrt, kRsqrt, kNot, kIsFinite,
  kIntegerPow,  // a: instruction, b: exponent
  kAdd, kSub, kMul, kDiv, kMax, kMin, kPow, kAnd, kOr, kXor,  // a, b
  kShiftLeft, kShiftRightLogical, kShiftRightArithmetic,      // a, b
  kEq, kNe, kLt, kLe, kGt, kGe,  // a, b; the type is that of the operands
  kSelect,                       // a: predicate, b: if false, c: if true
  kReduceSum, kReduceMax, kReduceMin,  // a, over the row
};
inline constexpr int kOpcodes = 50;

// Strides of one map and what follows from them.
struct Map {
  std::vector<int64_t> strides;
  int64_t last = 0;  // largest element addressed

  // The row's dimensions, neighbours merged where one stride spans both.
  struct Dimension {
    int64_t size, stride;
  };
  std::vector<Dimension> row;
};

struct Array {
  Storage storage;
  int map;
  std::vector<int64_t> dimensions;
  int64_t size = 1;     // elements
  bool is_key = false;  // read as a key by random bits
};

struct Instruction {
  Opcode opcode;
  Type type;  // of the result; of the operands for comparisons
  int64_t a, b, c;
  Type result = Type::kF32;
  int reductions = 0;    // most reductions on a way to here
  bool uniform = false;  // the same all over a row
  bool repeats = false;  // the same in every row
};

// Instructions of one walk over a row. Uniform ones run once, before it.
struct Phase {
  std::vector<int> uniform, varying;
};

struct Program {
  std::vector<int64_t> dimensions;
  int row_rank = 0;
  std::vector<Map> maps;
  std::vector<Array> operands;
  Array result;
  std::vector<Instruction> instructions;

  // Derived.
  int64_t rows = 1, row_size = 1;
  bool has_reductions = false, has_f64 = false;
  std::vector<Phase> phases;
};

inline bool IsReduction(Opcode opcode) { return opcode >= Opcode::kReduceSum; }
// Bytes of an element.
int Width(Storage storage);
// What an element becomes when it is loaded.
Type TypeOf(Storage storage);
const char* Name(Storage storage);
// "f32[4,8]"
std::string Describe(Storage storage, const int64_t* dimensions, size_t rank);
// The instructions that an instruction reads; the number of them.
int Reads(const Instruction& instruction, int64_t reads[3]);

// The last part of `Decode`: fills in what follows from the words, but for maps'
// extents, and types.
void Derive(Program* program);

// Decodes and checks a program. Returns what is wrong with it, or "".
std::string Decode(const int64_t* words, size_t size, Program* program);

// A buffer that a program is asked to run on.
struct Buffer {
  const void* data;
  Storage storage;
  bool known;  // false: of a type that programs do not know
  const int64_t* dimensions;
  size_t rank;
};

// Whether the buffers are those of the program, and the result overlaps no
// operand but one that is addressed alike. Returns what is wrong, or "".
std::string CheckBuffers(const Program& program,
                         const std::vector<Buffer>& operands,
                         const Buffer& result);

}  // namespace coop_jax

#endif  // COOP_JAX_XLA_FFI_PROGRAM_H_
