#include "ranked.h"

#include <algorithm>

namespace coop_jax {
namespace {

constexpr size_t kFirstSorted = 32;

}  // namespace

void Ranked::Clear() {
  moves_.clear();
  sorted_ = 0;
}

void Ranked::Add(double score, const Gap& gap) {
  moves_.push_back({score, gap, static_cast<int32_t>(moves_.size())});
}

void Ranked::SortMore() {
  const auto comes_first = [](const Move& a, const Move& b) {
    return a.score > b.score || (a.score == b.score && a.number < b.number);
  };
  const auto from = moves_.begin() + sorted_;
  sorted_ = std::min(moves_.size(), 2 * sorted_ + kFirstSorted);
  const auto to = moves_.begin() + sorted_;
  if (to != moves_.end()) std::nth_element(from, to, moves_.end(), comes_first);
  std::sort(from, to, comes_first);
}

}  // namespace coop_jax
