// A straight-line program to be planned: types.py's `Problem` in flat arrays.
#ifndef COOP_JAX_PLANNING_NATIVE_PROBLEM_H_
#define COOP_JAX_PLANNING_NATIVE_PROBLEM_H_

#include <cstdint>
#include <utility>
#include <vector>

namespace coop_jax {

using OpId = int32_t;
using ValueId = int32_t;

struct Op {
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  std::vector<std::pair<ValueId, ValueId>> in_place;
  // Inputs and outputs that take bytes.
  std::vector<ValueId> sized;
  // Ops that write its inputs.
  std::vector<OpId> producers;
  double cost;
  int64_t workspace;
  // What that is made of: itself, if it is not several arrays.
  std::vector<int64_t> pieces;
  // Must stay where it is.
  bool is_fixed;
  // The last position it may be repeated at.
  int32_t deadline;
};

struct Problem {
  std::vector<Op> ops;
  // Per value: the op that writes it, or -1; bytes in the pool (none if nothing writes
  // it); whether it must be alive at the end.
  std::vector<OpId> producer;
  std::vector<int64_t> sizes;
  std::vector<bool> is_output;
  int64_t alignment;
  // Whether what is alive across one place can be placed before all else.
  bool has_watershed;
  // Whether how long arrays last is known to the tick of XLA's clock.
  bool has_durations;
  // Seconds of the unplanned schedule, and what of these its ops' costs are not.
  double cost;
  double once;

  int32_t length() const { return static_cast<int32_t>(ops.size()); }
};

// Per op, where it runs.
using Positions = std::vector<std::vector<int32_t>>;

// Ops in the order they run.
std::vector<OpId> ScheduleOf(const Positions& positions);

}  // namespace coop_jax

#endif  // COOP_JAX_PLANNING_NATIVE_PROBLEM_H_
