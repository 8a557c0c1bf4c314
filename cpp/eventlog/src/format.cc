// format.cc: the bytes of an event log.
#include "eventlog/format.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/crc32c.h"
#include "eventlog/error.h"

namespace eventlog {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

namespace {

constexpr char kSegmentMagic[] = "MLOGSEG1";
constexpr char kBatchMagic[] = "MBT1";
constexpr char kIndexMagic[] = "MLOGIDX1";
constexpr std::uint16_t kVersion = 1;

template <typename Value>
void put(std::byte* out, Value value) noexcept {
  std::memcpy(out, &value, sizeof value);
}

template <typename Value>
[[nodiscard]] Value get(const std::byte* bytes) noexcept {
  Value value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

}  // namespace

void encode(const SegmentHeader& header, std::span<std::byte, kSegmentHeaderBytes> out) noexcept {
  std::byte* at = out.data();
  std::memset(at, 0, out.size());
  std::memcpy(at, kSegmentMagic, 8);
  put(at + 8, kVersion);
  put(at + 10, static_cast<std::uint16_t>(kSegmentHeaderBytes));
  put(at + 16, header.base);
  put(at + 24, header.log);
  put(at + 32, header.partition);
  put(at + 36, header.partitions);
  put(at + 40, header.created_ms);
  put(at + 48, header.epoch);
  put(at + 60, engine::crc32c(0, at, 60));
}

std::optional<std::uint16_t> foreign_version(Bytes bytes) noexcept {
  if (bytes.size() < kSegmentHeaderBytes) return std::nullopt;
  const std::byte* at = bytes.data();
  if (std::memcmp(at, kSegmentMagic, 8) != 0 || get<std::uint32_t>(at + 60) != engine::crc32c(0, at, 60)) {
    return std::nullopt;
  }
  const auto version = get<std::uint16_t>(at + 8);
  return version == kVersion ? std::nullopt : std::optional(version);
}

void check_version(Bytes header, const std::string& path) {
  if (const auto version = foreign_version(header)) {
    throw VersionConflict("version of '" + path + "' is " + std::to_string(*version) + ", expected " +
                          std::to_string(kVersion) + "; nothing was changed, use the release that wrote it");
  }
}

std::optional<SegmentHeader> decode_segment_header(Bytes bytes) noexcept {
  if (bytes.size() < kSegmentHeaderBytes) return std::nullopt;
  const std::byte* at = bytes.data();
  if (std::memcmp(at, kSegmentMagic, 8) != 0 || get<std::uint32_t>(at + 60) != engine::crc32c(0, at, 60)) {
    return std::nullopt;
  }
  if (get<std::uint16_t>(at + 8) != kVersion || get<std::uint16_t>(at + 10) != kSegmentHeaderBytes) return std::nullopt;
  return SegmentHeader{.base = get<std::uint64_t>(at + 16),
                       .log = get<std::uint64_t>(at + 24),
                       .partition = get<std::uint32_t>(at + 32),
                       .partitions = get<std::uint32_t>(at + 36),
                       .created_ms = get<std::int64_t>(at + 40),
                       .epoch = get<std::uint64_t>(at + 48)};
}

void encode(const BatchHeader& header, std::span<std::byte, kBatchHeaderBytes> out) noexcept {
  std::byte* at = out.data();
  std::memcpy(at, kBatchMagic, 4);
  put(at + 4, header.body_bytes);
  put(at + 8, header.base);
  put(at + 16, header.records);
  put(at + 20, header.epoch);
  put(at + 24, header.largest_ms);
  put(at + 32, header.append_ms);
  put(at + 40, header.producer);
  put(at + 48, header.sequence);
  put(at + 56, header.body_crc);
  put(at + 60, engine::crc32c(0, at, 60));
}

std::optional<BatchHeader> decode_batch_header(Bytes bytes) noexcept {
  if (bytes.size() < kBatchHeaderBytes) return std::nullopt;
  const std::byte* at = bytes.data();
  if (std::memcmp(at, kBatchMagic, 4) != 0 || get<std::uint32_t>(at + 60) != engine::crc32c(0, at, 60)) {
    return std::nullopt;
  }
  const BatchHeader header{.body_bytes = get<std::uint32_t>(at + 4),
                           .base = get<std::uint64_t>(at + 8),
                           .records = get<std::uint32_t>(at + 16),
                           .epoch = get<std::uint32_t>(at + 20),
                           .largest_ms = get<std::int64_t>(at + 24),
                           .append_ms = get<std::int64_t>(at + 32),
                           .producer = get<std::uint64_t>(at + 40),
                           .sequence = get<std::uint64_t>(at + 48),
                           .body_crc = get<std::uint32_t>(at + 56)};
  constexpr std::uint64_t kOffsets = std::uint64_t{1} << 63;
  if (header.records == 0 || header.body_bytes > kMostBodyBytes) return std::nullopt;
  if (std::uint64_t{header.records} * kRecordHeaderBytes > header.body_bytes) return std::nullopt;
  if (header.base >= kOffsets || header.end() > kOffsets) return std::nullopt;
  return header;
}

void append_record(std::vector<std::byte>& body, const Record& record) {
  const std::size_t begin = body.size();
  body.resize(begin + kRecordHeaderBytes + record.key.size() + record.value.size());
  std::byte* at = body.data() + begin;
  put(at, static_cast<std::uint32_t>(record.key.size()));
  put(at + 4, static_cast<std::uint32_t>(record.value.size()));
  put(at + 8, record.time_ms);
  at += kRecordHeaderBytes;
  if (!record.key.empty()) std::memcpy(at, record.key.data(), record.key.size());
  if (!record.value.empty()) std::memcpy(at + record.key.size(), record.value.data(), record.value.size());
}

bool lengths_fit(const BatchHeader& header, Bytes body) noexcept {
  if (body.size() != header.body_bytes) return false;
  std::uint64_t at = 0;
  for (std::uint32_t i = 0; i < header.records; ++i) {
    if (body.size() - at < kRecordHeaderBytes) return false;
    const std::uint64_t key = get<std::uint32_t>(body.data() + at);
    const std::uint64_t value = get<std::uint32_t>(body.data() + at + 4);
    at += kRecordHeaderBytes;
    if (key + value > body.size() - at) return false;
    at += key + value;
  }
  return at == body.size();
}

bool body_fits(const BatchHeader& header, Bytes body) noexcept {
  return body.size() == header.body_bytes && engine::crc32c(0, body.data(), body.size()) == header.body_crc &&
         lengths_fit(header, body);
}

Record take_record(Bytes& body) noexcept {
  const std::size_t key = get<std::uint32_t>(body.data());
  const std::size_t value = get<std::uint32_t>(body.data() + 4);
  const Record record{.key = body.subspan(kRecordHeaderBytes, key),
                      .value = body.subspan(kRecordHeaderBytes + key, value),
                      .time_ms = get<std::int64_t>(body.data() + 8)};
  body = body.subspan(kRecordHeaderBytes + key + value);
  return record;
}

void append_entry(std::vector<std::byte>& out, const IndexEntry& entry) {
  const std::size_t begin = out.size();
  out.resize(begin + kIndexEntryBytes);
  put(out.data() + begin, entry.offset);
  put(out.data() + begin + 8, entry.position);
  put(out.data() + begin + 16, entry.before_ms);
}

std::vector<std::byte> encode_index(std::uint64_t base, std::span<const IndexEntry> entries) {
  std::vector<std::byte> out(kIndexHeaderBytes);
  out.reserve(kIndexHeaderBytes + entries.size() * kIndexEntryBytes);
  std::memcpy(out.data(), kIndexMagic, 8);
  put(out.data() + 8, base);
  for (const IndexEntry& entry : entries) append_entry(out, entry);
  return out;
}

std::optional<std::vector<IndexEntry>> decode_index(std::uint64_t base, Bytes bytes) {
  if (bytes.size() < kIndexHeaderBytes || std::memcmp(bytes.data(), kIndexMagic, 8) != 0 ||
      get<std::uint64_t>(bytes.data() + 8) != base) {
    return std::nullopt;
  }
  bytes = bytes.subspan(kIndexHeaderBytes);
  std::vector<IndexEntry> entries;
  entries.reserve(bytes.size() / kIndexEntryBytes);
  for (; bytes.size() >= kIndexEntryBytes; bytes = bytes.subspan(kIndexEntryBytes)) {
    entries.push_back({.offset = get<std::uint64_t>(bytes.data()),
                       .position = get<std::uint64_t>(bytes.data() + 8),
                       .before_ms = get<std::int64_t>(bytes.data() + 16)});
  }
  return entries;
}

}  // namespace eventlog
