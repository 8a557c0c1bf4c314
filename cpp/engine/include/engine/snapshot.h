// snapshot.h: a table's rows on disk: columns in checksummed blocks, readable into any number of parts.
//
// A snapshot is one or more part files; which files belong together is the manifest's business, which the caller
// writes.
//
//   file   := magic[8] header block* tail
//   header := u32 bytes, body, u32 crc32c(body)
//             body: u32 version, u64 generation, u32 part, u32 parts, u32 is_serving, u32 slices,
//                   per slice: u32 dim, u32 kind bytes, u32 state bytes, u32 value bytes, kind
//   block  := u32 "BLCK", u32 rows, per column: u32 crc32c, then u32 crc32c of all this, then the columns
//             columns: ids i64, times u32, then per slice its values and its optimizer state
//   tail   := u32 "TAIL", u64 rows, u64 blocks, u32 crc32c of all this
//
// All numbers are little-endian. A file does not depend on the number of parts in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/table.h"

namespace engine {

struct SnapshotPart {
  std::string path;
  std::uint64_t bytes = 0;
  std::uint64_t rows = 0;
};

// Writes the rows of an open cut to the given paths, in parallel, and syncs them to disk. Each file is written under a
// temporary name and renamed. Rows that have expired at the cut's newest event time are left out. Ends the cut.
// The paths are number `first` and those after it of the snapshot's `count` parts: other processes may write the rest.
// Throws IoError; then no file of this call is left.
std::vector<SnapshotPart> write_snapshot(Table& table, const Table::Cut& cut, std::uint64_t generation,
                                         const std::vector<std::string>& paths, std::uint32_t first,
                                         std::uint32_t count);

// Reads every byte of the parts and checks everything. Throws SnapshotCorrupt with file, offset and reason.
void verify_snapshot(const RowSchema& schema, std::uint64_t generation, std::span<const SnapshotPart> parts,
                     Pool& pool);

// Which ids to take: uint64(id) mod count == index.
struct ShardFilter {
  std::uint64_t index = 0;
  std::uint64_t count = 1;
};

// Upserts the rows of the parts. Checks as it goes; a caller that must not end up with half of them verifies first.
// Returns the number of rows taken.
std::size_t read_snapshot(Table& table, std::uint64_t generation, std::span<const SnapshotPart> parts,
                          ShardFilter keep);

// Upserts the values of the parts, which were saved with the schema `saved`, into a table of the same width and another
// form: training rows become serving rows, block by block, without their optimizer state.
void convert_snapshot(const RowSchema& saved, Table& table, std::uint64_t generation,
                      std::span<const SnapshotPart> parts, ShardFilter keep);

}  // namespace engine
