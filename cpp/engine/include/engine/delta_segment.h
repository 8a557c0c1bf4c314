// delta_segment.h: one segment of a delta log: the changes of a shard's tables since the segment before it.
//
//   file   := magic[8] header, per table: block* tombstones?, then marks?
//   header := u32 bytes, body, u32 crc32c(body)
//   block  := u32 rows, columns, u32 crc32c of both
//   tombstones, marks := bytes, u32 crc32c; absent when the header counts none
//
// The header counts the blocks, tombstones and bytes of marks that follow, so a file that is too short or too long is
// known as such. Columns are those of a snapshot. All numbers are little-endian. docs/reference/delta-format.md has it
// all. Which segments make a log is the caller's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/snapshot.h"
#include "engine/table.h"

namespace engine {

enum class DeltaFlavour : std::uint32_t {
  kDurable = 1,  // values and optimizer state: a trainer resumes from it
  kServing = 2,  // values as the slices' compressors store them
};

// Properties that must agree for the rows of a segment to mean the same in a table.
struct DeltaSlice {
  std::uint32_t dim = 0;
  std::uint32_t value_bytes = 0;
  std::uint32_t state_bytes = 0;
  std::string kind;  // durable: the optimizer; serving: the compressor with its settings
  float scale = 0.0F;
};

struct DeltaTable {
  std::string name;
  bool is_complete = false;  // ids of the segment's shard that are not in it are absent
  std::uint32_t blocks = 0;
  std::uint64_t upserts = 0;
  std::uint64_t tombstones = 0;
  std::int64_t max_time_s = 0;
  std::uint64_t turn = 0;
  std::vector<DeltaSlice> slices;
};

struct DeltaHeader {
  DeltaFlavour flavour = DeltaFlavour::kDurable;
  std::uint32_t shard_index = 0;
  std::uint32_t shard_count = 1;
  std::uint64_t log = 0;  // random; the same in all segments of a log
  std::uint64_t sequence = 0;
  std::uint64_t previous = 0;
  std::int64_t wall_time_us = 0;
  std::int64_t newest_event_s = 0;
  std::uint32_t tables_hash = 0;  // of names and slices; set when written
  std::uint64_t marks_bytes = 0;
  std::vector<DeltaTable> tables;
};

// The header, checked, and that the file has the bytes which the header and the blocks claim. Throws SnapshotCorrupt
// with file, offset and reason.
DeltaHeader read_delta_header(const std::string& path);
// Reads every byte and checks everything.
DeltaHeader verify_delta(const std::string& path, Pool& pool);
// The opaque bytes that the writer put in.
std::vector<std::byte> read_delta_marks(const std::string& path);

// Of each of the segment's tables, the ids that it upserts or removes and that `keep` has, in no order.
std::vector<std::vector<std::int64_t>> read_delta_ids(const std::string& path, ShardFilter keep);

// Of names and slices, as in the header of a segment of these tables.
std::uint32_t delta_tables_hash(std::span<Table* const> tables, DeltaFlavour flavour);

// How the names of tables begin that are a training job's own, not its model's.
inline constexpr std::string_view kJobTables = "monolith.";

// Upserts and removes the rows of the segment, after every byte was checked. `tables` are all of the segment's, in its
// order; those of the job itself may be left out. A durable segment may go into serving tables too. Throws
// SchemaMismatch; then nothing was changed.
DeltaHeader replay_delta(const std::string& path, std::span<Table* const> tables, ShardFilter keep);

}  // namespace engine
