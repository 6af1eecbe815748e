#include "packing.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace coop_jax {
namespace {

// Of this many bytes of the block, what a watershed saves is at least one.
constexpr int64_t kLeastGain = 100;

struct Buffer {
  int64_t size;
  // Half-open range of positions in the schedule.
  int32_t start;
  int32_t end;
  // How long it lasts for what first wrote it, and in all, in ticks of XLA's clock.
  int32_t first_duration = 0;
  int32_t duration = 0;
};

// The positions at which something takes over the bytes of a buffer, by its number.
using Takeovers = std::vector<std::pair<int32_t, int32_t>>;

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

// Sets how long the buffers last: the clock ticks with each that comes or goes, twice
// where something takes bytes over; within a step first with those that come. `steps`:
// of the schedule.
void SetDurations(const Takeovers& takeovers, int32_t steps,
                  std::vector<Buffer>* buffers) {
  // Per position, first what comes and then what goes; the last has only the latter.
  std::vector<int32_t> clock(2 * (steps + 1) + 1, 0);
  const auto coming = [&clock](int32_t at) -> int32_t& { return clock[2 * at]; };
  const auto going = [&clock](int32_t at) -> int32_t& { return clock[2 * at - 1]; };
  for (const Buffer& buffer : *buffers) {
    ++coming(buffer.start);
    ++going(buffer.end);
  }
  for (const auto& [index, at] : takeovers) coming(at) += 2;
  std::exclusive_scan(clock.begin(), clock.end(), clock.begin(), 0);
  auto next = takeovers.begin();
  for (size_t i = 0; i < buffers->size(); ++i) {
    Buffer& buffer = (*buffers)[i];
    const int32_t begin = coming(buffer.start)++;
    int32_t first = -1;
    for (; next != takeovers.end() && next->first == static_cast<int32_t>(i); ++next) {
      int32_t& time = coming(next->second);
      if (first < 0) first = time;
      time += 2;
    }
    const int32_t end = going(buffer.end)++;
    buffer.first_duration = (first < 0 ? end : first) - begin;
    buffer.duration = end - begin;
  }
}

// What the schedule needs in the pool, values in place as one buffer.
std::vector<Buffer> ScheduleBuffers(const Problem& problem,
                                    const std::vector<OpId>& schedule) {
  constexpr int32_t kNone = -1;
  const auto last_reads = LastReads(problem, schedule);
  std::vector<Buffer> found;
  std::vector<int32_t> latest(problem.sizes.size(), kNone);
  std::vector<std::pair<ValueId, ValueId>> taken;
  Takeovers takeovers;
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
        takeovers.push_back({latest[v], step});
      } else if (problem.sizes[v] > 0) {
        latest[v] = static_cast<int32_t>(found.size());
        found.push_back({problem.sizes[v], step, step + 1});
      }
    }
    for (int64_t size : op.pieces) found.push_back({size, step, step + 1});
  }
  for (size_t v = 0; v < latest.size(); ++v) {
    if (latest[v] != kNone && problem.is_output[v]) found[latest[v]].end = steps + 1;
  }
  std::sort(takeovers.begin(), takeovers.end());
  SetDurations(takeovers, steps, &found);
  return found;
}

using Chunk = std::pair<int64_t, int64_t>;  // first byte, last byte + 1

// Adds a chunk to the union of others, which is sorted and without overlaps.
void Unite(std::vector<Chunk>* chunks, Chunk added) {
  const auto first = std::lower_bound(
      chunks->begin(), chunks->end(), added.first,
      [](const Chunk& chunk, int64_t low) { return chunk.second < low; });
  auto last = first;
  for (; last != chunks->end() && last->first <= added.second; ++last) {
    added.first = std::min(added.first, last->first);
    added.second = std::max(added.second, last->second);
  }
  if (first == last) {
    chunks->insert(first, added);
  } else {
    *first = added;
    chunks->erase(first + 1, last);
  }
}

// Which bytes are taken when: a segment tree over positions. What is packed lies close
// together, so that the unions that it keeps are short.
class Occupied {
 public:
  // Forgets everything but the memory it takes.
  void Clear(int32_t positions) {
    leaves_ = 1;
    while (leaves_ < positions) leaves_ *= 2;
    if (nodes_.size() < static_cast<size_t>(2 * leaves_)) nodes_.resize(2 * leaves_);
    for (int32_t node = 1; node < 2 * leaves_; ++node) {
      nodes_[node].throughout.clear();
      nodes_[node].below.clear();
    }
  }

  void Add(const Buffer& buffer, Chunk chunk) {
    Visit(buffer, 1, 0, leaves_, [chunk](Node* node, bool is_covered) {
      Unite(&node->below, chunk);
      if (is_covered) Unite(&node->throughout, chunk);
    });
  }

  // Bytes that are taken at some time that the buffer is alive, sorted by the first.
  const std::vector<Chunk>& Beside(const Buffer& buffer) {
    found_.clear();
    ends_.assign(1, 0);
    Visit(buffer, 1, 0, leaves_, [this](Node* node, bool is_covered) {
      const std::vector<Chunk>& taken = is_covered ? node->below : node->throughout;
      if (taken.empty()) return;
      found_.insert(found_.end(), taken.begin(), taken.end());
      ends_.push_back(found_.size());
    });
    MergeRuns();
    return found_;
  }

 private:
  struct Node {
    // Taken throughout the node's positions but not its parent's; taken at any of them.
    std::vector<Chunk> throughout;
    std::vector<Chunk> below;
  };

  // Sorts what was found: runs that are sorted, two by two.
  void MergeRuns() {
    const auto is_before = [](const Chunk& a, const Chunk& b) {
      return a.first < b.first;
    };
    while (ends_.size() > 2) {
      merged_.resize(found_.size());
      size_t kept = 1;
      for (size_t run = 0; run + 1 < ends_.size(); run += 2) {
        const size_t last = std::min(run + 2, ends_.size() - 1);
        const auto first = found_.begin() + ends_[run];
        const auto middle = found_.begin() + ends_[run + 1];
        const auto end = found_.begin() + ends_[last];
        std::merge(first, middle, middle, end, merged_.begin() + ends_[run], is_before);
        ends_[kept++] = ends_[last];
      }
      ends_.resize(kept);
      found_.swap(merged_);
    }
  }

  // Calls `visit` with the nodes that the buffer covers and with those above them.
  template <class F>
  void Visit(const Buffer& buffer, int32_t node, int32_t low, int32_t high, F visit) {
    if (buffer.end <= low || high <= buffer.start) return;
    const bool is_covered = buffer.start <= low && high <= buffer.end;
    visit(&nodes_[node], is_covered);
    if (is_covered) return;
    const int32_t middle = (low + high) / 2;
    Visit(buffer, 2 * node, low, middle, visit);
    Visit(buffer, 2 * node + 1, middle, high, visit);
  }

  int32_t leaves_ = 1;
  std::vector<Node> nodes_;
  std::vector<Chunk> found_, merged_;
  // Where the runs in it end; the first begins at 0.
  std::vector<size_t> ends_;
};

// Offset of the smallest sufficient gap between chunks that are sorted.
int64_t BestGap(const std::vector<Chunk>& chunks, int64_t size) {
  int64_t best = -1, best_gap = 0, start = 0;
  for (const auto& [low, high] : chunks) {
    const int64_t gap = low - start;
    if (gap >= size && (best < 0 || gap < best_gap)) {
      best = start;
      best_gap = gap;
    }
    start = std::max(start, high);
  }
  return best < 0 ? start : best;
}

// The block's size when buffers are placed in this order, or `most` if it is no less.
int64_t Pack(const std::vector<Buffer>& buffers, const std::vector<int32_t>& order,
             int32_t positions, int64_t alignment, int64_t most) {
  // What it allocates would take longer than what it does.
  static thread_local Occupied occupied;
  occupied.Clear(positions);
  int64_t peak = 0;
  for (int32_t index : order) {
    if (peak >= most) return most;
    const Buffer& buffer = buffers[index];
    const int64_t offset = BestGap(occupied.Beside(buffer), buffer.size);
    const int64_t end = offset + buffer.size;
    peak = std::max(peak, end);
    occupied.Add(buffer, {offset, (end + alignment - 1) / alignment * alignment});
  }
  return std::min(peak, most);
}

// The first of the positions at which most bytes are alive.
int32_t Fullest(const std::vector<Buffer>& buffers, int32_t positions) {
  std::vector<int64_t> alive(positions + 1, 0);
  for (const Buffer& buffer : buffers) {
    alive[buffer.start] += buffer.size;
    alive[buffer.end] -= buffer.size;
  }
  std::partial_sum(alive.begin(), alive.end(), alive.begin());
  return static_cast<int32_t>(std::max_element(alive.begin(), alive.end()) -
                              alive.begin());
}

// The size of the block, with a watershed in front of one of these places if that is worth
// it, or `most` or more if it is no less. `steps`: of the schedule.
int64_t PackedSize(const Problem& problem, const std::vector<Buffer>& buffers,
                   size_t steps, const std::vector<int32_t>& watersheds, int64_t most) {
  const int32_t positions = static_cast<int32_t>(steps) + 1;
  std::vector<int32_t> order(buffers.size());
  const auto pack_by = [&](auto key, int64_t least) {
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return key(buffers[a]) > key(buffers[b]);
    });
    return Pack(buffers, order, positions, problem.alignment, least);
  };
  const auto by_size = [](const Buffer& buffer) {
    return std::make_tuple(buffer.size, buffer.first_duration);
  };
  const auto by_duration = [](const Buffer& buffer) {
    return std::make_tuple(buffer.duration, buffer.size);
  };
  // Of a block so large, a watershed that leaves less than `most` saves enough.
  const int64_t enough = most + most / (kLeastGain - 1) + 1;
  int64_t plain = pack_by(by_size, watersheds.empty() ? most : enough);
  if (problem.has_durations) plain = pack_by(by_duration, plain);
  const int64_t too_much = std::min(plain - plain / kLeastGain + 1, most);
  int64_t least = too_much;
  for (const int32_t watershed : watersheds) {
    const auto across_first = [&](const Buffer& buffer) {
      const bool crosses = buffer.start < watershed && watershed < buffer.end;
      return std::tuple_cat(std::make_tuple(crosses), by_duration(buffer));
    };
    least = pack_by(across_first, least);
  }
  return least < too_much ? least : plain;
}

}  // namespace

int64_t PackedSize(const Problem& problem, const std::vector<OpId>& schedule,
                   int64_t most) {
  const std::vector<Buffer> buffers = ScheduleBuffers(problem, schedule);
  std::vector<int32_t> watersheds;
  if (problem.has_watershed) {
    const int32_t fullest = Fullest(buffers, static_cast<int32_t>(schedule.size()) + 1);
    watersheds = {fullest, fullest + 1};
  }
  return PackedSize(problem, buffers, schedule.size(), watersheds, most);
}

int64_t PackedSize(const Problem& problem, const std::vector<OpId>& schedule,
                   const std::vector<int32_t>& watersheds) {
  return PackedSize(problem, ScheduleBuffers(problem, schedule), schedule.size(),
                    watersheds, kAnySize);
}

}  // namespace coop_jax
