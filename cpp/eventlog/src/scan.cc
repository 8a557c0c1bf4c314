// scan.cc: walks the batches of a segment.
#include "eventlog/scan.h"

#include <algorithm>
#include <cstring>

namespace eventlog {

namespace {

constexpr std::uint64_t kMostSearchBytes = std::uint64_t{64} << 20;

}  // namespace

std::optional<BatchHeader> batch_at(Bytes segment, std::uint64_t position, std::uint64_t base,
                                    std::uint64_t least_epoch) noexcept {
  if (position > segment.size()) return std::nullopt;
  const auto header = decode_batch_header(segment.subspan(position));
  if (!header || header->base != base || header->epoch < least_epoch) return std::nullopt;
  if (segment.size() - position < header->bytes()) return std::nullopt;
  if (!body_fits(*header, segment.subspan(position + kBatchHeaderBytes, header->body_bytes))) return std::nullopt;
  return header;
}

std::optional<FoundBatch> find_batch(Bytes segment, std::uint64_t position, std::uint64_t offset,
                                     std::uint64_t least_epoch) noexcept {
  const std::uint64_t limit = std::min<std::uint64_t>(segment.size(), position + kMostSearchBytes);
  while (position + kBatchHeaderBytes <= limit) {
    const void* magic = ::memmem(segment.data() + position, limit - position, "MBT1", 4);
    if (magic == nullptr) return std::nullopt;
    position = static_cast<std::uint64_t>(static_cast<const std::byte*>(magic) - segment.data());
    const auto header = decode_batch_header(segment.subspan(position));
    if (header && header->base > offset && batch_at(segment, position, header->base, least_epoch)) {
      return FoundBatch{*header, position};
    }
    ++position;
  }
  return std::nullopt;
}

std::optional<FoundBatch> resync(Bytes segment, std::uint64_t position, std::uint64_t offset,
                                 std::uint64_t least_epoch) noexcept {
  std::uint64_t next = position + 1;
  // The header has a separate checksum: its length holds even where the body is damaged.
  if (const auto header = decode_batch_header(segment.subspan(position));
      header && segment.size() - position >= header->bytes()) {
    next = position + header->bytes();
  }
  return find_batch(segment, next, offset, least_epoch);
}

Scan scan_segment(Bytes segment, std::uint64_t base, std::uint64_t epoch) {
  Scan scan{.end_offset = base, .epoch = epoch};
  std::uint64_t position = kSegmentHeaderBytes;
  while (position < segment.size()) {
    auto header = batch_at(segment, position, scan.end_offset, scan.epoch);
    if (!header) {
      const auto found = resync(segment, position, scan.end_offset, scan.epoch);
      if (!found) {
        scan.is_torn = true;
        break;
      }
      scan.bad.push_back({scan.end_offset, found->header.base, position, found->position});
      header = found->header;
      position = found->position;
    }
    if (scan.index.empty() || position - scan.index.back().position >= kIndexStepBytes) {
      scan.index.push_back({header->base, position, scan.largest_ms});
    }
    scan.end_offset = header->end();
    scan.epoch = header->epoch;
    scan.largest_ms = std::max(scan.largest_ms, header->largest_ms);
    scan.append_ms = header->append_ms;
    scan.batches += 1;
    scan.records += header->records;
    position += header->bytes();
    scan.end_bytes = position;
  }
  return scan;
}

bool index_fits(Bytes segment, std::uint64_t base, std::span<const IndexEntry> entries, std::uint64_t end_bytes) {
  std::uint64_t position = kSegmentHeaderBytes;
  std::uint64_t offset = base;
  std::int64_t largest_ms = kNoTime;
  std::size_t next = 0;
  while (position < end_bytes) {
    auto header = decode_batch_header(segment.subspan(position));
    if (!header || header->base != offset) {
      const auto found = resync(segment, position, offset, 0);
      if (!found) break;
      header = found->header;
      position = found->position;
    }
    if (next < entries.size() && entries[next].offset <= header->base) {
      if (entries[next] != IndexEntry{header->base, position, largest_ms}) return false;
      ++next;
    }
    largest_ms = std::max(largest_ms, header->largest_ms);
    offset = header->end();
    position += header->bytes();
  }
  return next == entries.size() && (next > 0 || end_bytes == kSegmentHeaderBytes);
}

Scan walk_tail(Bytes segment, std::uint64_t base, std::span<const IndexEntry> entries) {
  Scan tail{.end_offset = base};
  if (const auto entry = last_entry(segment, entries, [](const IndexEntry&) { return true; })) {
    tail.end_offset = entry->offset;
    tail.end_bytes = entry->position;
    tail.largest_ms = entry->before_ms;
  }
  while (tail.end_bytes < segment.size()) {
    auto header = decode_batch_header(segment.subspan(tail.end_bytes));
    if (!header || header->base != tail.end_offset || segment.size() - tail.end_bytes < header->bytes()) {
      const auto found = resync(segment, tail.end_bytes, tail.end_offset, 0);
      if (!found) break;
      header = found->header;
      tail.end_bytes = found->position;
    }
    tail.end_offset = header->end();
    tail.end_bytes += header->bytes();
    tail.largest_ms = std::max(tail.largest_ms, header->largest_ms);
    tail.append_ms = header->append_ms;
    tail.epoch = header->epoch;
  }
  return tail;
}

}  // namespace eventlog
