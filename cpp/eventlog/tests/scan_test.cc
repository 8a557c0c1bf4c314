// scan_test.cc: a scan tells whole segments, torn tails and damage in the middle apart.
#include "eventlog/scan.h"

#include <gtest/gtest.h>

#include "tiny_segment.h"

namespace eventlog {
namespace {

using Segment = std::vector<std::byte>;

Segment flipped(std::initializer_list<std::size_t> bytes) {
  Segment segment = tiny_segment();
  for (const std::size_t at : bytes) segment[at] ^= std::byte{1};
  return segment;
}

Segment cut(std::size_t bytes) {
  Segment segment = tiny_segment();
  segment.resize(bytes);
  return segment;
}

Segment longer(const Segment& tail) {
  Segment segment = tiny_segment();
  segment.insert(segment.end(), tail.begin(), tail.end());
  return segment;
}

void expect_scan(const Segment& segment, std::uint64_t end, std::uint64_t bytes, bool is_torn, std::size_t bad) {
  const Scan scan = scan_segment(segment, 0, 1);
  EXPECT_EQ(scan.end_offset, end);
  EXPECT_EQ(scan.end_bytes, bytes);
  EXPECT_EQ(scan.is_torn, is_torn);
  EXPECT_EQ(scan.bad.size(), bad);
}

TEST(EventLogScan, WholeAndTornSegments) {
  expect_scan(tiny_segment(), 3, 252, false, 0);                     // R1
  expect_scan(cut(171), 1, 151, true, 0);                            // R2
  expect_scan(cut(240), 1, 151, true, 0);                            // R3
  expect_scan(flipped({251}), 1, 151, true, 0);                      // R4
  expect_scan(flipped({150}), 3, 252, false, 1);                     // R5
  expect_scan(flipped({68}), 3, 252, false, 1);                      // R6
  expect_scan(longer(Segment(4096)), 3, 252, true, 0);               // R7
  expect_scan(longer(from_hex("4d425431250000")), 3, 252, true, 0);  // R8
  expect_scan(cut(64), 0, 64, false, 0);                             // R11
  expect_scan(longer(tiny_second()), 3, 252, true, 0);               // R12
  expect_scan(flipped({150, 251}), 0, 64, true, 0);                  // R14
}

TEST(EventLogScan, AScanHasTheTimesOfItsBatches) {
  const Scan scan = scan_segment(tiny_segment(), 0, 1);
  EXPECT_EQ(scan.largest_ms, kTinyMs + 1000);
  EXPECT_EQ(scan.append_ms, kTinyMs + 1020);
  EXPECT_EQ(scan.batches, 2U);
  EXPECT_EQ(scan.records, 3U);
}

TEST(EventLogScan, DamageNamesItsOffsetsAndBytes) {
  const Scan scan = scan_segment(flipped({68}), 0, 1);
  ASSERT_EQ(scan.bad.size(), 1U);
  EXPECT_EQ(scan.bad[0].begin, 0U);
  EXPECT_EQ(scan.bad[0].end, 1U);
  EXPECT_EQ(scan.bad[0].first_byte, 64U);
  EXPECT_EQ(scan.bad[0].end_byte, 151U);
}

TEST(EventLogScan, ABatchOfAnOlderEpochIsNotWhole) {
  EXPECT_TRUE(batch_at(tiny_segment(), 64, 0, 1));
  EXPECT_FALSE(batch_at(tiny_segment(), 64, 0, 2));
  EXPECT_FALSE(batch_at(tiny_segment(), 64, 1, 1));
}

TEST(EventLogScan, AnIndexFitsItsSegmentOnly) {
  const Segment segment = tiny_segment();
  const IndexEntry good[] = {{0, 64, kNoTime}, {1, 151, kTinyMs}};
  const IndexEntry wrong_place[] = {{0, 64, kNoTime}, {1, 150, kTinyMs}};
  const IndexEntry wrong_time[] = {{0, 64, kNoTime}, {1, 151, kTinyMs + 1}};
  const IndexEntry past_the_end[] = {{0, 64, kNoTime}, {3, 252, kTinyMs}};
  EXPECT_TRUE(index_fits(segment, 0, good, segment.size()));
  EXPECT_FALSE(index_fits(segment, 0, wrong_place, segment.size()));
  EXPECT_FALSE(index_fits(segment, 0, wrong_time, segment.size()));
  EXPECT_FALSE(index_fits(segment, 0, past_the_end, segment.size()));
  EXPECT_FALSE(index_fits(segment, 0, {}, segment.size()));
}

TEST(EventLogScan, TheTailIsFoundFromAnyTrueEntry) {
  const Segment segment = tiny_segment();
  const IndexEntry entries[] = {{0, 64, kNoTime}, {1, 151, kTinyMs}, {2, 99, 0}};
  for (const std::size_t count : {0U, 1U, 2U, 3U}) {
    const Scan tail = walk_tail(segment, 0, std::span(entries).first(count));
    EXPECT_EQ(tail.end_offset, 3U);
    EXPECT_EQ(tail.largest_ms, kTinyMs + 1000);
    EXPECT_EQ(tail.append_ms, kTinyMs + 1020);
  }
}

}  // namespace
}  // namespace eventlog
