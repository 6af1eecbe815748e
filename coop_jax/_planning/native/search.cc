#include "search.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "packing.h"

namespace coop_jax {
namespace {

constexpr int64_t kNegligible = 128;
constexpr size_t kMaxChain = 64;
constexpr int kProbes = 12;
constexpr double kNearBest = 0.7;
constexpr size_t kLong = 20'000;
constexpr int kMostPackings = 6;
constexpr int64_t kTriesPerGap = 4;
constexpr double kUntriedShare = 0.5;
constexpr int64_t kSwelling = 2;
// Below this share of a bound, a quotient is below it however both are rounded.
constexpr double kSurely = 1 - 1e-9;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Bytes below which all values together are a negligible part of the peak.
int64_t LeastCounted(std::vector<int64_t> sizes, int64_t peak) {
  std::sort(sizes.begin(), sizes.end());
  int64_t left = peak / kNegligible;
  for (int64_t size : sizes) {
    left -= size;
    if (left < 0) return std::max<int64_t>(size, 1);
  }
  return 1;
}

}  // namespace

bool Planned::Beats(const Planned& other) const {
  if (fits && other.fits) return cost < other.cost;
  return fits || (!other.fits && size < other.size);
}

Relief::Relief(const std::vector<int64_t>& sizes, int32_t length)
    : number_(sizes.size()), excess_(length) {
  std::vector<int64_t> different = sizes;
  std::sort(different.begin(), different.end());
  different.erase(std::unique(different.begin(), different.end()), different.end());
  for (size_t v = 0; v < sizes.size(); ++v) {
    const auto found = std::lower_bound(different.begin(), different.end(), sizes[v]);
    number_[v] = static_cast<int32_t>(found - different.begin());
  }
  for (int64_t size : different) prefixes_.push_back({size, 0, {}});
}

void Relief::Reset(const std::vector<int64_t>& bytes_at, int64_t pool) {
  for (size_t k = 0; k < excess_.size(); ++k) {
    excess_[k] = std::max<int64_t>(bytes_at[k] - pool, 0);
  }
  ++round_;
}

int64_t Relief::Of(ValueId value, int32_t start, int32_t end) {
  Prefix& prefix = prefixes_[number_[value]];
  if (prefix.round != round_) {
    prefix.round = round_;
    prefix.sums.resize(excess_.size() + 1);
    int64_t sum = prefix.sums[0] = 0;
    for (size_t k = 0; k < excess_.size(); ++k) {
      prefix.sums[k + 1] = sum += std::min(excess_[k], prefix.size);
    }
  }
  return prefix.sums[end] - prefix.sums[start];
}

Search::Search(Problem problem, bool is_packed)
    : problem_(std::move(problem)),
      is_packed_(is_packed),
      state_(problem_),
      relief_(problem_.sizes, problem_.length()),
      minimum_(LeastCounted(problem_.sizes, state_.Peak())),
      tiny_cost_(1e-6 * state_.cost() + 1e-30),
      tabu_(problem_.ops.size()),
      in_chain_(problem_.ops.size()),
      needed_(problem_.ops.size()),
      counted_inputs_(problem_.ops.size()) {
  for (size_t k = 0; k < needed_.size(); ++k) {
    for (ValueId v : problem_.ops[k].inputs) {
      if (problem_.sizes[v] >= minimum_) counted_inputs_[k].push_back(v);
    }
    needed_[k] = problem_.ops[k].workspace;
    for (ValueId v : problem_.ops[k].outputs) needed_[k] += problem_.sizes[v];
  }
}

void Search::Begin(uint64_t seed) {
  random_ = SplitMix(seed);
  rate_ = kInfinity;
}

void Search::Set(const Settings& settings) {
  pool_ = settings.pool;
  moves_left_ = settings.moves_left;
}

Planned Search::At(const Positions& positions) {
  state_.Restore(positions);
  return Result();
}

Planned Search::Reach(const Positions& start, double noise, bool is_quick) {
  is_quick_ = is_quick;
  state_.Restore(start);
  room_ = pool_;
  Planned best;
  bool has_best = false;
  for (int packing = 0; packing < kMostPackings; ++packing) {
    if (!RelieveOn(noise)) break;
    Planned dearer = Result();
    Trim();
    Planned found = dearer;
    if (dearer.positions != state_.runs()) found = Result();
    found.cost = state_.cost();
    // Where neither fits, that the dearer one takes less is chance.
    if (dearer.fits && (!has_best || dearer.Beats(best))) {
      best = std::move(dearer);
      has_best = true;
    }
    if (!has_best || found.Beats(best)) best = found;
    has_best = true;
    if (found.fits) break;
    room_ -= found.size - pool_;
  }
  is_quick_ = false;
  return has_best ? best : Result();
}

Planned Search::Result(int64_t most) {
  Planned found;
  found.positions = state_.runs();
  found.peak = found.size = state_.Peak();
  if (is_packed_) found.size = PackedSize(problem_, ScheduleOf(state_.runs()), most);
  found.cost = state_.cost();
  found.fits = found.size <= pool_;
  return found;
}

// Relieve: from over the pool to within it

bool Search::RelieveOn(double noise) {
  int64_t least = std::numeric_limits<int64_t>::max();
  Positions kept;
  const bool is_long = problem_.ops.size() > kLong;
  while (!Relieve(noise)) {
    const int64_t peak = state_.Peak(), room = room_;
    if (peak >= least) state_.Restore(kept);
    if (peak >= least || (moves_left_ <= 0 && is_long)) return false;
    room_ = peak;
    Trim();
    room_ = room;
    if (moves_left_ <= 0) return false;
    least = peak;
    kept = state_.runs();
  }
  return true;
}

bool Search::Relieve(double noise) {
  while (const int64_t excess = state_.Overload(room_)) {
    if (moves_left_ <= 0) return false;
    Rank(noise);
    const bool is_quick = is_quick_ || moves_.size() * kTriesPerGap > moves_left_;
    if (is_quick && TakeUntried(excess)) continue;
    if (!Take(excess)) {
      rate_ = 0;
      if (!Take(excess)) return false;
    }
  }
  return true;
}

void Search::Rank(double noise) {
  relief_.Reset(state_.bytes_at(), room_);
  moves_.Clear();
  for (const Gap& gap : state_.Gaps(minimum_)) {
    double score = Bound(gap);
    if (score == 0 || tabu_[problem_.producer[gap.value]]) continue;
    if (noise) score *= random_.Between(1 - noise, 1 + noise);
    moves_.Add(score, gap);
  }
}

// Seconds of the producer, or nothing if it would only move.
double Search::LeastCost(const Gap& gap) const {
  const OpId producer = problem_.producer[gap.value];
  const Op& op = problem_.ops[producer];
  const std::vector<int32_t>& runs = state_.runs()[producer];
  const bool only_moves = op.outputs.size() == 1 &&
                          std::binary_search(runs.begin(), runs.end(), gap.start);
  return std::max(op.cost - (only_moves ? op.cost : 0.0), tiny_cost_);
}

// Bytes per second that no chain for the gap comes above.
double Search::Bound(const Gap& gap) {
  const int64_t gain = relief_.Of(gap.value, gap.start + 1, gap.end);
  return static_cast<double>(gain) / LeastCost(gap);
}

// Takes the best move, then others in order while they come near it.
bool Search::Take(int64_t excess) {
  const Variant best = Probe(excess);
  if (best.edits.empty()) return false;
  state_.Redo(best.edits);
  rate_ = best.score * kNearBest;
  int failures = 0;
  for (size_t place = 0; const Move* move = moves_.At(place); ++place) {
    excess = state_.Overload(room_);
    if (move->score < best.score * kNearBest || failures > kProbes || excess == 0) {
      break;
    }
    const Variant next = BestVariant(move->gap, excess, best.score * kNearBest);
    state_.Redo(next.edits);
    failures = next.edits.empty() ? failures + 1 : 0;
  }
  return true;
}

// Takes the best moves by their estimates until a part of the excess is gone.
bool Search::TakeUntried(int64_t excess) {
  double best = 0;
  for (size_t place = 0; const Move* move = moves_.At(place); ++place) {
    if (move->score <= best) break;
    if (Bound(move->gap) <= best) continue;
    best = std::max(best, FindChain(move->gap, move->score, best).estimate);
  }
  double left = static_cast<double>(excess) * kUntriedShare;
  const double least = best * kUntriedShare;
  bool is_taken = false;
  for (size_t place = 0; const Move* move = moves_.At(place); ++place) {
    if (best == 0 || move->score < least || left <= 0) break;
    if (Bound(move->gap) < least) continue;
    const Chain chain = FindChain(move->gap, move->score, least);
    if (chain.steps.empty() || chain.estimate < least) continue;
    const double before = state_.cost();
    std::vector<Edit> log;
    Insert(chain.steps, &log);
    left -= chain.estimate * std::max(state_.cost() - before, tiny_cost_);
    is_taken = true;
  }
  return is_taken;
}

// The best true rate among the most promising moves, with its edits.
Search::Variant Search::Probe(int64_t excess) {
  Variant best{0, {}};
  int helpful = 0;
  for (size_t place = 0; const Move* move = moves_.At(place); ++place) {
    if (move->score <= best.score || helpful >= kProbes) break;
    Variant next = BestVariant(move->gap, excess, best.score);
    if (next.edits.empty()) continue;
    best = std::move(next);
    ++helpful;
  }
  return best;
}

// The best way to drop this gap: (bytes per second, edits) if above `floor`.
Search::Variant Search::BestVariant(const Gap& gap, int64_t excess, double floor) {
  Variant best{floor, {}};
  const auto consider = [&](const Chain& chain) {
    if (chain.steps.empty() || chain.estimate < best.score * kNearBest) return;
    const double score = Try(chain.steps, excess);
    const bool is_first = score == best.score && best.score > 0;
    if (score > best.score || (is_first && best.edits.empty())) {
      best.score = score;
      best.edits = tried_;
    }
  };
  const Chain kept = FindChain(gap, kInfinity, floor * kNearBest);
  Chain again;
  // All of its steps: whether they swell counts even where they are too dear.
  if (kept.stretches) again = FindChain(gap, rate_, -kInfinity);
  consider(kept);
  if (kept.stretches && !(again.steps == kept.steps)) consider(again);
  if (Swells(gap, kept.stretches ? again : kept)) {
    const double least = best.score * kNearBest;
    consider(FindChain({gap.value, gap.start, gap.end - 1}, rate_, least));
  }
  return best;
}

// Steps that recompute the gap's value at its end. None, with too high an estimate, if
// that comes below `least`: it only falls as steps are added.
Search::Chain Search::FindChain(const Gap& gap, double rate, double least) {
  const OpId op = problem_.producer[gap.value];
  const int32_t position = gap.end;
  Chain chain{{}, 0, false};
  if (tabu_[op] || !state_.MayRun(op, position)) return chain;
  int64_t gain = relief_.Of(gap.value, gap.start + 1, position);
  double cost = LeastCost(gap);
  steps_.assign(1, op);
  todo_.assign(1, op);
  in_chain_[op] = ++stamp_;
  while (!todo_.empty()) {
    const OpId reader = todo_.back();
    todo_.pop_back();
    for (ValueId v : counted_inputs_[reader]) {
      const OpId producer = problem_.producer[v];
      if (in_chain_[producer] == stamp_) continue;
      const auto alive =
          static_cast<int32_t>(state_.LastAlive(v, position, producer + 1));
      if (alive >= position) continue;
      const int64_t kept = relief_.Of(v, alive + 1, position);
      const double again = problem_.ops[producer].cost;
      chain.stretches |= kept > 0;
      if (static_cast<double>(kept) > rate * again &&
          MayChain(producer, position, steps_.size())) {
        in_chain_[producer] = stamp_;
        steps_.push_back(producer);
        todo_.push_back(producer);
        cost += again;
      } else {
        gain -= kept;
      }
      if (static_cast<double>(gain) < least * cost * kSurely) {
        chain.estimate = static_cast<double>(gain) / cost;
        return chain;
      }
    }
  }
  std::sort(steps_.begin(), steps_.end());
  chain.steps.reserve(steps_.size());
  for (OpId k : steps_) chain.steps.push_back({k, position});
  chain.estimate = static_cast<double>(gain) / cost;
  return chain;
}

// Whether some step takes much more than the value: better before the others.
bool Search::Swells(const Gap& gap, const Chain& chain) const {
  const int64_t size = kSwelling * problem_.sizes[gap.value];
  return gap.end - 1 > gap.start &&
         std::any_of(chain.steps.begin(), chain.steps.end(),
                     [&](const Step& step) { return needed_[step.op] > size; });
}

bool Search::MayChain(OpId op, int32_t position, size_t steps) const {
  return steps < kMaxChain && !tabu_[op] && state_.MayRun(op, position);
}

void Search::Insert(const std::vector<Step>& steps, std::vector<Edit>* log) {
  moves_left_ -= static_cast<int64_t>(steps.size());
  std::vector<OpId> ops;
  for (const Step& step : steps) {
    state_.Insert(step.op, step.position, log);
    ops.push_back(step.op);
  }
  state_.Sweep(std::move(ops), log);
}

// Applies and undoes the steps. Returns excess bytes taken away per second.
double Search::Try(const std::vector<Step>& steps, int64_t excess) {
  const double before = state_.cost();
  tried_.clear();
  Insert(steps, &tried_);
  const int64_t gain = excess - state_.Overload(room_);
  const double cost = std::max(state_.cost() - before, tiny_cost_);
  std::vector<Edit> log = tried_;
  state_.Undo(&log);
  return static_cast<double>(gain) / cost;
}

// Trim: take back what is not needed

void Search::Trim() {
  bool is_improved = true;
  while (is_improved) {
    is_improved = false;
    for (const Step& step : DearestFirst()) is_improved |= TakeBack(step);
  }
}

std::vector<Step> Search::DearestFirst() const {
  std::vector<Step> remats = state_.Remats();
  const auto key = [&](const Step& step) {
    return std::make_tuple(problem_.ops[step.op].cost, step.op, step.position);
  };
  std::sort(remats.begin(), remats.end(),
            [&](const Step& a, const Step& b) { return key(a) > key(b); });
  return remats;
}

bool Search::TakeBack(const Step& step) {
  if (!state_.IsRemat(step)) return false;
  const double before = state_.cost();
  std::vector<Edit> log;
  state_.Remove(step.op, step.position, &log);
  if (state_.cost() < before && state_.Overload(room_) == 0) return true;
  state_.Undo(&log);
  return false;
}

}  // namespace coop_jax
