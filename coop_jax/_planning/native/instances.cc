// `Retention`'s instances of values: each is alive from its step to the last read before
// the next one. An edit moves few ends: only where bytes change is booked, and has its
// peak made anew.
#include <algorithm>
#include <limits>

#include "retention.h"
#include "stretch.h"

namespace coop_jax {

// A new instance of the value, the `place`th: what comes after it reads that one.
void Retention::Begin(ValueId value, size_t place, int64_t start) {
  std::vector<Segment>& segments = segments_[value];
  const int64_t size = problem_.sizes[value];
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  const bool is_last = place == segments.size();
  const int64_t last = LastRead(value, is_last ? kNever : segments[place].first);
  if (last > start && place > 0) {
    const auto [before, stop] = segments[place - 1];
    segments[place - 1].second = std::max(before, LastRead(value, start));
    Interrupt(segments[place - 1], {start, stop}, -size);
  } else if (last > start) {
    Book({start, last}, size);
  }
  segments.insert(segments.begin() + place, {start, std::max(start, last)});
}

// No more the `place`th instance: what read that one reads the one before it.
void Retention::End(ValueId value, size_t place) {
  std::vector<Segment>& segments = segments_[value];
  const int64_t size = problem_.sizes[value];
  const Segment ended = segments[place];
  if (ended.second > ended.first && place > 0) {
    Interrupt(segments[place - 1], ended, size);
    segments[place - 1].second = ended.second;
  } else if (ended.second > ended.first) {
    Book(ended, -size);
  }
  segments.erase(segments.begin() + place);
}

void Retention::Read(ValueId value, int64_t key) {
  Segment* read = InstanceAt(value, key);
  if (read && key > read->second) MoveStop(read, key, problem_.sizes[value]);
}

void Retention::Unread(ValueId value, int64_t key) {
  Segment* read = InstanceAt(value, key);
  if (!read || key < read->second) return;
  const int64_t last = std::max(read->first, LastRead(value, key + 1));
  if (last < key) MoveStop(read, last, problem_.sizes[value]);
}

// The last read before `key`, or -1.
int64_t Retention::LastRead(ValueId value, int64_t key) const {
  const std::vector<int64_t>& reads = reads_[value];
  const auto after = std::lower_bound(reads.begin(), reads.end(), key);
  return after == reads.begin() ? -1 : *(after - 1);
}

// The instance that is read at `key`, or null.
Retention::Segment* Retention::InstanceAt(ValueId value, int64_t key) {
  std::vector<Segment>& segments = segments_[value];
  size_t after = segments.size();
  while (after > 0 && segments[after - 1].first > key) --after;
  return after > 0 ? &segments[after - 1] : nullptr;
}

// An instance is last read elsewhere. Where it begins it stays the same.
void Retention::MoveStop(Segment* segment, int64_t stop, int64_t size) {
  const auto [low, high] = std::minmax(segment->second, stop);
  if (size) {
    const int32_t first = std::max(PositionOf(segment->first) + 1, PositionOf(low));
    AddBetween(first, PositionOf(high), stop > segment->second ? size : -size);
    MarkDirty(PositionOf(low));
    MarkDirty(std::min(PositionOf(high), length_ - 1));
  }
  segment->second = stop;
}

// Between the last read of one instance and the first step of the next bytes change.
void Retention::Interrupt(const Segment& before, const Segment& next, int64_t size) {
  if (!size) return;
  const int32_t first = std::max(PositionOf(before.first) + 1, PositionOf(before.second));
  AddBetween(first, std::min(PositionOf(next.first) + 1, PositionOf(next.second)), size);
  MarkDirty(PositionOf(before.second));
}

void Retention::Book(const Segment& segment, int64_t size) {
  if (!size) return;
  const int32_t first = PositionOf(segment.first), last = PositionOf(segment.second);
  AddBetween(first + 1, last, size);
  MarkDirty(first);
  MarkDirty(std::min(last, length_ - 1));
}

// Positions [first, last) that a value is alive throughout.
void Retention::AddBetween(int32_t first, int32_t last, int64_t size) {
  if (last > first) AddToAll(&through_[first], last - first, size);
}

}  // namespace coop_jax
