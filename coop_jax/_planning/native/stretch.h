// Bytes over a stretch of positions, as many at once as the processor can.
#ifndef COOP_JAX_PLANNING_NATIVE_STRETCH_H_
#define COOP_JAX_PLANNING_NATIVE_STRETCH_H_

#include <cstdint>

namespace coop_jax {

void AddToAll(int64_t* bytes, int32_t count, int64_t size);

// Puts `through + local` into `bytes`, and returns by how much the sum of what is over
// `budget` grew.
int64_t PutSums(const int64_t* through, const int64_t* local, int64_t* bytes,
                int32_t count, int64_t budget);

}  // namespace coop_jax

#endif  // COOP_JAX_PLANNING_NATIVE_STRETCH_H_
