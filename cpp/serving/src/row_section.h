// row_section.h: the way of some rows of a batch from ids to scores.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/data/assembler.h"
#include "engine/layout/layouts.h"
#include "engine/table_view.h"
#include "serving/model.h"

namespace serving {

// Rows [begin, end) of a batch. gather() precedes run(). One thread at a time; sections of one batch are independent.
class RowSection {
 public:
  RowSection(const ModelConfig& config, const engine::layout::Layouts& layouts, const engine::data::BatchData& batch,
             std::size_t begin, std::size_t end)
      : config_(config), layouts_(layouts), batch_(batch), begin_(begin), end_(end) {}

  // Finds the distinct ids and copies their rows. The caller keeps writers out of the tables.
  void gather(std::span<const engine::TableView> views);
  // Fills the layouts, runs the program, and writes the section's part of the scores, which have room for all rows.
  void run(const OnnxSession& dense, std::span<const std::size_t> outputs, const Scores& scores) const;

 private:
  [[nodiscard]] std::size_t rows() const noexcept { return end_ - begin_; }
  [[nodiscard]] engine::layout::StepPlan plan() const;
  [[nodiscard]] Tensor tensor_of(const ProgramInput& input,
                                 std::span<const engine::layout::MatrixView<float>> layouts) const;

  const ModelConfig& config_;
  const engine::layout::Layouts& layouts_;
  const engine::data::BatchData& batch_;
  std::size_t begin_;
  std::size_t end_;
  std::optional<engine::layout::StepPlan> plan_;
  std::shared_ptr<engine::data::Buffer> row_memory_;
  std::vector<engine::layout::MatrixView<const float>> table_rows_;
};

}  // namespace serving
