// layouts.h: how the rows of a model's tables become its tensors: declared once, checked once, then planned per batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/bags.h"
#include "engine/layout/step_plan.h"
#include "engine/pool.h"

namespace engine::layout {

// Maps the signature (low 48 bits) of each id of a feature into a vocabulary; the slot stays.
// 1. With `size`: signature mod size. Without: a signature is a signed place, and a negative place becomes 0.
// 2. With `divisor`: the remainder by it, or the quotient plus `divisor`, so that both share one table without overlap.
struct IdTransform {
  static constexpr std::uint64_t kLargest = std::uint64_t{1} << 47;  // of size and divisor

  std::uint64_t size = 0;     // 0 = none
  std::uint64_t divisor = 0;  // 0 = none
  bool is_quotient = false;

  [[nodiscard]] std::int64_t apply(std::int64_t id) const noexcept;
};

// One input feature: the table its ids live in and how a bag of them is pooled (never kNone).
struct Feature {
  std::uint32_t table;
  Pooling pooling;
  std::uint32_t first_n;                      // kFirst only
  std::optional<IdTransform> transform = {};  // none = ids are rows as they are
};

// Columns [column, column + width) of a feature's rows go to floats [offset, offset + width) of an example's output.
// The i-th id of a kFirst feature goes `i * stride` floats further.
struct Part {
  std::uint32_t output;
  std::uint32_t feature;
  std::uint32_t column;
  std::uint32_t width;
  std::uint32_t offset;
  std::uint32_t stride;
};

// The ids of one feature in one batch.
struct FeatureIds {
  std::span<const std::int64_t> values;
  std::span<const std::int64_t> offsets;  // (rows + 1), or (2) when shared
  bool is_shared;                         // one bag, and every example has it
};

class Layouts {
 public:
  // Throws ConfigError for settings that can never work: a part outside its row or output, a feature without a table.
  Layouts(std::vector<std::size_t> table_dims, std::vector<Feature> features, const std::vector<Part>& parts,
          std::vector<std::size_t> output_widths);

  // Finds the unique ids of each table and where every occurrence stands. Copies all it needs. Throws DimensionMismatch
  // for offsets that do not describe their values. Concurrent.
  [[nodiscard]] StepPlan plan(std::size_t rows, std::span<const FeatureIds> ids, Pool& pool) const;

 private:
  std::shared_ptr<const Wiring> wiring_;
};

}  // namespace engine::layout
