// row_plan.h: the ids of one lookup, grouped by part and searched once, for the update that follows it.
//
// A lookup with a plan fills it; an update with the same plan neither groups nor searches the ids again. Results are
// the same bits as without a plan. Row handles of a plan are checked against the index under the part's lock, so a plan
// never dangles: rows may be added, removed or evicted in between, and the update then searches that part again.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/bags.h"

namespace engine {

class PartUpdate;
class Table;

// Reused from step to step, it keeps its memory. One call at a time: a second one throws ConfigError.
class RowPlan {
 public:
  RowPlan();
  ~RowPlan();
  RowPlan(const RowPlan&) = delete;
  RowPlan& operator=(const RowPlan&) = delete;

  // True when a lookup has filled the plan.
  [[nodiscard]] bool is_filled() const noexcept;
  // Ids in the call, and rows of a gradient.
  [[nodiscard]] std::size_t occurrences() const noexcept;
  [[nodiscard]] std::size_t targets() const noexcept;
  // Rows per bag of Pooling::kFirst; otherwise 0.
  [[nodiscard]] std::uint32_t first_n() const noexcept;
  [[nodiscard]] std::size_t memory_bytes() const noexcept;

 private:
  friend class PartUpdate;
  friend class Table;
  struct Content;
  class Use;

  std::unique_ptr<Content> content_;
  std::atomic<bool> is_used_{false};
};

}  // namespace engine
