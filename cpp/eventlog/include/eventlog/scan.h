// scan.h: walks all batches of a segment and tells damage in the middle from a torn tail. Pure: works on bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "eventlog/format.h"

namespace eventlog {

// Offsets that cannot be read. Later batches of the segment are whole.
struct BadRange {
  std::uint64_t begin = 0;  // offsets
  std::uint64_t end = 0;
  std::uint64_t first_byte = 0;
  std::uint64_t end_byte = 0;
};

struct Scan {
  std::uint64_t end_offset = 0;
  std::uint64_t end_bytes = kSegmentHeaderBytes;  // after the last batch
  std::uint64_t epoch = 0;                        // the largest one seen
  std::uint64_t batches = 0;
  std::uint64_t records = 0;
  std::int64_t largest_ms = kNoTime;
  std::int64_t append_ms = 0;  // of the last batch
  std::vector<BadRange> bad = {};
  std::vector<IndexEntry> index = {};  // as writers make it
  bool is_torn = false;                // bytes follow the last batch
};

struct FoundBatch {
  BatchHeader header;
  std::uint64_t position = 0;
};

// The batch at `position` if it is whole: magic, both checksums, lengths, base offset, and an epoch that does not fall.
[[nodiscard]] std::optional<BatchHeader> batch_at(Bytes segment, std::uint64_t position, std::uint64_t base,
                                                  std::uint64_t least_epoch) noexcept;

// The first whole batch at or after `position` with a base offset larger than `offset`. Searches 64 MiB at most.
[[nodiscard]] std::optional<FoundBatch> find_batch(Bytes segment, std::uint64_t position, std::uint64_t offset,
                                                   std::uint64_t least_epoch) noexcept;

// The next whole batch after a damaged one at `position`, where the batch of `offset` was expected.
[[nodiscard]] std::optional<FoundBatch> resync(Bytes segment, std::uint64_t position, std::uint64_t offset,
                                               std::uint64_t least_epoch) noexcept;

// Walks a segment from its first batch on. The segment's header is not looked at.
[[nodiscard]] Scan scan_segment(Bytes segment, std::uint64_t base, std::uint64_t epoch);

// True if every entry names a batch of the segment and the largest time before it. Looks at headers only.
[[nodiscard]] bool index_fits(Bytes segment, std::uint64_t base, std::span<const IndexEntry> entries,
                              std::uint64_t end_bytes);

// The end of a segment, found from the last entry of its index on. Looks at headers only.
[[nodiscard]] Scan walk_tail(Bytes segment, std::uint64_t base, std::span<const IndexEntry> entries);

// The last entry that names a batch of the segment and satisfies `holds`; none where the walk must begin at the start.
template <typename Holds>
[[nodiscard]] std::optional<IndexEntry> last_entry(Bytes segment, std::span<const IndexEntry> entries, Holds holds) {
  for (std::size_t i = entries.size(); i-- > 0;) {
    if (!holds(entries[i]) || entries[i].position >= segment.size()) continue;
    const auto header = decode_batch_header(segment.subspan(entries[i].position));
    if (header && header->base == entries[i].offset) return entries[i];
  }
  return std::nullopt;
}

}  // namespace eventlog
