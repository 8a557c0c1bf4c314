// step_rows.h: the rows of a step plan in its tables, from the lookup to the update.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/layout/step_plan.h"
#include "engine/pool.h"
#include "engine/table.h"

namespace engine::layout {

// A pull fills it, and one push uses the places of the pulled rows instead of a second search; see row_plan.h. Reused
// from step to step, it keeps its memory. One call at a time.
class StepRows {
 public:
  // One table per table of the plans, in their order.
  explicit StepRows(std::vector<std::shared_ptr<Table>> tables);
  StepRows(const StepRows&) = delete;
  StepRows& operator=(const StepRows&) = delete;

  // Copies one row per unique id of each table. Throws DimensionMismatch for arrays of other shapes.
  void pull(std::shared_ptr<const StepPlan> plan, std::span<const MatrixView<float>> rows, Pool& pool);

  // Takes one optimizer step per unique id of the last pull, with the occurrences of the plan as sightings. Throws
  // ConfigError when no pull came before; nothing was applied.
  void push(std::span<const MatrixView<const float>> grads, std::span<const std::span<const float>> learning_rates,
            std::uint32_t time_s, std::int64_t step, Pool& pool);

  [[nodiscard]] const std::vector<std::shared_ptr<Table>>& tables() const noexcept { return tables_; }
  [[nodiscard]] std::size_t memory_bytes() const noexcept;

 private:
  std::vector<std::shared_ptr<Table>> tables_;
  std::vector<std::unique_ptr<RowPlan>> places_;
  std::shared_ptr<const StepPlan> plan_;  // of the last pull, until its push
};

}  // namespace engine::layout
