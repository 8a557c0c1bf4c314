// step_rows.cc: lookups and updates of all tables of a step plan, as one call each.
#include "engine/layout/step_rows.h"

#include <string>

#include "engine/error.h"

namespace engine::layout {

namespace {

void check_lists(std::size_t count, std::size_t tables, const char* noun) {
  if (count == tables) return;
  throw DimensionMismatch("there are " + std::to_string(count) + " " + noun + ", expected one for each of " +
                          std::to_string(tables) + " tables; give them in the order of the tables");
}

template <class T>
void check_shapes(const StepPlan& plan, const std::vector<std::shared_ptr<Table>>& tables,
                  std::span<const MatrixView<T>> arrays, const char* noun) {
  check_lists(plan.tables(), tables.size(), "tables in the plan");
  check_lists(arrays.size(), tables.size(), noun);
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const std::size_t rows = plan.unique(i).ids.size();
    const std::size_t dim = tables[i]->schema().dim();
    if (arrays[i].data != nullptr && arrays[i].rows == rows && arrays[i].columns == dim) continue;
    if (rows == 0 && arrays[i].rows == 0 && arrays[i].columns == dim) continue;
    throw DimensionMismatch("table '" + tables[i]->config().name + "': " + noun + " have shape (" +
                            std::to_string(arrays[i].rows) + ", " + std::to_string(arrays[i].columns) +
                            "), expected (" + std::to_string(rows) + ", " + std::to_string(dim) +
                            "); give one row per unique id of the plan");
  }
}

}  // namespace

StepRows::StepRows(std::vector<std::shared_ptr<Table>> tables) : tables_(std::move(tables)) {
  for (std::size_t i = 0; i < tables_.size(); ++i) places_.push_back(std::make_unique<RowPlan>());
}

void StepRows::pull(std::shared_ptr<const StepPlan> plan, std::span<const MatrixView<float>> rows, Pool& pool) {
  check_shapes(*plan, tables_, rows, "rows");
  plan_.reset();  // no push, should the lookup throw
  std::vector<LookupJob> jobs;
  jobs.reserve(tables_.size());
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    jobs.push_back({.table = tables_[i].get(),
                    .bags = {.ids = plan->unique(i).ids},
                    .out = rows[i].data,
                    .plan = places_[i].get(),
                    .is_distinct = true});
  }
  Table::lookup_all(jobs, pool);
  plan_ = std::move(plan);
}

void StepRows::push(std::span<const MatrixView<const float>> grads,
                    std::span<const std::span<const float>> learning_rates, std::uint32_t time_s, std::int64_t step,
                    Pool& pool) {
  if (!plan_) {
    throw ConfigError(
        "the rows of this step are pushed already or were not pulled, expected one pull before each push");
  }
  check_shapes(*plan_, tables_, grads, "gradients");
  check_lists(learning_rates.size(), tables_.size(), "lists of learning rates");
  std::vector<GradientJob> jobs;
  jobs.reserve(tables_.size());
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    jobs.push_back({.table = tables_[i].get(),
                    .bags = {},
                    .grads = grads[i].data,
                    .counts = plan_->unique(i).counts,
                    .learning_rates = learning_rates[i],
                    .time_s = time_s,
                    .step = step,
                    .plan = places_[i].get()});
  }
  Table::apply_all(jobs, pool);
  plan_.reset();
}

std::size_t StepRows::memory_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const auto& places : places_) bytes += places->memory_bytes();
  return bytes;
}

}  // namespace engine::layout
