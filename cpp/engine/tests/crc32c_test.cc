#include "engine/crc32c.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

namespace engine {
namespace {

std::uint32_t of(std::string_view text) { return crc32c(0, text.data(), text.size()); }

// RFC 3720, appendix B.4, and the usual check value.
TEST(Crc32cTest, matches_published_vectors) {
  EXPECT_EQ(of(""), 0U);
  EXPECT_EQ(of("123456789"), 0xe3069283U);
  std::vector<unsigned char> bytes(32, 0);
  EXPECT_EQ(crc32c(0, bytes.data(), 32), 0x8a9136aaU);
  bytes.assign(32, 0xff);
  EXPECT_EQ(crc32c(0, bytes.data(), 32), 0x62a8ab43U);
  std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(0));
  EXPECT_EQ(crc32c(0, bytes.data(), 32), 0x46dd794eU);
}

TEST(Crc32cTest, masks_as_tfrecord_does) {
  EXPECT_EQ(mask_crc32c(0), 0xa282ead8U);
  // The length field of a TFRecord with an empty payload: eight zero bytes.
  const std::uint64_t zero = 0;
  EXPECT_EQ(crc32c(0, &zero, 8), 0x8c28b28aU);
  EXPECT_EQ(masked_crc32c(&zero, 8), ((0x8c28b28aU >> 15) | (0x8c28b28aU << 17)) + 0xa282ead8U);
}

TEST(Crc32cTest, every_length_and_alignment_agrees_with_the_portable_path) {
  std::mt19937_64 random(7);
  std::vector<unsigned char> bytes(40000);
  for (auto& byte : bytes) byte = static_cast<unsigned char>(random());
  for (std::size_t size = 0; size < 2000; ++size) {
    const std::size_t from = size % 9;
    ASSERT_EQ(crc32c(1, bytes.data() + from, size), crc32c_portable(1, bytes.data() + from, size)) << size;
  }
  for (const std::size_t size : {12287U, 12288U, 12289U, 13056U, 24576U, 39991U}) {
    ASSERT_EQ(crc32c(0, bytes.data() + 3, size), crc32c_portable(0, bytes.data() + 3, size)) << size;
  }
}

TEST(Crc32cTest, extends_across_any_cut) {
  std::vector<unsigned char> bytes(1500);
  std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(0));
  const std::uint32_t whole = crc32c(0, bytes.data(), bytes.size());
  for (std::size_t cut = 0; cut <= bytes.size(); cut += 37) {
    EXPECT_EQ(crc32c(crc32c(0, bytes.data(), cut), bytes.data() + cut, bytes.size() - cut), whole);
  }
}

}  // namespace
}  // namespace engine
