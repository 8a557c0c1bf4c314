// new_rows.h: rows that an operation adds to a lot, as edited copies of rows that are there. Private to the engine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/data/row_op.h"

namespace engine::data {

// Collects copies, then makes one block for all of them: a block's size is fixed when it is made.
class NewRows {
 public:
  explicit NewRows(const Rows& rows) : block_(static_cast<std::uint32_t>(rows.blocks.size())) {}

  // Where the copy will be once `finish` was called.
  Rows::Ref add(Rows::Ref source, std::uint64_t key) {
    copies_.push_back({source, key});
    return {block_, static_cast<std::uint32_t>(copies_.size() - 1)};
  }

  [[nodiscard]] std::size_t size() const noexcept { return copies_.size(); }

  // Adds the block to `rows` and returns it, or nullptr when there are no copies. `least_columns` of it exist.
  Block* finish(Rows& rows, std::uint32_t least_columns = 0) {
    if (copies_.empty()) return nullptr;
    std::uint32_t columns = least_columns;
    std::vector<bool> is_kept(rows.blocks.size(), false);
    for (const Copy& copy : copies_) columns = std::max(columns, rows.blocks[copy.source.block]->columns());
    auto block = std::make_shared<Block>(static_cast<std::uint32_t>(copies_.size()), columns);
    for (std::uint32_t row = 0; row < copies_.size(); ++row) {
      const Rows::Ref source = copies_[row].source;
      const Block& from = *rows.blocks[source.block];
      for (std::uint32_t column = 0; column < from.columns(); ++column) {
        if (const Cell* const cells = from.find_column(column)) block->set_cell(row, column, cells[source.row]);
      }
      block->info(row) = from.info(source.row);
      block->info(row).key = copies_[row].key;
      if (!is_kept[source.block]) block->keep(rows.blocks[source.block]);
      is_kept[source.block] = true;
    }
    rows.blocks.push_back(block);
    return block.get();
  }

 private:
  struct Copy {
    Rows::Ref source;
    std::uint64_t key;
  };

  std::uint32_t block_;
  std::vector<Copy> copies_;
};

}  // namespace engine::data
