// The cheapest way to have values again behind a seam: min_cut.py, where the words are.
#ifndef COOP_JAX_PLANNING_NATIVE_MIN_CUT_H_
#define COOP_JAX_PLANNING_NATIVE_MIN_CUT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace coop_jax {

// Prices by the byte times bytes, in small units: more than 64 bits hold.
using Capacity = __int128;

struct FlowEdge {
  int32_t start;
  int32_t end;
  Capacity capacity;
};

// Per node, whether it is on the source's side of a minimum cut, as few as possible.
std::vector<bool> SourceSide(int32_t nodes, const std::vector<FlowEdge>& edges,
                             int32_t source, int32_t sink);

}  // namespace coop_jax

#endif  // COOP_JAX_PLANNING_NATIVE_MIN_CUT_H_
