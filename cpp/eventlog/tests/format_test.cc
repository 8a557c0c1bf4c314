// format_test.cc: the bytes of the worked example, in both directions.
#include "eventlog/format.h"

#include <gtest/gtest.h>

#include <cstring>

#include "engine/crc32c.h"
#include "eventlog/hash.h"
#include "tiny_segment.h"

namespace eventlog {
namespace {

Bytes text(const char* bytes) { return {reinterpret_cast<const std::byte*>(bytes), std::strlen(bytes)}; }

std::vector<std::byte> make_batch(BatchHeader header, std::initializer_list<Record> records) {
  std::vector<std::byte> bytes(kBatchHeaderBytes);
  for (const Record& record : records) append_record(bytes, record);
  const Bytes body = Bytes(bytes).subspan(kBatchHeaderBytes);
  header.body_bytes = static_cast<std::uint32_t>(body.size());
  header.records = static_cast<std::uint32_t>(records.size());
  header.body_crc = engine::crc32c(0, body.data(), body.size());
  encode(header, std::span<std::byte, kBatchHeaderBytes>(bytes.data(), kBatchHeaderBytes));
  return bytes;
}

TEST(EventLogFormat, TheWholeExampleHasItsChecksum) {
  const auto segment = tiny_segment();
  EXPECT_EQ(segment.size(), 252U);
  EXPECT_EQ(engine::crc32c(0, segment.data(), segment.size()), 0x7127584aU);
}

TEST(EventLogFormat, ASegmentHeaderHasTheBytesOfTheExample) {
  std::byte bytes[kSegmentHeaderBytes];
  encode(SegmentHeader{.base = 0, .log = kTinyLog, .partition = 0, .partitions = 1, .created_ms = kTinyMs, .epoch = 1},
         bytes);
  EXPECT_EQ(std::vector<std::byte>(bytes, bytes + sizeof bytes), tiny_header());
  const auto header = decode_segment_header(bytes);
  ASSERT_TRUE(header);
  EXPECT_EQ(header->log, kTinyLog);
  EXPECT_EQ(header->created_ms, kTinyMs);
}

TEST(EventLogFormat, BatchesHaveTheBytesOfTheExample) {
  const Record hello{text("k1"), text("hello"), kTinyMs};
  EXPECT_EQ(make_batch({.base = 0, .epoch = 1, .largest_ms = kTinyMs, .append_ms = kTinyMs + 10}, {hello}),
            tiny_first());
  const Record a{text("k2"), text("a"), kTinyMs + 1000};
  const Record bc{{}, text("bc"), kTinyMs + 500};
  EXPECT_EQ(make_batch({.base = 1,
                        .epoch = 1,
                        .largest_ms = kTinyMs + 1000,
                        .append_ms = kTinyMs + 1020,
                        .producer = 7,
                        .sequence = 1},
                       {a, bc}),
            tiny_second());
}

TEST(EventLogFormat, AnIndexHasTheBytesOfTheExample) {
  const IndexEntry entries[] = {{0, 64, kNoTime}, {1, 151, kTinyMs}};
  const auto bytes = encode_index(0, entries);
  EXPECT_EQ(bytes, from_hex("4d4c4f4749445831 0000000000000000 0000000000000000 4000000000000000"
                            "0000000000000080 0100000000000000 9700000000000000 0068e5cf8b010000"));
  const auto decoded = decode_index(0, bytes);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(*decoded, std::vector<IndexEntry>(std::begin(entries), std::end(entries)));
  EXPECT_FALSE(decode_index(1, bytes));
  EXPECT_EQ(decode_index(0, Bytes(bytes).first(63))->size(), 1U);
}

TEST(EventLogFormat, ABatchWithOneFlippedBitIsRefused) {
  const auto whole = tiny_second();
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    auto bytes = whole;
    bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    const auto header = decode_batch_header(bytes);
    EXPECT_FALSE(header && body_fits(*header, Bytes(bytes).subspan(kBatchHeaderBytes))) << "bit " << bit;
  }
}

TEST(EventLogFormat, LengthsThatDoNotAddUpAreRefused) {
  const auto bytes = tiny_second();
  auto header = *decode_batch_header(bytes);
  const Bytes body = Bytes(bytes).subspan(kBatchHeaderBytes);
  EXPECT_TRUE(lengths_fit(header, body));
  header.records = 1;
  EXPECT_FALSE(lengths_fit(header, body));
  header.records = 3;
  EXPECT_FALSE(lengths_fit(header, body));
}

TEST(EventLogHash, KeysChooseThePartitionsOfTheContract) {
  EXPECT_EQ(mix(0), 0xe220a8397b1dcdafU);
  EXPECT_EQ(mix(7), 0x63cbe1e459320dd7U);
  EXPECT_EQ(fnv1a64(text("k")), 0xaf63e64c8601fd8aU);
  EXPECT_EQ(choose_partition(text("k"), 2), 1U);
  EXPECT_EQ(choose_partition(text("k"), 4), 3U);
  EXPECT_EQ(choose_partition(text("k"), 8), 3U);
  EXPECT_EQ(choose_partition(text("req-1"), 2), 0U);
  EXPECT_EQ(choose_partition(text("req-1"), 4), 0U);
  EXPECT_EQ(choose_partition(text("req-1"), 8), 4U);
}

}  // namespace
}  // namespace eventlog
