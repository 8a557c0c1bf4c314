// part_update.h: one write call's work on one part of a table, from resolving its ids to stamping their times.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "engine/table.h"
#include "partition.h"

namespace engine {

inline constexpr std::uint32_t kNoRow = 0xFFFFFFFFU;

// An id of the call, once, with everything later passes need: they never touch the index again.
struct UniqueId {
  std::int64_t id;
  Slot slot;
  std::uint32_t row;     // kNoRow: not admitted
  std::uint32_t time;    // the row's time before the call
  std::uint32_t count;   // occurrences in the call
  std::uint32_t target;  // of the first occurrence
  std::uint32_t sum;     // place in the gradient sums, when count > 1
  bool is_new;
  bool leaves;  // to be removed again when the call is done
};

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
  // Locks the part for writing until destroyed. Unless finished, the rows' times are put back.
  PartUpdate(Table& table, std::size_t part);
  ~PartUpdate();
  PartUpdate(const PartUpdate&) = delete;
  PartUpdate& operator=(const PartUpdate&) = delete;

  // Finds or makes the row of every id. `member(i)` is then the unique id of occurrence i.
  void resolve(const Partition::Group& group, const Admission& admission);
  [[nodiscard]] std::span<UniqueId> uniques() noexcept { return {uniques_, unique_count_}; }
  [[nodiscard]] UniqueId& member(std::size_t occurrence) noexcept { return uniques_[members_[occurrence]]; }
  [[nodiscard]] std::byte* row(const UniqueId& unique) const noexcept { return part_.rows.at(unique.row); }

  // Call before changing a row that may have existed.
  void preserve(const UniqueId& unique) {
    if (part_.has_preimages() && !unique.is_new) table_.preserve(part_, unique.id, unique.row, unique.time);
  }

  // One optimizer step per unique id with its summed gradient.
  void step(const Partition::Group& group, const GradientJob& job);

  // Stamps every changed row with the time, or with the one its unique id carries; notes the ids as touched and
  // removes the rows that leave.
  void finish(std::optional<std::uint32_t> time_s);

 private:
  void add_unique(std::size_t occurrence, std::int64_t id, Slot slot, std::uint32_t row, bool is_new,
                  std::uint32_t target) noexcept;
  void make_row(UniqueId& unique, std::uint64_t hash);
  void refresh_slots() noexcept;
  void resolve_open(const Partition::Group& group);
  void resolve_filtered(const Partition::Group& group, const Admission& admission);
  struct StepRows;
  class Backward;
  [[nodiscard]] bool admits(UniqueId& unique, const float* grad) noexcept;
  [[nodiscard]] StepRows collect_rows(const Partition::Group& group, const GradientJob& job);
  [[nodiscard]] const float* sum_gradients(const Partition::Group& group, const GradientJob& job);
  void put_times_back() noexcept;

  Table& table_;
  Part& part_;
  std::size_t number_;
  std::unique_lock<SharedMutex> lock_;
  UniqueId* uniques_ = nullptr;
  std::uint32_t* members_ = nullptr;
  std::size_t unique_count_ = 0;
};

}  // namespace engine
