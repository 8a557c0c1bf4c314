// row_range.h: the rows that one piece of a scatter fills, and the work of a kernel on one wire. Private.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "../rows.h"
#include "engine/layout/step_plan.h"
#include "wiring.h"

namespace engine::layout {

// The rows of some unique ids, zeroed as they are first met: numbers grow in order of occurrence, so the rows met so
// far are always the first ones.
class RowRange {
 public:
  RowRange(MatrixView<float> rows, std::size_t begin, std::size_t end)
      : rows_(rows), begin_(begin), size_(end - begin), met_(begin) {}

  [[nodiscard]] bool is_whole() const noexcept { return size_ == rows_.rows; }
  [[nodiscard, gnu::always_inline]] bool has(std::uint32_t number) const noexcept { return number - begin_ < size_; }
  [[nodiscard, gnu::always_inline]] float* row(std::uint32_t number) const noexcept {
    return rows_.data + number * rows_.columns;
  }
  [[gnu::always_inline]] void meet(std::uint32_t number) noexcept {
    if (number >= met_) zero_until(std::size_t{number} + 1);
  }
  void meet_all() noexcept { zero_until(begin_ + size_); }

 private:
  static constexpr std::size_t kRowsAhead = 8;

  [[gnu::always_inline]] void zero_until(std::size_t end) noexcept {
    if (end <= met_) return;
    std::fill(rows_.data + met_ * rows_.columns, rows_.data + end * rows_.columns, 0.0F);
    met_ = end;
    // Rows are met in their order. Another processor may have the lines.
    if (end + kRowsAhead < begin_ + size_) prefetch_for_write(rows_.data + (end + kRowsAhead) * rows_.columns);
  }

  MatrixView<float> rows_;
  std::size_t begin_;
  std::size_t size_;
  std::size_t met_;
};

// Examples [begin, end) of one wire of a feature, rows to outputs.
struct PoolWire {
  const Wire& wire;
  const Feature& feature;
  const StepPlan::FeatureBags& bags;
  MatrixView<const float> rows;
  MatrixView<float> output;
  std::size_t begin;
  std::size_t end;
};

// One wire of a feature, gradients of outputs to rows.
struct ScatterWire {
  const Wire& wire;
  const Feature& feature;
  const StepPlan::FeatureBags& bags;
  MatrixView<const float> grad;
  RowRange& rows;
};

}  // namespace engine::layout
