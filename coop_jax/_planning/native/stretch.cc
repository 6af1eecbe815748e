#include "stretch.h"

// Of a function of integers alone all versions give the same; the loader picks one, for
// which it needs the C library's help.
#if defined(__x86_64__) && defined(__GLIBC__)
#define COOP_WIDE __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define COOP_WIDE
#endif

namespace coop_jax {

COOP_WIDE void AddToAll(int64_t* bytes, int32_t count, int64_t size) {
  for (int32_t k = 0; k < count; ++k) bytes[k] += size;
}

COOP_WIDE int64_t PutSums(const int64_t* __restrict through,
                          const int64_t* __restrict local, int64_t* __restrict bytes,
                          int32_t count, int64_t budget) {
  int64_t change = 0;
  for (int32_t k = 0; k < count; ++k) {
    const int64_t sum = through[k] + local[k];
    const int64_t over = sum - budget, was_over = bytes[k] - budget;
    change += (over > 0 ? over : 0) - (was_over > 0 ? was_over : 0);
    bytes[k] = sum;
  }
  return change;
}

}  // namespace coop_jax
