// `Search::Refine`: iterated local search around a schedule that fits, as in refine.py.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "search.h"

namespace coop_jax {
namespace {

constexpr double kDeepest = 0.07, kShallowest = 0.002;
constexpr double kTearing = 0.3;
constexpr double kNoise = 0.3;
constexpr double kWorthFollowing = 1.003;
constexpr int64_t kPatience = 8;
constexpr int kReaches[] = {0, 4, 16, 64};
// Packings of one schedule that is tightened.
constexpr int64_t kMostPackings = 100;
// So many ops are packed for so many moves.
constexpr int64_t kPacked = 50, kMoves = 3;

// The second and the first half; none of one step.
void AddHalves(const std::vector<Step>& steps, std::vector<std::vector<Step>>* batches) {
  if (steps.size() < 2) return;
  const auto middle = steps.begin() + static_cast<int64_t>((steps.size() + 1) / 2);
  batches->emplace_back(middle, steps.end());
  batches->emplace_back(steps.begin(), middle);
}

}  // namespace

Planned Search::Refine(const Planned& start, int64_t rounds, double seconds) {
  Planned best = start;
  state_.Restore(best.positions);
  Positions present = best.positions;
  MakeRoom(best);
  using Clock = std::chrono::steady_clock;
  const auto begun = Clock::now();
  int64_t idle = 0;
  double depth = kDeepest;
  for (int64_t round = 0; round < 10 * rounds; ++round) {
    const std::chrono::duration<double> spent = Clock::now() - begun;
    if (idle >= rounds || !state_.HasRemats() || moves_left_ <= 0 ||
        spent.count() > seconds) {
      break;
    }
    ++idle;
    const bool is_back = LeaveAndReturn(depth);
    depth = std::min(std::max(depth * (is_back ? 1.5 : 0.6), kShallowest), kDeepest);
    if (is_back) {
      if (!best.fits || state_.cost() < best.cost * (1 - 1e-9)) {
        Planned found = Result();
        MakeRoom(found);
        if (found.Beats(best)) {
          best = std::move(found);
          idle = 0;
        }
      }
      if (state_.cost() <= best.cost * kWorthFollowing) {
        present = state_.runs();
        continue;
      }
    }
    if (idle % kPatience == 0) {
      present = best.positions;
      MakeRoom(best);
    }
    state_.Restore(present);
  }
  return best;
}

Planned Search::Tightened(Planned best) {
  room_ = pool_;
  state_.Restore(best.positions);
  std::vector<std::vector<Step>> batches;
  AddHalves(DearestFirst(), &batches);  // all together do not pack
  const int64_t ops = std::max<int64_t>(static_cast<int64_t>(problem_.ops.size()), 1);
  const int64_t turns = std::min(kMostPackings, kPacked * moves_left_ / (kMoves * ops));
  for (int64_t turn = 0; turn < turns && !batches.empty(); ++turn) {
    const std::vector<Step> batch = std::move(batches.back());
    batches.pop_back();
    bool is_less = false;
    for (const Step& step : batch) is_less |= TakeBack(step);
    if (!is_less) continue;
    Planned found = Result(pool_ + 1);
    if (found.fits) {
      best = std::move(found);
      continue;
    }
    state_.Restore(best.positions);
    AddHalves(batch, &batches);
  }
  return best;
}

// Lets as much be alive as packing leaves, going by this schedule.
void Search::MakeRoom(const Planned& found) {
  if (found.fits) {
    room_ = pool_ - (found.size - found.peak);
  } else {
    room_ -= (found.size - pool_) / 2;
  }
}

// One perturbation and its repair. Returns whether the result fits.
bool Search::LeaveAndReturn(double depth) {
  const int64_t room = room_;
  if (random_.Unit() < kTearing) {
    TearOut(state_.Remats());
  } else {
    const double share = 1 - depth * random_.Between(0.1, 1);
    room_ = static_cast<int64_t>(static_cast<double>(room) * share);
  }
  const bool is_repaired = Relieve(kNoise);
  room_ = room;
  std::fill(tabu_.begin(), tabu_.end(), false);
  if (is_repaired) Trim();
  return is_repaired;
}

// Removes some rematerializations near a random, preferably dear, one.
void Search::TearOut(const std::vector<Step>& remats) {
  std::vector<double> weights;
  double total = 0;
  for (const Step& step : remats) {
    weights.push_back(total += problem_.ops[step.op].cost + tiny_cost_);
  }
  const double drawn = random_.Unit() * total;
  const auto found = std::upper_bound(weights.begin(), weights.end(), drawn);
  const Step centre = remats[std::min<size_t>(found - weights.begin(),
                                              remats.size() - 1)];
  const int reach = kReaches[static_cast<int>(random_.Unit() * 4)];
  if (random_.Unit() < 0.7) tabu_[centre.op] = true;
  for (const Step& step : remats) {
    const bool is_near = std::abs(step.position - centre.position) <= reach;
    if (is_near && random_.Unit() < 0.6 && state_.IsRemat(step)) {
      std::vector<Edit> log;
      state_.Remove(step.op, step.position, &log);
    }
  }
}

}  // namespace coop_jax
