// made_rows.h: rows written by hand, for tests of rules and operations.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/data/line_id.h"
#include "engine/data/row_op.h"

namespace engine::data {

class MadeRows {
 public:
  explicit MadeRows(std::uint32_t count, std::uint32_t columns = 2) : block_(std::make_shared<Block>(count, columns)) {
    rows.blocks.push_back(block_);
    for (std::uint32_t row = 0; row < count; ++row) {
      rows.refs.push_back({0, row});
      block_->info(row).key = row + 1000;
    }
  }

  RowView at(std::uint32_t row) { return {*block_, row}; }

  void labels(std::uint32_t row, std::initializer_list<float> values) {
    float* labels = block_->arena().take_array<float>(values.size());
    std::copy(values.begin(), values.end(), labels);
    block_->info(row).labels = labels;
    block_->info(row).label_count = static_cast<std::uint32_t>(values.size());
  }

  void line(std::uint32_t row, const char* field, std::int64_t value) {
    RowInfo& info = block_->info(row);
    const LineField& known = find_field(standard_line_fields(), field);
    info.line = known.is_repeated ? line_add_int(info.line, known, value, block_->arena())
                                  : line_set_int(info.line, known, value, block_->arena());
  }

  void ids(std::uint32_t row, std::uint32_t column, const std::vector<std::int64_t>& values, Arm arm = Arm::kFidV2) {
    const Bytes bytes = block_->arena().copy(std::as_bytes(std::span(values)));
    block_->set_cell(row, column, {bytes.data(), static_cast<std::uint32_t>(bytes.size()), arm, 0});
  }

  void bytes(std::uint32_t row, std::uint32_t column, std::string_view text, Arm arm, std::uint8_t field) {
    const Bytes bytes = block_->arena().copy(std::as_bytes(std::span(text)));
    block_->set_cell(row, column, {bytes.data(), static_cast<std::uint32_t>(bytes.size()), arm, field});
  }

  Rows rows;

 private:
  std::shared_ptr<Block> block_;
};

inline std::vector<std::int64_t> ids_of(const Cell& cell) {
  std::vector<std::int64_t> ids(cell.size / 8);
  if (cell.size > 0) std::memcpy(ids.data(), cell.data, cell.size);
  return ids;
}

inline std::int64_t item_of(const RowInfo& info) {
  std::int64_t item = 0;
  line_int(info.line, find_field(standard_line_fields(), "item_id"), item);
  return item;
}

}  // namespace engine::data
