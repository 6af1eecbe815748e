// The nodes on the source's side of a minimum cut, as in min_cut.py.
#include "min_cut.h"

#include <algorithm>

namespace coop_jax {
namespace {

class FlowNetwork {
 public:
  explicit FlowNetwork(int32_t nodes) : edges_(nodes) {}

  void Add(int32_t start, int32_t end, Capacity capacity) {
    AddHalf(start, end, capacity);
    AddHalf(end, start, 0);
  }

  // Per node, its distance from the source along edges with capacity left, or -1.
  std::vector<int32_t> Levels(int32_t source) const {
    std::vector<int32_t> level(edges_.size(), -1), queue = {source};
    level[source] = 0;
    for (size_t head = 0; head < queue.size(); ++head) {
      const int32_t node = queue[head];
      for (int32_t edge : edges_[node]) {
        const int32_t target = target_[edge];
        if (capacity_[edge] == 0 || level[target] >= 0) continue;
        level[target] = level[node] + 1;
        queue.push_back(target);
      }
    }
    return level;
  }

  // Pushes flow along shortest paths until each has a full edge.
  void Saturate(int32_t source, int32_t sink, const std::vector<int32_t>& level) {
    std::vector<size_t> tried(edges_.size(), 0);
    std::vector<int32_t> path;
    int32_t node = source;
    while (true) {
      if (node == sink) {
        Push(path);
        path.clear();
        node = source;
      }
      for (; tried[node] < edges_[node].size(); ++tried[node]) {
        const int32_t edge = edges_[node][tried[node]];
        if (capacity_[edge] && level[target_[edge]] == level[node] + 1) break;
      }
      if (tried[node] < edges_[node].size()) {
        path.push_back(edges_[node][tried[node]]);
        node = target_[path.back()];
      } else if (node == source) {
        return;
      } else {
        node = target_[path.back() ^ 1];
        path.pop_back();
        ++tried[node];
      }
    }
  }

 private:
  void AddHalf(int32_t start, int32_t end, Capacity capacity) {
    edges_[start].push_back(static_cast<int32_t>(target_.size()));
    target_.push_back(end);
    capacity_.push_back(capacity);
  }

  void Push(const std::vector<int32_t>& path) {
    Capacity amount = capacity_[path[0]];
    for (int32_t edge : path) amount = std::min(amount, capacity_[edge]);
    for (int32_t edge : path) {
      capacity_[edge] -= amount;
      capacity_[edge ^ 1] += amount;
    }
  }

  std::vector<std::vector<int32_t>> edges_;
  std::vector<int32_t> target_;
  std::vector<Capacity> capacity_;
};

}  // namespace

std::vector<bool> SourceSide(int32_t nodes, const std::vector<FlowEdge>& edges,
                             int32_t source, int32_t sink) {
  FlowNetwork network(nodes);
  for (const FlowEdge& edge : edges) network.Add(edge.start, edge.end, edge.capacity);
  std::vector<int32_t> level = network.Levels(source);
  while (level[sink] >= 0) {
    network.Saturate(source, sink, level);
    level = network.Levels(source);
  }
  std::vector<bool> side;
  for (int32_t distance : level) side.push_back(distance >= 0);
  return side;
}

}  // namespace coop_jax
