// Cuts the space of a program without reductions into rows.
//
// What is the same in every row, or all over one, is then computed once. A row is
// the innermost dimensions and, where those are short, a factor of the next one.

#include <cstdint>

#include "program.h"
#include "schedule.h"

namespace coop_jax {
namespace {

constexpr int64_t kLongest = 2048, kShortest = 256;  // elements of a row

// The largest divisor of `n` up to `most`.
int64_t LargestDivisor(int64_t n, int64_t most) {
  for (int64_t divisor = most; divisor > 1; --divisor) {
    if (n % divisor == 0) return divisor;
  }
  return 1;
}

// Makes two dimensions out of one, the inner one of `size`.
void Split(Program* program, size_t d, int64_t size) {
  auto& dimensions = program->dimensions;
  dimensions[d] /= size;
  dimensions.insert(dimensions.begin() + d + 1, size);
  for (Map& map : program->maps) {
    int64_t stride = map.strides[d];
    map.strides[d] *= size;
    map.strides.insert(map.strides.begin() + d + 1, stride);
  }
}

}  // namespace

void CutIntoRows(Program* program) {
  if (program->has_reductions || program->row_size <= kLongest) return;
  size_t inner = program->dimensions.size();
  int64_t row = 1;
  while (row * program->dimensions[inner - 1] <= kLongest) {
    row *= program->dimensions[--inner];
  }
  if (row < kShortest) {
    int64_t factor =
        LargestDivisor(program->dimensions[inner - 1], kLongest / row);
    if (row * factor < kShortest) return;
    Split(program, inner - 1, factor);
  }
  program->row_rank = static_cast<int>(program->dimensions.size() - inner);
  Derive(program);
}

}  // namespace coop_jax
