#include "retention.h"

#include <algorithm>
#include <numeric>

#include "stretch.h"

namespace coop_jax {
namespace {

template <class T>
bool Contains(const std::vector<T>& sorted, T item) {
  return std::binary_search(sorted.begin(), sorted.end(), item);
}

template <class T>
void InsertSorted(std::vector<T>* sorted, T item) {
  sorted->insert(std::upper_bound(sorted->begin(), sorted->end(), item), item);
}

template <class T>
void EraseSorted(std::vector<T>* sorted, T item) {
  sorted->erase(std::lower_bound(sorted->begin(), sorted->end(), item));
}

// The first of disjoint stretches, in their order, that does not end before `key`.
template <class T>
auto FirstEnding(const std::vector<T>& stretches, int64_t key) {
  return std::partition_point(stretches.begin(), stretches.end(),
                              [key](const T& one) { return one.second < key; });
}

int BitsOf(int32_t number) {
  int bits = 0;
  while (number >> bits) ++bits;
  return bits;
}

}  // namespace

std::vector<OpId> ScheduleOf(const Positions& positions) {
  std::vector<std::vector<OpId>> groups(positions.size());
  for (size_t op = 0; op < positions.size(); ++op) {
    for (int32_t position : positions[op]) {
      groups[position].push_back(static_cast<OpId>(op));
    }
  }
  std::vector<OpId> schedule;
  for (const std::vector<OpId>& group : groups) {
    schedule.insert(schedule.end(), group.begin(), group.end());
  }
  return schedule;
}

Retention::Retention(const Problem& problem)
    : problem_(problem),
      length_(problem.length()),
      op_bits_(BitsOf(length_)),
      runs_(length_),
      first_run_(length_),
      groups_(length_),
      reads_(problem.sizes.size()),
      segments_(problem.sizes.size()),
      cost_(problem.cost),
      bytes_at_(length_),
      through_(length_),
      local_(length_),
      dirty_(length_),
      is_dirty_(length_, true),
      first_changed_(0),
      last_changed_(length_),
      place_(length_),
      seen_(problem.sizes.size()) {
  std::iota(dirty_.begin(), dirty_.end(), 0);
  for (OpId k = 0; k < length_; ++k) {
    runs_[k] = {k};
    first_run_[k] = k;
    groups_[k] = {k};
    for (ValueId v : problem.ops[k].inputs) reads_[v].push_back(Key(k, k));
  }
  for (size_t v = 0; v < problem.sizes.size(); ++v) {
    if (problem.producer[v] < 0) continue;
    if (problem.is_output[v]) reads_[v].push_back(Key(0, length_));
    Begin(static_cast<ValueId>(v), 0, Key(problem.producer[v], problem.producer[v]));
  }
}

const std::vector<int64_t>& Retention::bytes_at() {
  Flush();
  return bytes_at_;
}

bool Retention::MayRun(OpId op, int32_t position) const {
  const Op& spec = problem_.ops[op];
  if (spec.is_fixed || position <= op || position > spec.deadline) return false;
  if (Contains(runs_[op], position)) return false;
  for (OpId producer : spec.producers) {
    const int32_t first = first_run_[producer];
    if (first > position || (first == position && producer > op)) return false;
  }
  return true;
}

int64_t Retention::LastAlive(ValueId value, int32_t position, OpId op) const {
  const int64_t key = Key(op, position);
  int64_t end = -1;
  for (const auto& [start, stop] : segments_[value]) {
    if (start >= key) break;
    end = stop;
  }
  return end < 0 ? -1 : PositionOf(end);
}

int64_t Retention::Overload(int64_t budget) {
  Flush();
  if (budget != budget_) {
    budget_ = budget;
    overload_ = 0;
    for (int64_t bytes : bytes_at_) overload_ += std::max<int64_t>(bytes - budget, 0);
  }
  return overload_;
}

int64_t Retention::Peak() {
  Flush();
  int64_t peak = 0;
  for (int64_t bytes : bytes_at_) peak = std::max(peak, bytes);
  return peak;
}

std::vector<Gap> Retention::Gaps(int64_t minimum) const {
  std::vector<Gap> found;
  for (size_t v = 0; v < segments_.size(); ++v) {
    const OpId producer = problem_.producer[v];
    if (producer < 0 || problem_.sizes[v] < minimum) continue;
    const Op& op = problem_.ops[producer];
    if (op.is_fixed) continue;
    const int32_t last = std::min(op.deadline, length_ - 1);
    const std::vector<int64_t>& reads = reads_[v];
    auto read = reads.begin();
    for (const auto& [start, stop] : segments_[v]) {
      int32_t before = PositionOf(start);
      read = std::upper_bound(read, reads.end(), start);
      for (; read != reads.end() && *read <= stop; ++read) {
        const int32_t at = PositionOf(*read);
        if (at > before + 1 && at <= last) {
          found.push_back({static_cast<ValueId>(v), before, at});
        }
        before = at;
      }
    }
  }
  return found;
}

std::vector<Step> Retention::Remats() const {
  std::vector<Step> found;
  for (OpId op = 0; op < length_; ++op) {
    for (size_t i = 1; i < runs_[op].size(); ++i) found.push_back({op, runs_[op][i]});
  }
  return found;
}

bool Retention::HasRemats() const {
  return std::any_of(runs_.begin(), runs_.end(),
                     [](const auto& runs) { return runs.size() > 1; });
}

bool Retention::IsRemat(Step step) const {
  const std::vector<int32_t>& runs = runs_[step.op];
  return runs[0] != step.position && Contains(runs, step.position);
}

void Retention::Insert(OpId op, int32_t position, std::vector<Edit>* log) {
  Apply({op, position, true});
  log->push_back({op, position, true});
}

void Retention::Remove(OpId op, int32_t position, std::vector<Edit>* log) {
  if (position == op) return;
  if (first_run_[op] == position) RunAtHome(op, log);
  Delete(op, position, log);
  Sweep(problem_.ops[op].producers, log);
}

void Retention::Sweep(std::vector<OpId> todo, std::vector<Edit>* log) {
  while (!todo.empty()) {
    const OpId op = todo.back();
    todo.pop_back();
    if (problem_.ops[op].is_fixed || runs_[op].size() < 2) continue;
    const std::vector<int32_t> runs = runs_[op];
    for (int32_t position : runs) {
      if (runs_[op].size() < 2 || !IsUnread(op, position)) continue;
      Delete(op, position, log);
      const std::vector<OpId>& producers = problem_.ops[op].producers;
      todo.insert(todo.end(), producers.begin(), producers.end());
    }
  }
}

void Retention::Undo(std::vector<Edit>* log) {
  const bool was_flushed = dirty_.empty() && !log->empty();
  for (auto edit = log->rbegin(); edit != log->rend(); ++edit) {
    Apply({edit->op, edit->position, !edit->is_added});
  }
  log->clear();
  if (!was_flushed) return;
  for (int32_t position : dirty_) is_dirty_[position] = false;
  dirty_.clear();
  for (const auto& [position, bytes] : flushed_) local_[position] = bytes;
  SumUp();
}

void Retention::Redo(const std::vector<Edit>& log) {
  for (const Edit& edit : log) Apply(edit);
}

void Retention::Restore(const Positions& wanted) {
  for (OpId op = 0; op < length_; ++op) {
    const std::vector<int32_t> present = runs_[op];
    if (present == wanted[op]) continue;
    for (int32_t position : present) {
      if (!Contains(wanted[op], position)) Apply({op, position, false});
    }
    for (int32_t position : wanted[op]) {
      if (!Contains(present, position)) Apply({op, position, true});
    }
  }
  cost_ = problem_.once;
  for (OpId op = 0; op < length_; ++op) {
    cost_ += problem_.ops[op].cost * static_cast<double>(runs_[op].size());
  }
  Flush();  // what is undone next is undone to here
}

void Retention::Flush() {
  if (dirty_.empty()) return;
  flushed_.clear();
  for (int32_t position : dirty_) {
    flushed_.push_back({position, local_[position]});
    local_[position] = GroupPeak(position);
    is_dirty_[position] = false;
  }
  dirty_.clear();
  SumUp();
}

void Retention::SumUp() {
  const int32_t count = last_changed_ - first_changed_, at = first_changed_;
  if (count > 0) {
    overload_ += PutSums(&through_[at], &local_[at], &bytes_at_[at], count, budget_);
  }
  first_changed_ = length_;
  last_changed_ = 0;
}

void Retention::MarkDirty(int32_t position) {
  // Between positions that are marked lie all whose bytes change.
  first_changed_ = std::min(first_changed_, position);
  last_changed_ = std::max(last_changed_, position + 1);
  if (is_dirty_[position]) return;
  is_dirty_[position] = true;
  dirty_.push_back(position);
}

void Retention::RunAtHome(OpId op, std::vector<Edit>* log) {
  std::vector<OpId> todo = {op};
  while (!todo.empty()) {
    const OpId k = todo.back();
    todo.pop_back();
    if (first_run_[k] == k) continue;
    Insert(k, k, log);
    for (ValueId v : problem_.ops[k].inputs) {
      const OpId p = problem_.producer[v];
      if (p >= 0 && Key(p, first_run_[p]) > Key(k, k)) todo.push_back(p);
    }
  }
}

void Retention::Delete(OpId op, int32_t position, std::vector<Edit>* log) {
  Apply({op, position, false});
  log->push_back({op, position, false});
}

bool Retention::IsUnread(OpId op, int32_t position) const {
  const int64_t key = Key(op, position);
  for (ValueId v : problem_.ops[op].outputs) {
    for (const auto& [start, stop] : segments_[v]) {
      if (start == key && stop != key) return false;
    }
  }
  return true;
}

void Retention::Apply(const Edit& edit) {
  const Op& spec = problem_.ops[edit.op];
  const int64_t key = Key(edit.op, edit.position);
  std::vector<int32_t>& runs = runs_[edit.op];
  const auto at = std::lower_bound(runs.begin(), runs.end(), edit.position);
  const size_t place = at - runs.begin();
  if (edit.is_added) {
    runs.insert(at, edit.position);
    InsertSorted(&groups_[edit.position], edit.op);
    cost_ += spec.cost;
  } else {
    runs.erase(at);
    EraseSorted(&groups_[edit.position], edit.op);
    cost_ -= spec.cost;
  }
  if (!runs.empty()) first_run_[edit.op] = runs[0];
  MarkDirty(edit.position);
  for (ValueId v : spec.outputs) {
    if (edit.is_added) {
      Begin(v, place, key);
    } else {
      End(v, place);
    }
  }
  for (ValueId v : spec.inputs) {
    if (problem_.producer[v] < 0) continue;
    if (edit.is_added) {
      InsertSorted(&reads_[v], key);
      Read(v, key);
    } else {
      EraseSorted(&reads_[v], key);
      Unread(v, key);
    }
  }
}

// Peak of the values that begin or end while `position` runs.
int64_t Retention::GroupPeak(int32_t position) {
  const std::vector<OpId>& group = groups_[position];
  const int64_t low = Key(0, position), high = Key(0, position + 1);
  born_.assign(group.size(), 0);
  dying_.assign(group.size(), 0);
  for (size_t i = 0; i < group.size(); ++i) place_[group[i]] = static_cast<int32_t>(i);
  const auto index = [&](int64_t key) { return place_[key - low]; };
  ++stamp_;
  int64_t live = 0;
  for (OpId k : group) {
    for (ValueId v : problem_.ops[k].sized) {
      if (seen_[v] == stamp_) continue;
      seen_[v] = stamp_;
      const int64_t size = problem_.sizes[v];
      const std::vector<Segment>& segments = segments_[v];
      for (auto one = FirstEnding(segments, low); one != segments.end(); ++one) {
        const auto [start, stop] = *one;
        if (start >= high) break;
        if (start >= low) {
          born_[index(start)] += size;
        } else if (stop < high) {
          live += size;
        }
        if (stop < high) dying_[index(stop)] += size;
      }
    }
  }
  int64_t peak = live;
  for (size_t i = 0; i < group.size(); ++i) {
    const bool is_shared = born_[i] && dying_[i];
    const int64_t shared = is_shared ? HandedOver(group[i], low + group[i]) : 0;
    const int64_t during = live + born_[i] - shared;
    peak = std::max(peak, during + problem_.ops[group[i]].workspace);
    live += born_[i] - dying_[i];
  }
  return peak;
}

// Bytes that outputs of this step take over from inputs that die here.
int64_t Retention::HandedOver(OpId op, int64_t key) {
  const auto& pairs = problem_.ops[op].in_place;
  int64_t shared = 0;
  taken_.clear();
  for (const auto& [source, target] : pairs) {
    const auto is_taken = [&](ValueId v) {
      return std::find(taken_.begin(), taken_.end(), v) != taken_.end();
    };
    if (is_taken(source) || is_taken(target)) continue;
    const auto& segments = segments_[source];
    const auto ending = FirstEnding(segments, key);
    if (ending != segments.end() && ending->second == key) {
      shared += problem_.sizes[target];
      taken_.push_back(source);
      taken_.push_back(target);
    }
  }
  return shared;
}

}  // namespace coop_jax
