// Moves by their scores, as few sorted as are asked for.
#ifndef COOP_JAX_PLANNING_NATIVE_RANKED_H_
#define COOP_JAX_PLANNING_NATIVE_RANKED_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "retention.h"

namespace coop_jax {

struct Move {
  double score;
  Gap gap;
  // Among moves of the same score.
  int32_t number;
};

// The best first; of the same score, the first added.
class Ranked {
 public:
  void Clear();
  void Add(double score, const Gap& gap);
  int64_t size() const { return static_cast<int64_t>(moves_.size()); }

  // The `place`th best, or null after the last.
  const Move* At(size_t place) {
    if (place >= moves_.size()) return nullptr;
    if (place >= sorted_) SortMore();
    return &moves_[place];
  }

 private:
  void SortMore();

  std::vector<Move> moves_;
  size_t sorted_ = 0;
};

}  // namespace coop_jax

#endif  // COOP_JAX_PLANNING_NATIVE_RANKED_H_
