#include "engine/data/framing_probe.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace engine::data {
namespace {

using Stream = std::vector<std::byte>;

Stream from_hex(const std::string& text) {
  Stream out;
  std::string digits;
  for (const char c : text) {
    if (c != ' ') digits += c;
  }
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    out.push_back(static_cast<std::byte>(std::stoi(digits.substr(i, 2), nullptr, 16)));
  }
  return out;
}

const std::string kInstance =
    "0a10 0100000000000000 0200000000000000 1a08 00000000 0000803f 2a03 320101 4a0d 0a0161 1208 0300000000000000";
const std::string kExampleBatch =
    "0a13 0a0161 120c120a0a08 6400000000000100 2001 0a15 0a095f5f4c4142454c5f5f 1208 1a060a04 0000803f 1801";
const std::string kExample =
    "0a13 0a0161 120c120a0a08 6400000000000100 1801 a2060f 11 0700000000000000 dd01 0000003f aa0604 0000803f "
    "b506 00000040";
// features { feature { key: "ab" value { int64_list { value: 7 value: 8 } } } feature { key: "c" value { float_list ...
const std::string kTfExample = "0a1b 0a0c 0a026162 1206 1a04 0a02 0708 0a0b 0a0163 1206 1204 0a02 0000";
const std::string kRowMajor = "0a0c 0a0161 12071205 0a03616263 1a04 aa0601 00";

Message best(const RecordFit& fits) {
  std::size_t best = 0;
  double best_share = -1;
  for (std::size_t i = 0; i < kMessages; ++i) {
    const auto& fit = fits[i];
    if (fit.misfits > 0 || fit.known == 0) continue;
    const double share = static_cast<double>(fit.known) / static_cast<double>(fit.known + fit.unknown);
    if (share > best_share) best_share = share, best = i;
  }
  EXPECT_EQ(best_share, 1.0);
  return static_cast<Message>(best);
}

TEST(FramingProbeTest, messages_are_told_apart_by_their_fields) {
  EXPECT_EQ(best(fit_messages(from_hex(kInstance))), Message::kInstance);
  EXPECT_EQ(best(fit_messages(from_hex(kExample))), Message::kExample);
  EXPECT_EQ(best(fit_messages(from_hex(kExampleBatch))), Message::kExampleBatch);
  // 8 bytes of floats in the second feature
  EXPECT_EQ(best(fit_messages(from_hex("0a1d 0a0c 0a026162 1206 1a04 0a02 0708 0a0d 0a0163 1208 1206 0a04 00000000"))),
            Message::kTfExample);
  EXPECT_EQ(best(fit_messages(from_hex("0a0f 0a0161 120a 3208 0a06616263646566 1a07 aa0604 0000803f"))),
            Message::kExampleBatchRowMajor);
}

TEST(FramingProbeTest, a_float_list_of_two_bytes_is_no_message) {
  for (const auto& fit : fit_messages(from_hex(kTfExample))) EXPECT_TRUE(fit.misfits > 0 || fit.unknown > 0);
  for (const auto& fit : fit_messages(from_hex(kRowMajor))) EXPECT_TRUE(fit.misfits > 0 || fit.unknown > 0);
}

TEST(FramingProbeTest, unknown_fields_are_normal_in_a_line_id_and_counted_elsewhere) {
  // line_id { 11: "x"  20: 5 }, then field 50 of Instance
  const auto fits = fit_messages(from_hex("2a06 5a0178 a00105 9003 01"));
  const auto& fit = fits[static_cast<std::size_t>(Message::kInstance)];
  EXPECT_EQ(fit.misfits, 0U);
  EXPECT_EQ(fit.known, 1U);
  EXPECT_EQ(fit.unknown, 1U);
}

TEST(FramingProbeTest, a_probe_counts_what_a_framing_explains) {
  const auto payload = from_hex(kInstance);
  const Framing framing = Framing::of(Framing::kSortId | Framing::kKafkaDump);
  Stream stream;
  for (int i = 0; i < 10; ++i) append_frame(stream, framing, payload);
  const auto whole = probe_framing(framing, stream, 100, true);
  EXPECT_EQ(whole.records, 10U);
  EXPECT_EQ(whole.bytes, stream.size());
  EXPECT_TRUE(whole.has_zero_words);
  EXPECT_TRUE(whole.damage.empty());
  EXPECT_EQ(whole.fit[0].misfits, 0U);
  EXPECT_EQ(probe_framing(framing, stream, 3, true).records, 3U);
  // Without flags every size word of zero is an empty record.
  const auto wrong = probe_framing(Framing::of(0), stream, 100, true);
  EXPECT_EQ(wrong.records, 30U);
  EXPECT_EQ(wrong.empty, 20U);
  stream.pop_back();
  EXPECT_FALSE(probe_framing(framing, stream, 100, true).damage.empty());
  const auto cut = probe_framing(framing, stream, 100, false);
  EXPECT_TRUE(cut.damage.empty());
  EXPECT_TRUE(cut.is_cut);
  EXPECT_EQ(cut.records, 9U);
}

TEST(FramingProbeTest, words_tell_a_data_source_from_a_skipped_word) {
  const Framing framing = Framing::of(Framing::kLagrangexHeader);
  Stream stream;
  append_frame(stream, framing, from_hex(kExampleBatch), {}, 914176);
  EXPECT_FALSE(probe_framing(framing, stream, 9, true).has_zero_words);
  EXPECT_FALSE(probe_framing(framing, stream, 9, true).has_high_words);
  stream[7] = std::byte{1};
  EXPECT_TRUE(probe_framing(framing, stream, 9, true).has_high_words);
}

TEST(FramingProbeTest, any_bytes_can_be_looked_at) {
  std::mt19937_64 random(2);
  const Stream seeds[] = {from_hex(kInstance), from_hex(kExample), from_hex(kExampleBatch)};
  for (int round = 0; round < 20000; ++round) {
    Stream bytes = seeds[random() % 3];
    for (int i = 0; i < 3; ++i) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    bytes.resize(random() % (bytes.size() + 1));
    for (const auto& fit : fit_messages(bytes)) EXPECT_LE(fit.known + fit.unknown, bytes.size() + 8);
    for (std::uint32_t bits = 0; bits < 9; ++bits) {
      EXPECT_LE(probe_framing(Framing::of(bits), bytes, 10, round % 2 == 0).bytes, bytes.size());
    }
    EXPECT_LE(probe_framing(Framing::of(Framing::kTfRecord), bytes, 10, true).bytes, bytes.size());
  }
}

}  // namespace
}  // namespace engine::data
