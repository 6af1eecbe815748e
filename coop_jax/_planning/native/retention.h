// Which values are alive when, kept up to date while recomputations come and go.
//
// The same class as in retention.py, where the words are explained. That one makes the
// instances of a value anew with each edit, this one moves their ends (instances.cc): both
// give the same answers to the last bit, and tests hold them to it.
#ifndef COOP_JAX_PLANNING_NATIVE_RETENTION_H_
#define COOP_JAX_PLANNING_NATIVE_RETENTION_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "problem.h"

namespace coop_jax {

// An op and the position it runs at.
struct Step {
  OpId op;
  int32_t position;

  bool operator==(const Step& other) const {
    return op == other.op && position == other.position;
  }
};

// One step added to or removed from the schedule.
struct Edit {
  OpId op;
  int32_t position;
  bool is_added;
};

// A value kept from position `start` to `end` without being read between.
struct Gap {
  ValueId value;
  int32_t start;
  int32_t end;
};

class Retention {
 public:
  explicit Retention(const Problem& problem);

  const Problem& problem() const { return problem_; }
  const Positions& runs() const { return runs_; }
  double cost() const { return cost_; }
  // The peak while each position runs, bytes.
  const std::vector<int64_t>& bytes_at();

  bool MayRun(OpId op, int32_t position) const;
  int64_t LastAlive(ValueId value, int32_t position, OpId op) const;
  int64_t Overload(int64_t budget);
  int64_t Peak();
  std::vector<Gap> Gaps(int64_t minimum) const;
  std::vector<Step> Remats() const;
  bool HasRemats() const;
  bool IsRemat(Step step) const;

  void Insert(OpId op, int32_t position, std::vector<Edit>* log);
  void Remove(OpId op, int32_t position, std::vector<Edit>* log);
  void Sweep(std::vector<OpId> ops, std::vector<Edit>* log);
  // Takes back a log that was begun with everything summed up, by `Overload` or `Peak`,
  // and not in between: what was summed up before it holds again, and is not made anew.
  void Undo(std::vector<Edit>* log);
  void Redo(const std::vector<Edit>& log);
  void Restore(const Positions& wanted);

 private:
  using Segment = std::pair<int64_t, int64_t>;

  int64_t Key(OpId op, int32_t position) const {
    return (static_cast<int64_t>(position) << op_bits_) + op;
  }
  int32_t PositionOf(int64_t key) const { return static_cast<int32_t>(key >> op_bits_); }
  void Flush();
  void SumUp();
  void MarkDirty(int32_t position);
  void RunAtHome(OpId op, std::vector<Edit>* log);
  void Delete(OpId op, int32_t position, std::vector<Edit>* log);
  bool IsUnread(OpId op, int32_t position) const;
  void Apply(const Edit& edit);
  void Begin(ValueId value, size_t place, int64_t start);
  void End(ValueId value, size_t place);
  void Read(ValueId value, int64_t key);
  void Unread(ValueId value, int64_t key);
  int64_t LastRead(ValueId value, int64_t key) const;
  Segment* InstanceAt(ValueId value, int64_t key);
  void MoveStop(Segment* segment, int64_t stop, int64_t size);
  void Interrupt(const Segment& before, const Segment& next, int64_t size);
  void Book(const Segment& segment, int64_t size);
  void AddBetween(int32_t first, int32_t last, int64_t size);
  int64_t GroupPeak(int32_t position);
  int64_t HandedOver(OpId op, int64_t key);

  const Problem& problem_;
  const int32_t length_;
  // Bits of a key that hold an op, or the number of ops.
  const int op_bits_;
  Positions runs_;
  // The first of each op's runs.
  std::vector<int32_t> first_run_;
  std::vector<std::vector<OpId>> groups_;
  std::vector<std::vector<int64_t>> reads_;
  std::vector<std::vector<Segment>> segments_;
  double cost_;
  std::vector<int64_t> bytes_at_;
  std::vector<int64_t> through_;
  std::vector<int64_t> local_;
  std::vector<int32_t> dirty_;
  std::vector<bool> is_dirty_;
  // Positions [first, last) whose bytes may have changed since they were summed up.
  int32_t first_changed_;
  int32_t last_changed_;
  // Positions of the last flush, and what was in `local_` before.
  std::vector<std::pair<int32_t, int64_t>> flushed_;
  // What is over the budget last asked for.
  int64_t budget_ = 0;
  int64_t overload_ = 0;
  // Kept between calls for their memory.
  std::vector<int64_t> born_, dying_;
  std::vector<int32_t> place_;
  std::vector<ValueId> taken_;
  std::vector<int32_t> seen_;
  int32_t stamp_ = 0;
};

}  // namespace coop_jax

#endif  // COOP_JAX_PLANNING_NATIVE_RETENTION_H_
