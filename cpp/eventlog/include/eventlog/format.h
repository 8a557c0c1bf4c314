// format.h: the bytes of segments, batches, records and indexes. Pure: no file is opened here.
//
// A segment is a header of 64 bytes and batches. A batch is the unit of commit: a header of 64 bytes with its own
// checksum, and a body of records. Integers are little-endian, checksums are plain CRC-32C.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace eventlog {

using Bytes = std::span<const std::byte>;

inline constexpr std::size_t kSegmentHeaderBytes = 64;
inline constexpr std::size_t kBatchHeaderBytes = 64;
inline constexpr std::size_t kRecordHeaderBytes = 16;
inline constexpr std::size_t kIndexHeaderBytes = 16;
inline constexpr std::size_t kIndexEntryBytes = 24;
inline constexpr std::size_t kIndexStepBytes = std::size_t{64} << 10;
inline constexpr std::size_t kMostRecordBytes = std::size_t{16} << 20;  // key and value
inline constexpr std::size_t kMostBodyBytes = std::size_t{32} << 20;
inline constexpr std::size_t kMostKeyBytes = 65535;
inline constexpr std::uint32_t kMostPartitions = 4096;
inline constexpr std::int64_t kMostTimeMs = std::int64_t{1} << 53;
inline constexpr std::int64_t kNoTime = std::numeric_limits<std::int64_t>::min();

struct SegmentHeader {
  std::uint64_t base = 0;  // offset of the first record
  std::uint64_t log = 0;   // drawn once per partition
  std::uint32_t partition = 0;
  std::uint32_t partitions = 1;
  std::int64_t created_ms = 0;
  std::uint64_t epoch = 1;
};

struct BatchHeader {
  std::uint32_t body_bytes = 0;
  std::uint64_t base = 0;
  std::uint32_t records = 0;
  std::uint32_t epoch = 0;
  std::int64_t largest_ms = 0;  // event time
  std::int64_t append_ms = 0;
  std::uint64_t producer = 0;  // 0 = none
  std::uint64_t sequence = 0;
  std::uint32_t body_crc = 0;

  [[nodiscard]] std::uint64_t end() const noexcept { return base + records; }
  [[nodiscard]] std::size_t bytes() const noexcept { return kBatchHeaderBytes + body_bytes; }
};

struct Record {
  Bytes key;
  Bytes value;
  std::int64_t time_ms = 0;
};

struct IndexEntry {
  std::uint64_t offset = 0;          // of a batch
  std::uint64_t position = 0;        // of the batch in the segment
  std::int64_t before_ms = kNoTime;  // the largest event time before the batch in the segment

  friend bool operator==(const IndexEntry&, const IndexEntry&) = default;
};

void encode(const SegmentHeader& header, std::span<std::byte, kSegmentHeaderBytes> out) noexcept;
void encode(const BatchHeader& header, std::span<std::byte, kBatchHeaderBytes> out) noexcept;
void append_record(std::vector<std::byte>& body, const Record& record);

// None where magic, version, checksum or a bound does not hold.
// Returns the format version of a sound header that this release does not read. Every version keeps magic, version and
// checksum of the header at the same places.
[[nodiscard]] std::optional<std::uint16_t> foreign_version(Bytes bytes) noexcept;
// Throws VersionConflict for the header of another format version.
void check_version(Bytes header, const std::string& path);
[[nodiscard]] std::optional<SegmentHeader> decode_segment_header(Bytes bytes) noexcept;
[[nodiscard]] std::optional<BatchHeader> decode_batch_header(Bytes bytes) noexcept;

// True if the lengths of the records add up to the body and give their number.
[[nodiscard]] bool lengths_fit(const BatchHeader& header, Bytes body) noexcept;
// True if the checksum of the body holds as well.
[[nodiscard]] bool body_fits(const BatchHeader& header, Bytes body) noexcept;

// Takes the record at the front of a body that fits.
[[nodiscard]] Record take_record(Bytes& body) noexcept;

[[nodiscard]] std::vector<std::byte> encode_index(std::uint64_t base, std::span<const IndexEntry> entries);
void append_entry(std::vector<std::byte>& out, const IndexEntry& entry);
// The entries of an index of that base offset; a short last entry is dropped. None for another file.
[[nodiscard]] std::optional<std::vector<IndexEntry>> decode_index(std::uint64_t base, Bytes bytes);

}  // namespace eventlog
