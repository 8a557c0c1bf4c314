#include "engine/tfrecord.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <string_view>

#include "engine/crc32c.h"
#include "engine/error.h"

namespace engine {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::vector<std::byte> three_records() {
  std::vector<std::byte> out;
  append_record(out, bytes_of("first"));
  append_record(out, {});
  append_record(out, bytes_of("the third record"));
  return out;
}

std::vector<std::string> read_all(std::span<const std::byte> bytes) {
  RecordScanner scanner(bytes, 0, "test");
  std::vector<std::string> records;
  std::span<const std::byte> record;
  while (scanner.next(record)) records.emplace_back(reinterpret_cast<const char*>(record.data()), record.size());
  scanner.finish();
  return records;
}

std::string error_of(std::span<const std::byte> bytes, std::uint64_t base = 0) {
  try {
    RecordScanner scanner(bytes, base, "shard.bin");
    std::span<const std::byte> record;
    while (scanner.next(record)) {
    }
    scanner.finish();
  } catch (const RecordCorrupt& error) {
    return error.what();
  }
  return "";
}

void set_length(std::vector<std::byte>& bytes, std::uint64_t length) {
  std::memcpy(bytes.data(), &length, 8);
  const std::uint32_t crc = masked_crc32c(bytes.data(), 8);
  std::memcpy(bytes.data() + 8, &crc, 4);
}

TEST(TfRecordTest, gives_back_what_was_appended) {
  EXPECT_EQ(read_all(three_records()), (std::vector<std::string>{"first", "", "the third record"}));
}

TEST(TfRecordTest, frames_as_tensorflow_does) {
  std::vector<std::byte> out;
  append_record(out, bytes_of("abc"));
  const unsigned char expected[] = {3, 0, 0, 0, 0, 0, 0, 0};
  ASSERT_EQ(out.size(), 12U + 3 + 4);
  EXPECT_EQ(std::memcmp(out.data(), expected, 8), 0);
  EXPECT_EQ(std::memcmp(out.data() + 12, "abc", 3), 0);
}

TEST(TfRecordTest, streams_whatever_the_size_of_the_pieces) {
  const auto whole = three_records();
  for (std::size_t piece = 1; piece <= whole.size(); ++piece) {
    std::vector<std::byte> pending;
    std::size_t records = 0;
    std::uint64_t offset = 0;
    for (std::size_t at = 0; at < whole.size(); at += piece) {
      pending.insert(pending.end(), whole.begin() + static_cast<std::ptrdiff_t>(at),
                     whole.begin() + static_cast<std::ptrdiff_t>(std::min(at + piece, whole.size())));
      RecordScanner scanner(pending, offset, "test");
      std::span<const std::byte> record;
      while (scanner.next(record)) ++records;
      offset += scanner.consumed();
      pending.erase(pending.begin(), pending.begin() + static_cast<std::ptrdiff_t>(scanner.consumed()));
    }
    EXPECT_EQ(records, 3U) << piece;
    EXPECT_TRUE(pending.empty());
  }
}

TEST(TfRecordTest, a_stream_cut_anywhere_inside_a_record_is_refused) {
  const auto whole = three_records();
  const std::size_t ends[] = {0, 12 + 5 + 4, 12 + 5 + 4 + 16};
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const bool is_boundary = std::find(std::begin(ends), std::end(ends), size) != std::end(ends);
    EXPECT_EQ(error_of({whole.data(), size}).empty(), is_boundary) << size;
  }
}

TEST(TfRecordTest, a_flipped_bit_anywhere_is_refused) {
  const auto whole = three_records();
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    auto damaged = whole;
    damaged[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_FALSE(error_of(damaged).empty()) << bit;
  }
}

TEST(TfRecordTest, the_error_names_source_offset_and_reason) {
  auto bytes = three_records();
  bytes[12 + 5 + 4 + 16 + 13] ^= std::byte{1};
  EXPECT_EQ(error_of(bytes, 1000),
            "shard.bin: record at byte 1037: the checksum of the record's 16 bytes does not match");
  bytes = three_records();
  bytes[0] ^= std::byte{1};
  EXPECT_EQ(error_of(bytes), "shard.bin: record at byte 0: the checksum of the record length does not match");
  bytes = three_records();
  bytes.pop_back();
  EXPECT_EQ(error_of(bytes),
            "shard.bin: record at byte 37: the stream ends inside a record, 31 bytes after its start; it needs 32");
}

TEST(TfRecordTest, hostile_lengths_with_good_checksums_are_refused) {
  for (const std::uint64_t length :
       {~std::uint64_t{0}, ~std::uint64_t{0} - 15, std::uint64_t{1} << 63, kMaxRecordBytes + 1}) {
    std::vector<std::byte> bytes(64);
    set_length(bytes, length);
    EXPECT_NE(error_of(bytes).find("above the limit"), std::string::npos) << length;
  }
  std::vector<std::byte> bytes(64);
  set_length(bytes, kMaxRecordBytes);
  EXPECT_NE(error_of(bytes).find("ends inside a record"), std::string::npos);
}

TEST(TfRecordTest, random_bytes_never_pass) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> bytes(1 + random() % 100);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    EXPECT_FALSE(error_of(bytes).empty());
  }
}

}  // namespace
}  // namespace engine
