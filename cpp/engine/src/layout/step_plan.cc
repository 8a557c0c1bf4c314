// step_plan.cc: the content of a plan, and the checks of the arrays given to it.
#include "engine/layout/step_plan.h"

#include <string>
#include <type_traits>

#include "engine/error.h"
#include "wiring.h"

namespace engine::layout {

namespace {

std::string shape(std::size_t rows, std::size_t columns) {
  return "(" + std::to_string(rows) + ", " + std::to_string(columns) + ")";
}

void check_count(std::size_t given, std::size_t wanted, const char* noun) {
  if (given == wanted) return;
  throw DimensionMismatch("there are arrays for " + std::to_string(given) + " " + noun + ", and the plan has " +
                          std::to_string(wanted) + "; give one for each, in order");
}

template <class T>
void check_shape(const MatrixView<T>& array, std::size_t rows, std::size_t columns, const std::string& name) {
  if (array.rows == rows && array.columns == columns) return;
  throw DimensionMismatch(name + " has an array of shape " + shape(array.rows, array.columns) + "; this plan needs " +
                          shape(rows, columns));
}

}  // namespace

StepPlan::StepPlan(std::shared_ptr<const Wiring> wiring, std::size_t rows, std::shared_ptr<const data::Buffer> memory,
                   std::vector<FeatureBags> features, std::vector<UniqueIds> tables)
    : wiring_(std::move(wiring)),
      rows_(rows),
      memory_(std::move(memory)),
      features_(std::move(features)),
      tables_(std::move(tables)) {
  for (const FeatureBags& bags : features_) occurrences_ += bags.count;
}

template <class T>
void StepPlan::check_rows(std::span<const MatrixView<T>> rows) const {
  check_count(rows.size(), tables_.size(), "tables");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    check_shape(rows[i], tables_[i].ids.size(), wiring_->table_dims[i], "table " + std::to_string(i));
  }
}

template <class T>
void StepPlan::check_outputs(std::span<const MatrixView<T>> outputs) const {
  check_count(outputs.size(), wiring_->output_widths.size(), "outputs");
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (std::is_const_v<T> && outputs[i].rows == 0 && outputs[i].columns == 0) continue;  // no gradient
    check_shape(outputs[i], rows_, wiring_->output_widths[i], "output " + std::to_string(i));
  }
}

template void StepPlan::check_rows(std::span<const MatrixView<float>>) const;
template void StepPlan::check_rows(std::span<const MatrixView<const float>>) const;
template void StepPlan::check_outputs(std::span<const MatrixView<float>>) const;
template void StepPlan::check_outputs(std::span<const MatrixView<const float>>) const;

}  // namespace engine::layout
