// cell_table.h: rows of a table as cells, column by column. The values of a column lie one row after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/data/row.h"

namespace engine::data {

// One column. The values of row r are the bytes [starts[r], starts[r + 1]) of `values`, spelled as `arm`; a row without
// bytes has no values. Views of the buffer of the Records.
struct CellColumn {
  std::string name;
  Arm arm = Arm::kNone;
  const std::byte* values = nullptr;
  const std::uint32_t* starts = nullptr;  // rows + 1 of them

  [[nodiscard]] Cell cell(std::size_t row) const noexcept {
    const std::uint32_t size = starts[row + 1] - starts[row];
    if (size == 0) return {};
    return {values + starts[row], size, arm, static_cast<std::uint8_t>(arm == Arm::kBytes ? 1 : 0)};
  }
};

// Immutable once filled, so concurrent.
struct CellTable {
  std::uint32_t rows = 0;
  std::vector<CellColumn> columns;
};

}  // namespace engine::data
