// labels_in_rows.h: how rules read and replace the labels of a row. Private to the engine.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/data/row_op.h"

namespace engine::data {

inline bool is_missing(float label) noexcept { return label == kInvalidLabel || std::isnan(label); }

// New labels for the row, with the old ones copied in front and kInvalidLabel in the new places. The old array may be
// shared with other rows, so it is never written to.
inline float* own_labels(RowView row, std::uint32_t count) {
  RowInfo& info = row.info();
  float* labels = row.block.arena().take_array<float>(count);
  const std::uint32_t kept = std::min(count, info.label_count);
  if (kept > 0) std::copy_n(info.labels, kept, labels);
  std::fill(labels + kept, labels + count, kInvalidLabel);
  info.labels = labels;
  info.label_count = count;
  return labels;
}

// The same without the old ones.
inline float* new_labels(RowView row, std::uint32_t count) {
  row.info().label_count = 0;
  return own_labels(row, count);
}

}  // namespace engine::data
