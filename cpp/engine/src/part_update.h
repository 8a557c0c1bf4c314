// part_update.h: one write call's work on one part of a table, from resolving its ids to stamping their times.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "distinct_ids.h"
#include "engine/table.h"
#include "partition.h"

namespace engine {

// Lets the parts of a table through one after the other, in order of their number.
class Turnstile {
 public:
  void wait_for(std::uint32_t turn) noexcept {
    for (std::uint32_t now = next_.load(std::memory_order_acquire); now < turn;
         now = next_.load(std::memory_order_acquire)) {
      next_.wait(now, std::memory_order_acquire);
    }
  }
  // Waits for the turn, then ends it.
  void pass(std::uint32_t turn) noexcept {
    wait_for(turn);
    if (next_.load(std::memory_order_relaxed) == turn) {
      next_.store(turn + 1, std::memory_order_release);
      next_.notify_all();
    }
  }

 private:
  std::atomic<std::uint32_t> next_{0};
};

// How absent ids are treated.
struct Admission {
  bool asks_filter = false;
  std::span<const std::uint32_t> counts;  // by target; sightings behind each occurrence; empty = one each
  std::uint64_t turn = 0;                 // number of the call
  Turnstile* order = nullptr;             // deterministic tables ask the filter in order of parts
  bool ends_turn = true;                  // false: this part asks again in the same call
};

// Ends a part's turn when its work is over, however it ends.
class TurnEnd {
 public:
  TurnEnd(Turnstile* order, std::size_t part) : order_(order), number_(static_cast<std::uint32_t>(part)) {}
  ~TurnEnd() {
    if (order_ != nullptr) order_->pass(number_);
  }
  TurnEnd(const TurnEnd&) = delete;
  TurnEnd& operator=(const TurnEnd&) = delete;

 private:
  Turnstile* order_;
  std::uint32_t number_;
};

// Memory that this thread keeps for its next update; and gives it back.
std::size_t update_scratch_bytes() noexcept;
void release_update_scratch() noexcept;

class PartUpdate {
 public:
  // Locks the part for writing until destroyed.
  PartUpdate(Table& table, std::size_t part);
  ~PartUpdate();
  PartUpdate(const PartUpdate&) = delete;
  PartUpdate& operator=(const PartUpdate&) = delete;

  // Finds or makes the row of every id. `member(i)` is then the row of occurrence i.
  void resolve(const Partition::Group& group, const Admission& admission);
  // The same for the part's ids of a plan, whose rows are searched again only if rows have left since.
  void resolve(RowPlan& plan, const Admission& admission);

  [[nodiscard]] RowHandle& member(std::size_t occurrence) noexcept {
    return distinct_.handles[distinct_.numbers[occurrence]];
  }
  // Calls visit(id, handle) for every distinct id, in order of first occurrence.
  template <class Visit>
  void for_each(Visit&& visit) {
    for (std::size_t i = 0; i < distinct_.count; ++i) visit(distinct_.ids[i], distinct_.handles[i]);
  }
  [[nodiscard]] std::byte* values(const RowHandle& handle) const noexcept { return part_.rows.at(handle.row); }
  // Fetches the values of an occurrence.
  void fetch(std::size_t occurrence) noexcept {
    const RowHandle& handle = member(occurrence);
    if (handle.row != kNoRow) prefetch_row(values(handle), table_.schema().value_bytes());
  }
  // Gives a row its initial content.
  void init(std::int64_t id, const RowHandle& handle) noexcept {
    table_.schema().init(id, values(handle), part_.rows.state_at(handle.row));
  }

  // Call before changing a row that may have existed, and before stamping it.
  void preserve(std::int64_t id, const RowHandle& handle) {
    if (part_.has_preimages() && !handle.is_new) {
      table_.preserve(part_, id, handle.row, part_.rows.time(handle.row));
    }
  }

  // One optimizer step per distinct id with its summed gradient. Stamps every changed row with the job's time.
  void step(const Partition::Group& group, const GradientJob& job);

  // Replaces or makes the row of every id, whole: occurrence i takes row and time number group.targets[i]. The last
  // occurrence of an id wins. Needs neither resolve nor finish.
  void replace(const Partition::Group& group, std::span<const std::uint32_t> times, const std::byte* rows);
  void replace(const Partition::Group& group, std::span<const std::uint32_t> times, const ColumnRows& rows);

  // Stamps every changed row with the time, unless step() has done that; notes the ids as touched and removes the rows
  // that leave.
  void finish(std::optional<std::uint32_t> time_s);

 private:
  // copy(number, values, state) writes row number `number`.
  template <class Copy>
  void replace_rows(const Partition::Group& group, std::span<const std::uint32_t> times, Copy&& copy);
  void admit_absent(std::size_t absent, std::span<const std::uint32_t> targets, const Admission& admission);
  [[nodiscard]] std::uint32_t take_row();
  [[nodiscard]] std::uint32_t add_row(std::int64_t id);
  void make_rows();
  [[nodiscard]] std::size_t ask_filter(std::span<const std::uint32_t> targets, const Admission& admission);
  class Stride;
  class Backward;
  void refuse(RowHandle& handle) noexcept;
  [[nodiscard]] std::span<const std::uint32_t> sort_targets(const Partition::Group& group);
  [[nodiscard]] const RowWords* locate_rows();
  void stamp_rows(std::size_t begin, std::size_t end, std::uint32_t time_s) noexcept;

  Table& table_;
  Part& part_;
  std::size_t number_;
  std::unique_lock<SharedMutex> lock_;
  DistinctIds distinct_;
  bool all_present_ = false;  // after locate_rows(): every distinct id has a row
  bool any_leaves_ = false;   // since the last finish()
  const int exceptions_ = std::uncaught_exceptions();
};

}  // namespace engine
