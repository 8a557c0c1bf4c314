// row_columns.h: rows as columns, the form in which all our files hold them: ids, times, then per slice its values and
// its optimizer state, each in one piece.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "engine/row_schema.h"

namespace engine {

static_assert(std::endian::native == std::endian::little, "the file formats are written as they lie in memory");

template <class T>
void put(std::vector<std::byte>& out, T value) {
  out.resize(out.size() + sizeof value);
  std::memcpy(out.data() + out.size() - sizeof value, &value, sizeof value);
}

template <class T>
T get(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// A run of bytes of each packed row that is stored as one column.
struct Column {
  std::size_t row_offset;
  std::size_t bytes;
};

inline std::vector<Column> columns_of(const RowSchema& schema) {
  std::vector<Column> columns;
  for (const RowSchema::Slice& slice : schema.slices()) {
    if (schema.is_serving()) {
      columns.push_back({slice.byte_offset, slice.compressor->bytes(slice.dim)});
    } else {
      columns.push_back({slice.value_offset * sizeof(float), slice.dim * sizeof(float)});
      const std::size_t state_bytes = slice.optimizer->state_words() * sizeof(float);
      if (state_bytes > 0) columns.push_back({schema.value_bytes() + slice.state_offset * sizeof(float), state_bytes});
    }
  }
  return columns;
}

// Bytes that a row takes in a file, with its id and time.
inline std::size_t stored_row_bytes(std::span<const Column> columns) noexcept {
  std::size_t bytes = sizeof(std::int64_t) + sizeof(std::uint32_t);
  for (const Column& column : columns) bytes += column.bytes;
  return bytes;
}

// Writes ids, times and the columns of all rows to `at`; row_at(i) is the view of row i. Row by row, so that each row's
// lines are read once: the columns are written as parallel streams.
template <class RowAt>
void pack_columns(const RowSchema& schema, std::span<const Column> columns, std::span<const std::int64_t> ids,
                  std::span<const std::uint32_t> times, RowAt&& row_at, std::byte* at) {
  const std::size_t value_bytes = schema.value_bytes();
  std::memcpy(at, ids.data(), ids.size_bytes());
  at += ids.size_bytes();
  std::memcpy(at, times.data(), times.size_bytes());
  at += times.size_bytes();
  std::vector<std::byte*> streams;
  for (const Column& column : columns) {
    streams.push_back(at);
    at += ids.size() * column.bytes;
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const RowView row = row_at(i);
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const std::size_t offset = columns[c].row_offset;
      const std::byte* const from = offset < value_bytes ? row.values + offset : row.state + (offset - value_bytes);
      std::memcpy(streams[c], from, columns[c].bytes);
      streams[c] += columns[c].bytes;
    }
  }
}

// The way back: `at` is where the ids begin, and every vector is given its `count` entries.
inline void unpack_columns(std::span<const Column> columns, std::size_t count, const std::byte* at,
                           std::size_t row_bytes, std::vector<std::int64_t>& ids, std::vector<std::uint32_t>& times,
                           std::vector<std::byte>& rows) {
  ids.resize(count);
  times.resize(count);
  rows.resize(count * row_bytes);
  if (count == 0) return;
  // Bytes between the columns of a row are zero, so that equal rows are equal bytes.
  const std::size_t filled = stored_row_bytes(columns) - sizeof(std::int64_t) - sizeof(std::uint32_t);
  if (filled < row_bytes) std::memset(rows.data(), 0, rows.size());
  std::memcpy(ids.data(), at, count * sizeof(std::int64_t));
  at += count * sizeof(std::int64_t);
  std::memcpy(times.data(), at, count * sizeof(std::uint32_t));
  at += count * sizeof(std::uint32_t);
  std::vector<const std::byte*> streams;
  for (const Column& column : columns) {
    streams.push_back(at);
    at += count * column.bytes;
  }
  std::byte* row = rows.data();
  for (std::size_t i = 0; i < count; ++i, row += row_bytes) {
    for (std::size_t c = 0; c < columns.size(); ++c) {
      std::memcpy(row + columns[c].row_offset, streams[c] + i * columns[c].bytes, columns[c].bytes);
    }
  }
}

// The rows of a file's block, where the block was read. Row i of the view is row `positions[i]` of the block, or row i
// when there are no positions.
class ColumnRows {
 public:
  // `at` is where the values begin, behind ids and times; `count` is the number of rows in the block.
  ColumnRows(const RowSchema& schema, std::span<const Column> columns, std::size_t count, const std::byte* at,
             std::span<const std::uint32_t> positions)
      : columns_(columns), value_bytes_(schema.value_bytes()), positions_(positions) {
    std::size_t filled = 0;
    for (const Column& column : columns) {
      streams_.push_back(at);
      at += count * column.bytes;
      filled += column.bytes;
    }
    has_gaps_ = filled < schema.row_bytes();
  }

  // Bytes between the values of slices are zero, so that equal rows are equal bytes; states have no such bytes.
  void copy(std::size_t i, std::byte* values, std::byte* state) const noexcept {
    const std::size_t position = positions_.empty() ? i : positions_[i];
    if (has_gaps_) std::memset(values, 0, value_bytes_);
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      const std::size_t offset = columns_[c].row_offset;
      std::byte* const to = offset < value_bytes_ ? values + offset : state + (offset - value_bytes_);
      std::memcpy(to, streams_[c] + position * columns_[c].bytes, columns_[c].bytes);
    }
  }

 private:
  std::span<const Column> columns_;
  std::vector<const std::byte*> streams_;
  std::size_t value_bytes_;
  std::span<const std::uint32_t> positions_;
  bool has_gaps_ = false;
};

}  // namespace engine
