// Compares the buffers that XLA gives a program with those it was written for.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "program.h"
#include "text.h"

namespace coop_jax {
namespace {

struct Extent {
  const char* begin;
  const char* end;
};

Extent ExtentOf(const Buffer& buffer, const Array& array) {
  const char* begin = static_cast<const char*>(buffer.data);
  return {begin, begin + array.size * Width(array.storage)};
}

std::string CheckBuffer(const std::string& what, const Array& array,
                        const Buffer& buffer) {
  bool is_equal = buffer.known && buffer.storage == array.storage &&
                  buffer.rank == array.dimensions.size() &&
                  std::equal(array.dimensions.begin(), array.dimensions.end(),
                             buffer.dimensions);
  size_t misaligned = reinterpret_cast<uintptr_t>(buffer.data) %
                      std::max(1, Width(array.storage));
  if (is_equal && misaligned != 0) return what + " is not aligned";
  if (is_equal) return "";
  std::string given =
      buffer.known ? Describe(buffer.storage, buffer.dimensions, buffer.rank)
                   : "of a type no program knows";
  return what + " is " + given + "; the program takes " +
         Describe(array.storage, array.dimensions.data(),
                  array.dimensions.size());
}

}  // namespace

std::string Describe(Storage storage, const int64_t* dimensions, size_t rank) {
  Text text;
  text << Name(storage) << "[";
  for (size_t d = 0; d < rank; ++d) text << (d ? "," : "") << dimensions[d];
  text << "]";
  return text.str();
}

std::string CheckBuffers(const Program& program,
                         const std::vector<Buffer>& operands,
                         const Buffer& result) {
  if (operands.size() != program.operands.size()) {
    return std::to_string(operands.size()) + " operands; the program takes " +
           std::to_string(program.operands.size());
  }
  std::string error = CheckBuffer("the result", program.result, result);
  if (!error.empty()) return error;
  Extent written = ExtentOf(result, program.result);
  for (size_t k = 0; k < operands.size(); ++k) {
    const Array& array = program.operands[k];
    std::string what = "operand " + std::to_string(k);
    error = CheckBuffer(what, array, operands[k]);
    if (!error.empty()) return error;
    Extent read = ExtentOf(operands[k], array);
    bool is_apart = read.end <= written.begin || written.end <= read.begin;
    bool is_alike = read.begin == written.begin && !array.is_key &&
                    array.storage == program.result.storage &&
                    program.maps[array.map].strides ==
                        program.maps[program.result.map].strides;
    if (!is_apart && !is_alike) {
      return what + ", " +
             Describe(array.storage, array.dimensions.data(),
                      array.dimensions.size()) +
             ", overlaps the result and is not addressed as it is";
    }
  }
  return "";
}

}  // namespace coop_jax
