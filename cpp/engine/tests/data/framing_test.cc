#include "engine/data/framing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "engine/error.h"
#include "engine/tfrecord.h"

namespace engine::data {
namespace {

using Stream = std::vector<std::byte>;

Bytes bytes_of(std::string_view text) { return {reinterpret_cast<const std::byte*>(text.data()), text.size()}; }

std::vector<Framing> every_framing() {
  std::vector<Framing> framings;
  for (std::uint32_t bits = 0; bits < 16; ++bits) framings.push_back(Framing::of(bits));
  framings.push_back(Framing::of(Framing::kTfRecord));
  return framings;
}

bool has_sort_id(const Framing& framing) {
  return framing.kind == Framing::Kind::kFlags && framing.sort_id && !framing.lagrangex_header;
}

// Records 'a' * i, i = 0..15, with sort ids where there is a place for them.
Stream sixteen_records(const Framing& framing, bool with_sort_ids) {
  Stream out;
  for (std::size_t i = 0; i < 16; ++i) {
    const std::string sort_id = with_sort_ids && has_sort_id(framing) ? "user " + std::to_string(i) : "";
    append_frame(out, framing, bytes_of(std::string(i, 'a')), bytes_of(sort_id));
  }
  return out;
}

std::vector<std::string> texts(const Records& records) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < records.size(); ++i) {
    out.emplace_back(reinterpret_cast<const char*>(records[i].data()), records[i].size());
  }
  return out;
}

std::vector<std::string> read_all(FrameReader& reader, Bytes stream, std::size_t piece, std::size_t most = 5) {
  std::vector<std::string> out;
  const auto take = [&] {
    while (auto lot = reader.take(most, 1 << 20, false)) {
      for (auto& text : texts(*lot)) out.push_back(text);
    }
  };
  for (std::size_t at = 0; at < stream.size(); at += piece) {
    reader.feed(stream.subspan(at, std::min(piece, stream.size() - at)));
    take();
  }
  reader.finish();
  take();
  return out;
}

std::string error_of(const Framing& framing, Bytes stream) {
  try {
    FrameReader reader(framing, "part-0", 1000, 7);
    (void)read_all(reader, stream, 13);
  } catch (const RecordCorrupt& error) {
    return error.what();
  }
  return "";
}

Stream words(std::initializer_list<std::uint64_t> values) {
  Stream out(values.size() * 8);
  std::memcpy(out.data(), std::data(values), out.size());
  return out;
}

TEST(FramingTest, gives_back_what_was_written_whatever_the_flags_and_the_pieces) {
  std::vector<std::string> expected;
  for (std::size_t i = 0; i < 16; ++i) expected.emplace_back(i, 'a');
  for (const Framing& framing : every_framing()) {
    for (const bool with_sort_ids : {false, true}) {
      const Stream stream = sixteen_records(framing, with_sort_ids);
      for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, std::size_t{64}, stream.size()}) {
        FrameReader reader(framing, "test");
        EXPECT_EQ(read_all(reader, stream, piece), expected);
        EXPECT_EQ(reader.offset(), stream.size());
        EXPECT_EQ(reader.records(), 16U);
      }
    }
  }
}

TEST(FramingTest, overhead_per_record_is_that_of_the_original) {
  const std::size_t expected[] = {8, 16, 16, 24, 24, 32, 32, 40};
  for (std::uint32_t bits = 0; bits < 16; ++bits) {
    Stream out;
    append_frame(out, Framing::of(bits), {});
    EXPECT_EQ(out.size(), bits < 8 ? expected[bits] : 16U) << bits;
  }
}

TEST(FramingTest, a_lagrangex_word_gives_the_data_source_without_its_low_byte) {
  const Framing framing = Framing::of(Framing::kLagrangexHeader);
  Stream stream;
  append_frame(stream, framing, bytes_of("x"), {}, 914176);
  const Stream second = words({0xffffffff'000df301ULL, 0});
  stream.insert(stream.end(), second.begin(), second.end());
  FrameReader reader(framing, "test");
  reader.feed(stream);
  const auto lot = reader.take(10, 100, true);
  ASSERT_TRUE(lot.has_value());
  ASSERT_EQ(lot->size(), 2U);
  EXPECT_EQ(lot->entries[0].source_key, 914176U);
  EXPECT_EQ(lot->entries[1].source_key, 0x000df300U);
  EXPECT_EQ(lot->entries[0].stream_offset, 16U);
  EXPECT_EQ(lot->entries[1].stream_offset, 16U + 1 + 16);
}

TEST(FramingTest, without_a_lagrangex_word_the_data_source_is_zero) {
  const Stream stream = words({~std::uint64_t{0}, 0});
  FrameReader reader(Framing::of(Framing::kKafkaDump), "test");
  reader.feed(stream);
  EXPECT_EQ(reader.take(1, 1, true)->entries[0].source_key, 0U);
}

TEST(FramingTest, an_aggregate_page_has_the_length_of_its_sort_id_in_the_prefix) {
  Stream stream = words({3});
  for (const char c : std::string("abc")) stream.push_back(static_cast<std::byte>(c));
  const Stream size = words({2});
  stream.insert(stream.end(), size.begin(), size.end());
  for (const char c : std::string("hi")) stream.push_back(static_cast<std::byte>(c));
  FrameReader reader(Framing::of(Framing::kKafkaDumpPrefix | Framing::kSortId), "test");
  EXPECT_EQ(read_all(reader, stream, 4), std::vector<std::string>{"hi"});
  const std::string error = error_of(Framing::of(Framing::kKafkaDumpPrefix), stream);
  EXPECT_NE(error.find("part-0: record 7 at byte 1000: the prefix word is 3"), std::string::npos) << error;
  EXPECT_NE(error.find("set sort_id=True"), std::string::npos) << error;
}

TEST(FramingTest, a_stream_cut_anywhere_inside_a_record_is_refused_with_its_place) {
  for (const Framing& framing : every_framing()) {
    const Stream stream = sixteen_records(framing, true);
    std::vector<std::size_t> ends{0};
    FrameReader reader(framing, "test");
    reader.feed(stream);
    while (reader.take(1, 1, false)) ends.push_back(reader.offset());
    ASSERT_EQ(ends.size(), 17U);
    for (std::size_t size = 0; size < stream.size(); ++size) {
      const bool is_boundary = std::find(ends.begin(), ends.end(), size) != ends.end();
      const std::string error = error_of(framing, {stream.data(), size});
      EXPECT_EQ(error.empty(), is_boundary) << size << error;
      if (is_boundary) continue;
      const auto begin = std::upper_bound(ends.begin(), ends.end(), size) - 1;
      const std::string place = "part-0: record " + std::to_string(7 + (begin - ends.begin())) + " at byte " +
                                std::to_string(1000 + *begin) + ": ";
      EXPECT_EQ(error.find(place), 0U) << error;
    }
  }
}

TEST(FramingTest, hostile_sizes_are_refused_before_memory_is_taken) {
  const Framing none = Framing::of(0);
  EXPECT_NE(error_of(none, words({kReservedSize, 1})).find("0xfefefefe"), std::string::npos);
  for (const std::uint64_t size : {kMaxFrameBytes + 1, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    EXPECT_NE(error_of(none, words({size, 1})).find("above the limit"), std::string::npos);
    EXPECT_NE(error_of(Framing::of(Framing::kSortId), words({size, 1})).find("a sort id of"), std::string::npos);
  }
  const std::size_t before = Buffer::pooled_bytes();
  EXPECT_NE(error_of(none, words({kMaxFrameBytes, 1})).find("it needs at least 1073741832"), std::string::npos);
  EXPECT_LT(Buffer::pooled_bytes(), before + (1 << 20));
}

TEST(BufferTest, a_pool_full_of_one_size_takes_another_size) {
  {
    std::vector<std::shared_ptr<Buffer>> many(300);
    for (auto& buffer : many) buffer = Buffer::take(1 << 12);
  }
  if (Buffer::pooled_bytes() == 0) GTEST_SKIP() << "buffers are not pooled under the address sanitizer";
  Buffer::take(1 << 20).reset();
  const std::size_t held = Buffer::pooled_bytes();
  const std::shared_ptr<Buffer> buffer = Buffer::take(1 << 20);
  EXPECT_EQ(Buffer::pooled_bytes(), held - (1 << 20));
}

TEST(FramingTest, records_before_a_bad_one_are_given_first) {
  const Framing none = Framing::of(0);
  Stream stream;
  append_frame(stream, none, bytes_of("good"));
  append_frame(stream, none, bytes_of("also good"));
  const Stream bad = words({~std::uint64_t{0}});
  stream.insert(stream.end(), bad.begin(), bad.end());
  FrameReader reader(none, "test");
  reader.feed(stream);
  EXPECT_EQ(texts(*reader.take(100, 100, false)), (std::vector<std::string>{"good", "also good"}));
  EXPECT_THROW((void)reader.take(100, 100, false), RecordCorrupt);
  EXPECT_THROW((void)reader.take(100, 100, false), RecordCorrupt);
}

TEST(FramingTest, lots_are_the_same_however_the_stream_is_cut) {
  std::mt19937_64 random(5);
  for (const Framing& framing : every_framing()) {
    Stream stream;
    for (int i = 0; i < 200; ++i) append_frame(stream, framing, bytes_of(std::string(random() % 90, 'x')));
    std::vector<std::uint64_t> expected;
    for (const std::size_t piece : {stream.size(), std::size_t{3}, std::size_t{50}, std::size_t{999}}) {
      FrameReader reader(framing, "test");
      std::vector<std::uint64_t> ends;
      for (std::size_t at = 0; at < stream.size(); at += piece) {
        reader.feed(Bytes(stream).subspan(at, std::min(piece, stream.size() - at)));
        while (reader.take(7, 300, false)) ends.push_back(reader.offset());
      }
      reader.finish();
      while (reader.take(7, 300, false)) ends.push_back(reader.offset());
      if (expected.empty()) expected = ends;
      EXPECT_EQ(ends, expected) << piece;
      EXPECT_EQ(ends.back(), stream.size());
    }
  }
}

TEST(FramingTest, a_lot_respects_both_limits_but_always_has_a_record) {
  const Framing none = Framing::of(0);
  Stream stream;
  for (const std::size_t size : {3, 3, 3, 50, 1}) append_frame(stream, none, bytes_of(std::string(size, 'x')));
  FrameReader reader(none, "test");
  reader.feed(stream);
  EXPECT_EQ(reader.take(2, 100, false)->size(), 2U);
  EXPECT_EQ(reader.take(9, 10, false)->size(), 1U);
  EXPECT_EQ(reader.take(9, 10, false)->entries[0].size, 50U);
  EXPECT_FALSE(reader.take(9, 10, false).has_value());
  EXPECT_EQ(reader.take(9, 10, true)->size(), 1U);
}

TEST(FramingTest, a_lot_does_not_wait_for_a_long_record_that_will_not_be_in_it) {
  const Framing none = Framing::of(0);
  Stream stream;
  append_frame(stream, none, bytes_of("short"));
  const Stream header = words({1 << 20});
  stream.insert(stream.end(), header.begin(), header.end());
  FrameReader reader(none, "test");
  reader.feed(stream);
  ASSERT_TRUE(reader.take(100, 1000, false).has_value());
  EXPECT_FALSE(reader.take(100, 1000, false).has_value());
}

TEST(FramingTest, records_keep_their_bytes_after_the_reader_went_on) {
  const Framing none = Framing::of(0);
  Stream stream;
  for (int i = 0; i < 50; ++i) append_frame(stream, none, bytes_of(std::string(100, static_cast<char>('A' + i))));
  std::vector<Records> lots;
  {
    FrameReader reader(none, "test");
    for (std::size_t at = 0; at < stream.size(); at += 333) {
      reader.feed(Bytes(stream).subspan(at, std::min<std::size_t>(333, stream.size() - at)));
      while (auto lot = reader.take(3, 1000, true)) lots.push_back(std::move(*lot));
    }
  }
  int next = 0;
  for (const Records& lot : lots) {
    for (const auto& text : texts(lot)) EXPECT_EQ(text, std::string(100, static_cast<char>('A' + next++)));
  }
  EXPECT_EQ(next, 50);
}

TEST(FramingTest, the_first_sort_id_is_kept) {
  const Framing framing = Framing::of(Framing::kSortId);
  FrameReader reader(framing, "test");
  EXPECT_TRUE(reader.first_sort_id().empty());
  reader.feed(sixteen_records(framing, true));
  (void)reader.take(3, 100, false);
  const Bytes id = reader.first_sort_id();
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(id.data()), id.size()), "user 0");
}

TEST(FramingTest, a_bare_stream_is_one_record_at_its_end) {
  FrameReader reader(Framing::of(Framing::kBare), "test");
  reader.feed(bytes_of("one "));
  reader.feed(bytes_of("message"));
  EXPECT_FALSE(reader.take(1, 1, true).has_value());
  reader.finish();
  EXPECT_EQ(texts(*reader.take(1, 1, true)), std::vector<std::string>{"one message"});
  EXPECT_FALSE(reader.take(1, 1, true).has_value());
  EXPECT_THROW(reader.feed(bytes_of("more")), ConfigError);
}

TEST(FramingTest, a_damaged_tfrecord_is_named_by_number_and_place) {
  const Framing framing = Framing::of(Framing::kTfRecord);
  Stream stream = sixteen_records(framing, false);
  stream[16 + 17 + 13] ^= std::byte{1};
  EXPECT_EQ(error_of(framing, stream),
            "part-0: record 9 at byte 1033: the checksum of the record's 2 bytes does not match");
}

TEST(FramingTest, a_writer_refuses_what_the_framing_has_no_place_for) {
  Stream out;
  EXPECT_THROW(append_frame(out, Framing::of(0), {}, bytes_of("id")), ConfigError);
  EXPECT_THROW(append_frame(out, Framing::of(Framing::kLagrangexHeader | Framing::kSortId), {}, bytes_of("id")),
               ConfigError);
  EXPECT_THROW(append_frame(out, Framing::of(Framing::kSortId), {}, {}, 256), ConfigError);
  EXPECT_THROW(append_frame(out, Framing::of(Framing::kLagrangexHeader), {}, {}, 257), ConfigError);
  EXPECT_THROW(append_frame(out, Framing::of(Framing::kTfRecord), {}, bytes_of("id")), ConfigError);
  EXPECT_THROW((void)Framing::of(64), ConfigError);
  EXPECT_THROW((void)Framing::of(Framing::kTfRecord | Framing::kBare), ConfigError);
  EXPECT_TRUE(out.empty());
}

TEST(FramingTest, random_bytes_give_records_or_an_error_never_more) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 3000; ++round) {
    Stream stream(random() % 200);
    // Mostly zeros, so that sizes are often small enough to continue.
    for (auto& byte : stream) byte = static_cast<std::byte>(random() % 8 == 0 ? random() : 0);
    for (const Framing& framing : every_framing()) {
      FrameReader reader(framing, "test");
      try {
        std::uint64_t total = 0;
        for (const auto& text : read_all(reader, stream, 1 + random() % 40)) total += text.size();
        EXPECT_LE(total, stream.size());
      } catch (const RecordCorrupt&) {
        EXPECT_LE(reader.offset(), stream.size());
      }
    }
  }
}

}  // namespace
}  // namespace engine::data
