// event_log_fuzz.cc: segments, indexes and owners of an event log. A scan of any bytes ends with a whole segment.
#include <string>
#include <vector>

#include "engine/crc32c.h"
#include "eventlog/format.h"
#include "eventlog/scan.h"
#include "owners.h"
#include "target.h"

namespace {

using namespace eventlog;

// A batch with right checksums around a body, so that checksums do not stand in the fuzzer's way. The flags choose
// damage: another base offset, an older epoch, a wrong number of records, a wrong checksum.
std::uint64_t append_batch(std::vector<std::byte>& segment, fuzz::Input& input, std::uint64_t base) {
  const std::uint8_t flags = input.byte();
  const std::uint8_t records = input.byte();
  std::vector<std::byte> bytes(kBatchHeaderBytes);
  const fuzz::Bytes piece = input.piece();
  if ((flags & 1) != 0) {
    bytes.insert(bytes.end(), piece.begin(), piece.end());
  } else {
    for (std::uint32_t i = 0; i < records % 4U + 1; ++i) {
      append_record(bytes, {.key = piece.first(piece.size() / 2),
                            .value = piece.subspan(piece.size() / 2),
                            .time_ms = static_cast<std::int64_t>(flags) * 1000 - i});
    }
  }
  const Bytes body = Bytes(bytes).subspan(kBatchHeaderBytes);
  BatchHeader header{.body_bytes = static_cast<std::uint32_t>(body.size()),
                     .base = (flags & 2) != 0 ? base + records : base,
                     .records = (flags & 1) != 0 ? records : records % 4U + 1,
                     .epoch = (flags & 4) != 0 ? records : 7U,
                     .largest_ms = static_cast<std::int64_t>(flags) * 1000,
                     .append_ms = 5,
                     .producer = flags,
                     .sequence = records,
                     .body_crc = engine::crc32c(0, body.data(), body.size())};
  if ((flags & 8) != 0) header.body_crc ^= 1;
  if ((flags & 16) != 0) header.body_bytes += records;
  encode(header, std::span<std::byte, kBatchHeaderBytes>(bytes.data(), kBatchHeaderBytes));
  if ((flags & 32) != 0) bytes[60] ^= std::byte{1};
  segment.insert(segment.end(), bytes.begin(), bytes.end());
  return header.base + header.records;
}

void check_scan(const std::vector<std::byte>& segment, std::uint64_t base) {
  const Scan scan = scan_segment(segment, base, 1);
  fuzz::expect(scan.end_bytes <= std::max(segment.size(), kSegmentHeaderBytes), "a scan ends after the segment");
  fuzz::expect(scan.end_offset >= base + scan.records, "a scan counts more records than offsets");
  std::uint64_t offset = base;
  for (const BadRange& bad : scan.bad) {
    fuzz::expect(offset <= bad.begin && bad.begin < bad.end && bad.end <= scan.end_offset, "damage is out of order");
    fuzz::expect(bad.first_byte < bad.end_byte && bad.end_byte <= scan.end_bytes, "damage has no bytes");
    offset = bad.end;
  }
  if (segment.size() < kSegmentHeaderBytes) return;
  // The recovered part is whole: a second scan gives the same end and no torn tail.
  const Bytes kept = Bytes(segment).first(scan.end_bytes);
  const Scan again = scan_segment(kept, base, 1);
  fuzz::expect(again.end_offset == scan.end_offset && again.end_bytes == scan.end_bytes && !again.is_torn,
               "a recovered segment is torn");
  if (!scan.bad.empty()) return;
  fuzz::expect(index_fits(kept, base, scan.index, kept.size()), "the index of a scan does not fit");
  const Scan tail = walk_tail(kept, base, scan.index);
  fuzz::expect(tail.end_offset == scan.end_offset && tail.largest_ms == scan.largest_ms, "the tail differs");
}

// Input: options, the base offset, then by option raw bytes, or batches of flags, a number and a piece.
void run(fuzz::Bytes bytes) {
  fuzz::Input input(bytes);
  const std::uint8_t options = input.byte();
  const std::uint64_t base = input.byte();
  std::vector<std::byte> segment(kSegmentHeaderBytes);
  if ((options & 1) != 0) {
    const fuzz::Bytes raw = input.rest();
    (void)decode_segment_header(raw);
    (void)decode_owners({reinterpret_cast<const char*>(raw.data()), raw.size()});
    if (const auto entries = decode_index(base, raw)) {
      fuzz::expect(encode_index(base, *entries).size() <= raw.size(), "an index has more entries than bytes");
    }
    segment.insert(segment.end(), raw.begin(), raw.end());
    check_scan(segment, base);
    return;
  }
  std::uint64_t next = base;
  for (int batch = 0; batch < 8 && !input.done(); ++batch) next = append_batch(segment, input, next);
  if ((options & 2) != 0 && !segment.empty()) segment.resize(segment.size() - std::min<std::size_t>(segment.size(), 9));
  check_scan(segment, base);
  const IndexEntry entries[] = {{base, kSegmentHeaderBytes, kNoTime}, {next, segment.size() / 2, 0}};
  (void)index_fits(segment, base, entries, segment.size());
  (void)walk_tail(segment, base, entries);
}

const fuzz::Target target("event_log", run);

}  // namespace
