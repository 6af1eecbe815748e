// The random numbers of splitmix.py.
#ifndef COOP_JAX_PLANNING_NATIVE_SPLITMIX_H_
#define COOP_JAX_PLANNING_NATIVE_SPLITMIX_H_

#include <cstdint>

namespace coop_jax {

class SplitMix {
 public:
  explicit SplitMix(uint64_t seed = 0) : state_(seed) {}

  // In [0, 1).
  double Unit() {
    state_ += 0x9E3779B97F4A7C15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
  }

  double Between(double low, double high) { return low + (high - low) * Unit(); }

 private:
  uint64_t state_;
};

}  // namespace coop_jax

#endif  // COOP_JAX_PLANNING_NATIVE_SPLITMIX_H_
