// entry_dump.h: the original's checkpoint records (proto2 `EntryDump`) to and from whole rows, many at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/tfrecord.h"

namespace engine {

// One field of a slice's optimizer state and its place in the dump and in the row.
struct DumpField {
  std::string name;
  std::uint32_t number = 0;  // in the optimizer's dump message
  std::size_t offset = 0;    // words from the slice's state start
  std::size_t words = 0;
  bool is_int64 = false;  // two words, written as one varint; otherwise `words` floats
};

struct DumpSlice {
  std::uint32_t dim = 0;
  std::string optimizer;          // for messages
  std::uint32_t dump_number = 0;  // in `SingleOptimizerDump`; 0 = the optimizer writes no element (moving_average)
  std::size_t state_offset = 0;   // words from the row's start
  std::vector<DumpField> fields;
};

// How rows of one table are spelled in EntryDump. A row is all values, then each slice's state in turn.
struct DumpSchema {
  std::vector<DumpSlice> slices;
  std::size_t dim = 0;
  std::size_t row_words = 0;
  // Content of a row before a record is read into it: zero values, and the state of a new row.
  std::vector<float> initial_row;
};

// Throws ConfigError when a slice's optimizer is unknown or has state that EntryDump cannot carry.
[[nodiscard]] DumpSchema make_dump_schema(std::span<const SliceConfig> slices);

// n decoded records.
struct EntryBatch {
  std::vector<std::int64_t> ids;
  std::vector<std::uint32_t> times_s;
  std::vector<float> rows;                  // (n, row_words)
  std::vector<std::uint32_t> value_counts;  // values the record had; those beyond are the initial row's
};

// Decodes at most `limit` records of the scanner and appends them to `batch`; returns how many.
// Throws RecordCorrupt when a record does not fit the schema, and, unless `allow_missing_state`, when it lacks the
// state of an optimizer that has one; allowed, that state stays as a new row has it. Concurrent on distinct batches.
std::size_t decode_entries(const DumpSchema& schema, RecordScanner& scanner, std::size_t limit,
                           bool allow_missing_state, EntryBatch& batch);

// Appends one framed record per row. `rows` is (n, row_words). Throws DimensionMismatch. Concurrent on distinct
// outputs.
void encode_entries(const DumpSchema& schema, std::span<const std::int64_t> ids, std::span<const std::uint32_t> times_s,
                    std::span<const float> rows, std::vector<std::byte>& out);

// Appends one framed record of an item cache: id and values, neither optimizer state nor time.
void encode_item(std::int64_t id, std::span<const float> values, std::vector<std::byte>& out);

// How many records of a multi-table data file belong to which table.
struct TableMetadata {
  std::string table_name;
  std::uint64_t entries = 0;
};

void encode_metadata(const TableMetadata& metadata, std::vector<std::byte>& out);
// Decodes the record that `scanner` gave last. Throws RecordCorrupt.
[[nodiscard]] TableMetadata decode_metadata(std::span<const std::byte> record, const RecordScanner& scanner);

}  // namespace engine
