// The size of the block that XLA packs a schedule's buffers into.
#ifndef COOP_JAX_PLANNING_NATIVE_PACKING_H_
#define COOP_JAX_PLANNING_NATIVE_PACKING_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "problem.h"

namespace coop_jax {

// More than any block takes.
constexpr int64_t kAnySize = std::numeric_limits<int64_t>::max() / 2;

// The peak of `packed(problem, schedule)`, buffer_assignment.py; where that is no less
// than `most`, anything that is not either.
int64_t PackedSize(const Problem& problem, const std::vector<OpId>& schedule,
                   int64_t most = kAnySize);

// That of `assign(schedule_buffers(problem, schedule), ..., watersheds)`.
int64_t PackedSize(const Problem& problem, const std::vector<OpId>& schedule,
                   const std::vector<int32_t>& watersheds);

}  // namespace coop_jax

#endif  // COOP_JAX_PLANNING_NATIVE_PACKING_H_
