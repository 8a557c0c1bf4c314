// row.h: parsed rows. Every record format becomes the same rows, so that filters, labels, negatives and batch assembly
// are written once. A row points into the bytes it was read from; nothing is copied until a batch is assembled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/data/records.h"

namespace engine::data {

// The lowest float: the original writes it for a missing label.
inline constexpr float kInvalidLabel = -3.40282346638528859812e+38F;

// How a cell's values are spelled.
enum class Arm : std::uint8_t {
  kNone,        // the row has no such feature, or one without values
  kFidV1,       // packed fixed64, little-endian, any alignment
  kFidV2,       // the same
  kFloat,       // packed float32
  kDouble,      // packed float64
  kInt64,       // packed varints
  kFixedInt64,  // packed int64, little-endian, any alignment; of tables in memory
  kBytes,       // a message; each value is a length-delimited field number `Cell::field`
  kFidV1Lists,  // a message; each list is a length-delimited field number `Cell::field` that holds packed values as
  kFidV2Lists,  // field 1; so for the next five
  kFloatLists,
  kDoubleLists,
  kInt64Lists,
  kBytesLists,  // ... that holds length-delimited values as field 1
};

// The values of one feature in one row. A view: the block that it belongs to keeps the bytes alive.
struct Cell {
  const std::byte* data = nullptr;
  std::uint32_t size = 0;
  Arm arm = Arm::kNone;
  std::uint8_t field = 0;
  std::uint16_t unused = 0;  // without padding at its end, a cell is copied as two words

  [[nodiscard]] Bytes bytes() const noexcept { return {data, size}; }
};

// Fields of a row beside its features.
struct RowInfo {
  Bytes line;                     // the serialized LineId, unknown fields included; empty when absent
  Bytes flat_fids;                // Instance.fid: packed v1 ids of all slots
  const float* labels = nullptr;  // kInvalidLabel and NaN mean missing
  std::uint32_t label_count = 0;
  float weight = 1.0F;           // 1 when the record has none
  std::uint32_t source_key = 0;  // data source of the row; 0 = unknown
  std::uint64_t key = 0;         // the row's own random seed: equal in every run that reads the same data
};

// Memory for the output of transforms: labels, edited LineIds, combined ids. Grows by pieces, never moves. Exclusive.
class Arena {
 public:
  [[nodiscard]] std::byte* take(std::size_t size, std::size_t alignment = 8) {
    const std::size_t begin = (used_ + alignment - 1) / alignment * alignment;
    if (begin + size > room_) return grow(size);
    used_ = begin + size;
    return piece_ + begin;
  }
  // Takes the bytes behind `end` back, which is in the piece that was taken last.
  void give_back(const std::byte* end) noexcept { used_ = static_cast<std::size_t>(end - piece_); }
  [[nodiscard]] Bytes copy(Bytes bytes);
  template <typename T>
  [[nodiscard]] T* take_array(std::size_t count) {
    return reinterpret_cast<T*>(take(count * sizeof(T), alignof(T)));
  }

 private:
  [[nodiscard]] std::byte* grow(std::size_t size);

  std::vector<std::shared_ptr<Buffer>> pieces_;
  std::byte* piece_ = nullptr;  // the last one
  std::size_t room_ = 0;        // of the last piece
  std::size_t used_ = 0;
  std::size_t all_ = 0;  // bytes of all pieces
};

// Names of features <-> column numbers. Only grows, so a column number stays good. Exclusive.
class Columns {
 public:
  static constexpr std::uint32_t kUnwanted = 0xffffffff;

  // The column of that name; made when it is new.
  std::uint32_t want(std::string_view name);
  // The column of that name, or kUnwanted.
  [[nodiscard]] std::uint32_t find(std::string_view name) const noexcept;
  [[nodiscard]] std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(names_.size()); }
  [[nodiscard]] const std::string& name(std::uint32_t column) const noexcept { return names_[column]; }

 private:
  std::deque<std::string> names_;
  std::unordered_map<std::string_view, std::uint32_t> index_;
};

// Rows that were parsed, or generated, together. Cells are stored column by column. A column takes time and memory from
// its first cell on: most rows have few of the columns that a schema names. Exclusive.
class Block {
 public:
  // Makes room for `columns`; there may be more.
  Block(std::uint32_t rows, std::uint32_t columns);

  [[nodiscard]] std::uint32_t rows() const noexcept { return rows_; }
  // All columns with cells are below it.
  [[nodiscard]] std::uint32_t columns() const noexcept { return static_cast<std::uint32_t>(columns_.size()); }
  // The cells of a column by row, or null when none of them was written.
  [[nodiscard]] const Cell* find_column(std::uint32_t column) const noexcept {
    return column < columns_.size() ? columns_[column] : nullptr;
  }
  [[nodiscard]] Cell cell(std::uint32_t row, std::uint32_t column) const noexcept {
    const Cell* const cells = find_column(column);
    return cells == nullptr ? Cell{} : cells[row];
  }
  // The cells of a column. Those of a new one hold nothing.
  [[nodiscard]] Cell* column(std::uint32_t column) {
    const bool is_there = column < columns_.size() && columns_[column] != nullptr;
    return is_there ? columns_[column] : make_column(column);
  }
  // The same for a caller that writes all cells: those of a new column are undefined.
  [[nodiscard]] Cell* unwritten_column(std::uint32_t column);
  void set_cell(std::uint32_t row, std::uint32_t column, const Cell& cell) { this->column(column)[row] = cell; }
  [[nodiscard]] RowInfo& info(std::uint32_t row) noexcept { return infos_[row]; }
  [[nodiscard]] const RowInfo& info(std::uint32_t row) const noexcept { return infos_[row]; }
  [[nodiscard]] Arena& arena() noexcept { return arena_; }
  // Keeps the memory that the rows point into alive as long as the block.
  void keep(std::shared_ptr<const void> owner) { owners_.push_back(std::move(owner)); }

 private:
  [[nodiscard]] Cell* make_column(std::uint32_t column);

  std::uint32_t rows_;
  std::uint32_t first_columns_;                    // those that the block was made with
  std::vector<Cell*> columns_;                     // null: no cells
  std::vector<std::shared_ptr<Buffer>> memories_;  // of the first columns together, then of each later one
  std::vector<RowInfo> infos_;
  std::vector<std::shared_ptr<const void>> owners_;
  Arena arena_;
};

// A sequence of rows out of any number of blocks, handed from stage to stage. No row is in it twice. Exclusive.
struct Rows {
  struct Ref {
    std::uint32_t block;
    std::uint32_t row;
  };

  std::vector<std::shared_ptr<Block>> blocks;
  std::vector<Ref> refs;

  [[nodiscard]] std::size_t size() const noexcept { return refs.size(); }
  [[nodiscard]] Block& block_of(std::size_t index) const noexcept { return *blocks[refs[index].block]; }
  [[nodiscard]] RowInfo& info(std::size_t index) const noexcept { return block_of(index).info(refs[index].row); }
  [[nodiscard]] Cell cell(std::size_t index, std::uint32_t column) const noexcept {
    return block_of(index).cell(refs[index].row, column);
  }

  // Rows [begin, end) with the blocks they need.
  [[nodiscard]] Rows slice(std::size_t begin, std::size_t end) const;
  // Appends the other's rows.
  void append(const Rows& other);
};

}  // namespace engine::data
