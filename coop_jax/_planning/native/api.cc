// What Python calls (native_search.py, min_cut.py). Arrays belong to the caller but for those of a
// result, which stay until the next call.
#include <cstdint>
#include <memory>

#include "min_cut.h"
#include "packing.h"
#include "search.h"

#define COOP_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using coop_jax::Planned;
using coop_jax::Positions;
using coop_jax::Problem;
using coop_jax::ValueId;

// Row i of a ragged table is flat[offsets[i]] to flat[offsets[i + 1]].
struct Ragged {
  const int64_t* offsets;
  const int32_t* flat;

  std::vector<int32_t> Row(int64_t i) const {
    return {flat + offsets[i], flat + offsets[i + 1]};
  }
};

struct ProblemArrays {
  int64_t ops;
  int64_t values;
  Ragged inputs;
  Ragged outputs;
  // Source and target in turn.
  Ragged in_place;
  const double* costs;
  const int64_t* workspaces;
  // Per op, where its pieces begin, and all of them.
  const int64_t* piece_offsets;
  const int64_t* pieces;
  const int32_t* is_fixed;
  const int32_t* deadlines;
  const int32_t* producers;
  const int64_t* sizes;
  const int32_t* is_output;
  int64_t alignment;
  int64_t has_watershed;
  int64_t has_durations;
  double cost;
  double once;
};

struct PlannedArrays {
  Ragged positions;
  int64_t peak;
  int64_t size;
  double cost;
  int64_t fits;
};

struct Limits {
  int64_t pool;
  int64_t moves_left;
};

Problem ReadProblem(const ProblemArrays& arrays) {
  Problem problem;
  for (int64_t k = 0; k < arrays.ops; ++k) {
    coop_jax::Op op;
    op.inputs = arrays.inputs.Row(k);
    op.outputs = arrays.outputs.Row(k);
    const std::vector<int32_t> pairs = arrays.in_place.Row(k);
    for (size_t i = 0; i < pairs.size(); i += 2) {
      op.in_place.push_back({pairs[i], pairs[i + 1]});
    }
    op.cost = arrays.costs[k];
    op.workspace = arrays.workspaces[k];
    op.pieces.assign(arrays.pieces + arrays.piece_offsets[k],
                     arrays.pieces + arrays.piece_offsets[k + 1]);
    op.is_fixed = arrays.is_fixed[k];
    op.deadline = arrays.deadlines[k];
    problem.ops.push_back(std::move(op));
  }
  problem.producer.assign(arrays.producers, arrays.producers + arrays.values);
  problem.sizes.assign(arrays.sizes, arrays.sizes + arrays.values);
  problem.is_output.assign(arrays.is_output, arrays.is_output + arrays.values);
  for (coop_jax::Op& op : problem.ops) {
    for (const std::vector<ValueId>* values : {&op.inputs, &op.outputs}) {
      for (ValueId v : *values) {
        if (problem.sizes[v]) op.sized.push_back(v);
      }
    }
    for (ValueId v : op.inputs) {
      if (problem.producer[v] >= 0) op.producers.push_back(problem.producer[v]);
    }
  }
  problem.alignment = arrays.alignment;
  problem.has_watershed = arrays.has_watershed != 0;
  problem.has_durations = arrays.has_durations != 0;
  problem.cost = arrays.cost;
  problem.once = arrays.once;
  return problem;
}

class Session {
 public:
  Session(Problem problem, bool is_packed) : search_(std::move(problem), is_packed) {}

  void Begin(uint64_t seed) { search_.Begin(seed); }

  // Runs one call of the search within the limits and hands out what it found.
  template <class F>
  void Run(Limits* limits, const PlannedArrays& given, PlannedArrays* out, F call) {
    search_.Set({limits->pool, limits->moves_left});
    Planned start;
    for (int32_t k = 0; k < search_.problem().length(); ++k) {
      start.positions.push_back(given.positions.Row(k));
    }
    start.peak = given.peak;
    start.size = given.size;
    start.cost = given.cost;
    start.fits = given.fits;
    const Planned found = call(&search_, start);
    limits->moves_left = search_.moves_left();
    offsets_ = {0};
    flat_.clear();
    for (const std::vector<int32_t>& runs : found.positions) {
      flat_.insert(flat_.end(), runs.begin(), runs.end());
      offsets_.push_back(static_cast<int64_t>(flat_.size()));
    }
    *out = {{offsets_.data(), flat_.data()}, found.peak, found.size, found.cost,
            found.fits};
  }

 private:
  coop_jax::Search search_;
  std::vector<int64_t> offsets_;
  std::vector<int32_t> flat_;
};

}  // namespace

// To be raised with every change to what Python passes, and in library.py.
COOP_EXPORT int64_t coop_jax_planner_interface() { return 7; }

COOP_EXPORT void* coop_jax_search_open(const ProblemArrays* arrays, int32_t is_packed) {
  return std::make_unique<Session>(ReadProblem(*arrays), is_packed).release();
}

COOP_EXPORT void coop_jax_search_close(void* session) {
  delete static_cast<Session*>(session);
}

COOP_EXPORT void coop_jax_search_begin(void* session, uint64_t seed) {
  static_cast<Session*>(session)->Begin(seed);
}

COOP_EXPORT void coop_jax_search_at(void* session, Limits* limits,
                                    const PlannedArrays* start, PlannedArrays* found) {
  static_cast<Session*>(session)->Run(
      limits, *start, found, [](coop_jax::Search* search, const Planned& start) {
        return search->At(start.positions);
      });
}

COOP_EXPORT void coop_jax_search_reach(void* session, Limits* limits,
                                       const PlannedArrays* start, double noise,
                                       int32_t is_quick, PlannedArrays* found) {
  static_cast<Session*>(session)->Run(
      limits, *start, found,
      [noise, is_quick](coop_jax::Search* search, const Planned& start) {
        return search->Reach(start.positions, noise, is_quick);
      });
}

COOP_EXPORT void coop_jax_search_refine(void* session, Limits* limits,
                                        const PlannedArrays* start, int64_t rounds,
                                        double seconds, PlannedArrays* found) {
  static_cast<Session*>(session)->Run(
      limits, *start, found,
      [rounds, seconds](coop_jax::Search* search, const Planned& start) {
        return search->Refine(start, rounds, seconds);
      });
}

COOP_EXPORT void coop_jax_search_tightened(void* session, Limits* limits,
                                           const PlannedArrays* start,
                                           PlannedArrays* found) {
  static_cast<Session*>(session)->Run(
      limits, *start, found, [](coop_jax::Search* search, const Planned& start) {
        return search->Tightened(start);
      });
}

COOP_EXPORT int64_t coop_jax_packed_size(const ProblemArrays* arrays,
                                         const int32_t* schedule, int64_t steps,
                                         const int32_t* watersheds, int64_t count) {
  return coop_jax::PackedSize(ReadProblem(*arrays), {schedule, schedule + steps},
                              std::vector<int32_t>(watersheds, watersheds + count));
}

// A capacity is high * 2^32 + low. `side` gets a 1 for each node on the source's side.
COOP_EXPORT void coop_jax_min_cut(int32_t nodes, int64_t edges, const int32_t* starts,
                                  const int32_t* ends, const int64_t* high,
                                  const uint32_t* low, int32_t source, int32_t sink,
                                  uint8_t* side) {
  std::vector<coop_jax::FlowEdge> network;
  for (int64_t i = 0; i < edges; ++i) {
    const auto capacity = (coop_jax::Capacity{high[i]} << 32) + low[i];
    network.push_back({starts[i], ends[i], capacity});
  }
  const auto found = coop_jax::SourceSide(nodes, network, source, sink);
  for (int32_t node = 0; node < nodes; ++node) side[node] = found[node];
}
