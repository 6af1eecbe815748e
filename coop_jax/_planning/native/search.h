// Moves that fit a schedule into a pool and make it cheaper: search.py and refine.py,
// where the words and the reasons are, to the last bit.
#ifndef COOP_JAX_PLANNING_NATIVE_SEARCH_H_
#define COOP_JAX_PLANNING_NATIVE_SEARCH_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "packing.h"
#include "problem.h"
#include "ranked.h"
#include "retention.h"
#include "splitmix.h"

namespace coop_jax {

struct Planned {
  Positions positions;
  int64_t peak = 0;
  int64_t size = 0;
  double cost = 0;
  bool fits = false;

  bool Beats(const Planned& other) const;
};

// How much excess a value of some size adds or takes away over a stretch.
class Relief {
 public:
  // Sizes are told apart by their number among the different ones.
  Relief(const std::vector<int64_t>& sizes, int32_t length);

  void Reset(const std::vector<int64_t>& bytes_at, int64_t pool);

  // Sum over positions [start, end) of the excess that the value's bytes cover.
  int64_t Of(ValueId value, int32_t start, int32_t end);

 private:
  struct Prefix {
    int64_t size;
    int64_t round;
    std::vector<int64_t> sums;
  };

  std::vector<int32_t> number_;
  std::vector<Prefix> prefixes_;
  std::vector<int64_t> excess_;
  int64_t round_ = 0;
};

class Search {
 public:
  struct Settings {
    int64_t pool;
    int64_t moves_left;
  };

  Search(Problem problem, bool is_packed);
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;

  // Forgets what earlier searches left behind, and draws anew from `seed`.
  void Begin(uint64_t seed);
  void Set(const Settings& settings);
  int64_t moves_left() const { return moves_left_; }
  const Problem& problem() const { return problem_; }

  // The schedule at these positions.
  Planned At(const Positions& positions);
  // Relieves a schedule until it is within the pool, then trims it.
  Planned Reach(const Positions& start, double noise, bool is_quick);
  // The cheapest schedule found around one whose live bytes fit.
  Planned Refine(const Planned& start, int64_t rounds, double seconds);
  // One that fits, with less recomputed, if packing allows that.
  Planned Tightened(Planned best);

 private:
  struct Chain {
    std::vector<Step> steps;
    double estimate;
    bool stretches;
  };
  struct Variant {
    double score;
    std::vector<Edit> edits;
  };

  // The present schedule; from `most` bytes on its size only says that it is no less.
  Planned Result(int64_t most = kAnySize);
  // Relieves; where that ends, takes back what is not needed and goes on.
  bool RelieveOn(double noise);
  bool Relieve(double noise);
  // Gaps over the excess into `moves_`, with bounds on bytes per second.
  void Rank(double noise);
  double LeastCost(const Gap& gap) const;
  double Bound(const Gap& gap);
  bool Take(int64_t excess);
  bool TakeUntried(int64_t excess);
  Variant Probe(int64_t excess);
  Variant BestVariant(const Gap& gap, int64_t excess, double floor);
  Chain FindChain(const Gap& gap, double rate, double least);
  bool Swells(const Gap& gap, const Chain& chain) const;
  bool MayChain(OpId op, int32_t position, size_t steps) const;
  void Insert(const std::vector<Step>& steps, std::vector<Edit>* log);
  // Leaves the edits in `tried_`.
  double Try(const std::vector<Step>& steps, int64_t excess);
  void Trim();
  // Rematerializations, for taking them back.
  std::vector<Step> DearestFirst() const;
  bool TakeBack(const Step& step);

  void MakeRoom(const Planned& found);
  bool LeaveAndReturn(double depth);
  void TearOut(const std::vector<Step>& remats);

  const Problem problem_;
  const bool is_packed_;
  Retention state_;
  Relief relief_;
  Ranked moves_;
  SplitMix random_;
  int64_t pool_ = 0;
  int64_t room_ = 0;
  int64_t moves_left_ = 0;
  const int64_t minimum_;
  const double tiny_cost_;
  double rate_ = std::numeric_limits<double>::infinity();
  std::vector<bool> tabu_;
  // Takes gaps by their estimates, without trying them.
  bool is_quick_ = false;
  // Kept between calls for their memory.
  std::vector<int32_t> in_chain_;
  std::vector<OpId> steps_, todo_;
  std::vector<Edit> tried_;
  int32_t stamp_ = 0;
  // Per op, the bytes of its results and its workspace.
  std::vector<int64_t> needed_;
  // Per op, its inputs of bytes enough to count.
  std::vector<std::vector<ValueId>> counted_inputs_;
};

}  // namespace coop_jax

#endif  // COOP_JAX_PLANNING_NATIVE_SEARCH_H_
