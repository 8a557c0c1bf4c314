// column_encoder.h: columns of a table in memory (Arrow, NumPy) -> cells. Reads the columns where they lie and copies
// each value once. Knows neither Arrow nor Python: a column is a few spans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "engine/data/line_id.h"
#include "engine/data/records.h"

namespace engine::data {

// The arm of Feature, by its field number, that the values of a column become.
enum class ColumnKind : std::uint8_t { kFidV1 = 1, kFidV2 = 2, kFloat = 3, kDouble = 4, kInt64 = 5, kBytes = 6 };

// How the values lie in memory. kBool is one bit each, lowest first; a text is a range of characters between two
// offsets; a column of kNothing has no values at all.
enum class ValueType : std::uint8_t {
  kNothing,
  kBool,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUint8,
  kUint16,
  kUint32,
  kUint64,
  kFloat,
  kDouble,
  kText32,
  kText64,
};

[[nodiscard]] const char* name_of(ColumnKind kind) noexcept;
[[nodiscard]] const char* name_of(ValueType type) noexcept;

// One column as it lies in memory, the layout of Arrow. The owner of the spans keeps them alive.
// Row r has the values [list[first_row + r], list[first_row + r + 1]) when there are list offsets, else value r.
// Value v is element first_value + v of `values`, of `text_offsets` and of `value_valid`.
struct ColumnLayout {
  std::string name;
  ColumnKind kind = ColumnKind::kInt64;
  ValueType type = ValueType::kInt64;
  std::uint64_t rows = 0;
  std::uint64_t first_row = 0;    // of the list offsets and of `list_valid`
  std::uint64_t first_value = 0;  // of the values
  std::uint64_t value_count = 0;
  Bytes values;            // of texts: the characters
  Bytes text_offsets;      // value_count + 1 of them, 4 or 8 bytes each, by the type
  Bytes value_valid;       // a bitmap; empty = no value is null
  Bytes list_offsets;      // rows + 1 of them; empty = one value per row
  bool wide_list = false;  // list offsets have 8 bytes, not 4
  Bytes list_valid;        // a bitmap; empty = no row is null
  // The column fills this field of the row's LineId instead of being a feature.
  std::optional<LineField> line_field;
};

// A column that was checked: every offset lies inside its buffer, and its type can become its kind. Concurrent.
class Column {
 public:
  // Throws ConfigError for buffers that do not fit together, SchemaMismatch for a type that cannot become the kind.
  explicit Column(ColumnLayout layout);

  [[nodiscard]] const ColumnLayout& layout() const noexcept { return layout_; }

 private:
  ColumnLayout layout_;
};

// Rows [begin, end) of the columns as one record of cells, in one pooled buffer; `offset` is the number of row `begin`
// in the stream `source`. A null has no values. Columns with a line field make up the column `__LINE_ID__`, which comes
// last; their repeated numbers are packed. Throws SchemaMismatch for a value that the arm cannot hold, ConfigError for
// rows that take a GiB or more. Concurrent.
[[nodiscard]] Records encode_columns(std::span<const Column* const> columns, std::uint64_t begin, std::uint64_t end,
                                     std::string source, std::uint64_t offset);

// The records as messages: a record of cells becomes an ExampleBatch with INDIVIDUAL columns. Slow. Concurrent.
[[nodiscard]] Records to_messages(const Records& records);

}  // namespace engine::data
