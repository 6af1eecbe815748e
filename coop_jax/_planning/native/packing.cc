#include "packing.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace coop_jax {
namespace {

struct Buffer {
  int64_t size;
  // Half-open range of positions in the schedule.
  int32_t start;
  int32_t end;
};

// Per step and input, whether this is the last read of the instance.
std::vector<std::vector<bool>> LastReads(const Problem& problem,
                                         const std::vector<OpId>& schedule) {
  std::vector<std::vector<bool>> found(schedule.size());
  std::vector<bool> is_wanted = problem.is_output;
  for (size_t step = schedule.size(); step-- > 0;) {
    const Op& op = problem.ops[schedule[step]];
    for (ValueId v : op.outputs) is_wanted[v] = false;
    found[step].resize(op.inputs.size());
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      found[step][i] = !is_wanted[op.inputs[i]];
      is_wanted[op.inputs[i]] = true;
    }
  }
  return found;
}

// What the schedule needs in the pool, values in place as one buffer.
std::vector<Buffer> ScheduleBuffers(const Problem& problem,
                                    const std::vector<OpId>& schedule) {
  constexpr int32_t kNone = -1;
  const auto last_reads = LastReads(problem, schedule);
  std::vector<Buffer> found;
  std::vector<int32_t> latest(problem.sizes.size(), kNone);
  std::vector<std::pair<ValueId, ValueId>> taken;
  const int32_t steps = static_cast<int32_t>(schedule.size());
  for (int32_t step = 0; step < steps; ++step) {
    const Op& op = problem.ops[schedule[step]];
    for (ValueId v : op.inputs) {
      if (latest[v] != kNone) found[latest[v]].end = step + 1;
    }
    taken.clear();
    for (const auto& [source, target] : op.in_place) {
      const auto input = std::find(op.inputs.begin(), op.inputs.end(), source);
      const bool is_dead = latest[source] != kNone && input != op.inputs.end() &&
                           last_reads[step][input - op.inputs.begin()];
      const bool is_first = std::none_of(
          taken.begin(), taken.end(), [source = source, target = target](auto pair) {
            return pair.first == source || pair.second == target;
          });
      if (is_dead && is_first && problem.sizes[source] == problem.sizes[target]) {
        taken.push_back({source, target});
      }
    }
    for (ValueId v : op.outputs) {
      const auto pair = std::find_if(taken.begin(), taken.end(),
                                     [v](auto pair) { return pair.second == v; });
      if (pair != taken.end()) {
        latest[v] = latest[pair->first];
        latest[pair->first] = kNone;
      } else if (problem.sizes[v] > 0) {
        latest[v] = static_cast<int32_t>(found.size());
        found.push_back({problem.sizes[v], step, step + 1});
      }
    }
    if (op.workspace) found.push_back({op.workspace, step, step + 1});
  }
  for (size_t v = 0; v < latest.size(); ++v) {
    if (latest[v] != kNone && problem.is_output[v]) found[latest[v]].end = steps + 1;
  }
  return found;
}

// Placed buffers by when they are alive. A buffer is found by the position it starts
// at, and in the nodes of a segment tree that together cover its range.
class Placed {
 public:
  Placed(const std::vector<Buffer>& buffers, int32_t positions)
      : buffers_(buffers), starts_(positions) {
    while (leaves_ < positions) leaves_ *= 2;
    covers_.resize(2 * leaves_);
  }

  void Add(int32_t index) {
    const Buffer& buffer = buffers_[index];
    starts_[buffer.start].push_back(index);
    int32_t low = buffer.start + leaves_, high = buffer.end + leaves_;
    for (; low < high; low /= 2, high /= 2) {
      if (low % 2) covers_[low++].push_back(index);
      if (high % 2) covers_[--high].push_back(index);
    }
  }

  // Calls `visit` with each buffer that is alive together with this one.
  template <class F>
  void VisitOverlapping(const Buffer& buffer, F visit) const {
    for (int32_t node = buffer.start + leaves_; node > 0; node /= 2) {
      for (int32_t index : covers_[node]) visit(index);
    }
    for (int32_t position = buffer.start + 1; position < buffer.end; ++position) {
      for (int32_t index : starts_[position]) visit(index);
    }
  }

 private:
  const std::vector<Buffer>& buffers_;
  int32_t leaves_ = 1;
  std::vector<std::vector<int32_t>> starts_;
  std::vector<std::vector<int32_t>> covers_;
};

using Chunk = std::pair<int64_t, int64_t>;  // first byte, last byte + 1

// Offset of the smallest sufficient gap between chunks that are sorted.
int64_t BestGap(const std::vector<Chunk>& chunks, int64_t size, int64_t alignment) {
  int64_t best = -1, best_gap = 0, start = 0, high = 0;
  for (const auto& [low, end] : chunks) {
    const int64_t gap = low - start;
    if (gap >= size && (best < 0 || gap < best_gap)) {
      best = start;
      best_gap = gap;
    }
    // A chunk may end below one that began before it, so keep the highest so far.
    high = std::max(high, end);
    start = (high + alignment - 1) / alignment * alignment;
  }
  return best < 0 ? start : best;
}

// The block's size when buffers are placed in this order.
int64_t Pack(const std::vector<Buffer>& buffers, const std::vector<int32_t>& order,
             int32_t positions, int64_t alignment) {
  std::vector<int64_t> offsets(buffers.size());
  Placed placed(buffers, positions);
  std::vector<Chunk> chunks;
  int64_t peak = 0;
  for (int32_t index : order) {
    const Buffer& buffer = buffers[index];
    chunks.clear();
    placed.VisitOverlapping(buffer, [&](int32_t other) {
      chunks.push_back({offsets[other], offsets[other] + buffers[other].size});
    });
    std::sort(chunks.begin(), chunks.end());
    offsets[index] = BestGap(chunks, buffer.size, alignment);
    peak = std::max(peak, offsets[index] + buffer.size);
    placed.Add(index);
  }
  return peak;
}

}  // namespace

int64_t PackedSize(const Problem& problem, const std::vector<OpId>& schedule) {
  const std::vector<Buffer> buffers = ScheduleBuffers(problem, schedule);
  const int32_t positions = static_cast<int32_t>(schedule.size()) + 1;
  std::vector<int32_t> order(buffers.size());
  const auto pack_by = [&](auto key) {
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return key(buffers[a]) > key(buffers[b]);
    });
    return Pack(buffers, order, positions, problem.alignment);
  };
  const int64_t spatial = pack_by([](const Buffer& buffer) {
    return std::make_tuple(buffer.size, buffer.end - buffer.start);
  });
  const int64_t temporal = pack_by([](const Buffer& buffer) {
    return std::make_tuple(buffer.end - buffer.start, buffer.size);
  });
  return std::min(spatial, temporal);
}

}  // namespace coop_jax
