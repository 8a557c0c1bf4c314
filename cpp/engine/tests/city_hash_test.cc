#include "engine/city_hash.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/fid.h"

namespace engine {
namespace {

std::uint64_t of(std::string_view text) { return city_hash64(text.data(), text.size()); }

struct Vector {
  std::string_view text;
  std::uint64_t hash;
  std::uint32_t slot;
  std::uint64_t fid_v1;
  std::int64_t fid_v2;
};

// Values found in the original's shipped example batch.
constexpr Vector kVectors[] = {
    {"0", 0xd2ed96073b81823fULL, 520, 9380318556689891903ULL, 146531945696821823LL},
    {"1", 0x811f023a122d0be1ULL, 520, 9376215397644962785ULL, 146369436325841889LL},
    {"ios", 0x19463df5d8064574ULL, 52, 938505698453898612ULL, 14704824889525620LL},
    {"android", 0x9521b08d4de90295ULL, 52, 946231517668508309ULL, 14830819732947605LL},
    {"wifi", 0x051e13c93eb31947ULL, 61, 1107344313440999751ULL, 17191728640629063LL},
    {"2020", 0x6ddbcc8c6fedcaa1ULL, 232, 4187165182116350625ULL, 65527098142214817LL},
    {"12074", 0x2d73c4226c1c7fedULL, 207, 3743551367396753389ULL, 58480972300845037LL},
    {"4382", 0xf1a22809f9368b46ULL, 214, 3864695453538224966ULL, 60279668316998470LL},
};

TEST(CityHashTest, gives_the_feature_ids_of_the_original) {
  for (const auto& vector : kVectors) {
    EXPECT_EQ(of(vector.text), vector.hash) << vector.text;
    const std::int64_t v1 = make_fid_v1(vector.slot, vector.hash);
    EXPECT_EQ(static_cast<std::uint64_t>(v1), vector.fid_v1) << vector.text;
    EXPECT_EQ(fid_v1_to_v2(v1), vector.fid_v2) << vector.text;
    EXPECT_EQ(slot_v1(v1), vector.slot);
    EXPECT_EQ(slot_v2(vector.fid_v2), vector.slot);
  }
}

// The original's extractor hashes the eight bytes of the value; it kept 49 bits where the layout has 48.
TEST(CityHashTest, hashes_integers_by_their_bytes) {
  const std::int64_t value = 185;
  const std::uint64_t hash = city_hash64(&value, sizeof value);
  EXPECT_EQ((hash & ((1ULL << 49) - 1)) | (4ULL << 48), 1153447759131936ULL);
}

// Every branch of the length; byte i is (7 i + 3) mod 251. Expected values come from the published implementation.
TEST(CityHashTest, matches_the_published_algorithm_at_every_length_class) {
  std::string bytes;
  for (int i = 0; i < 1200; ++i) bytes.push_back(static_cast<char>((i * 7 + 3) % 251));
  constexpr std::pair<std::size_t, std::uint64_t> kLengths[] = {
      {0, 0x9ae16a3b2f90404fULL},   {1, 0xbec09cc447469d8bULL},   {2, 0x16f8263645a8ecf5ULL},
      {3, 0x40b4412e33eefd64ULL},   {4, 0xf3c7ee05197a7b92ULL},   {5, 0x156112f7c93e5cb3ULL},
      {7, 0x4fef0b39c12aa9a4ULL},   {8, 0x0c97ecbc1e9d2626ULL},   {9, 0xe51cf38098a5bfffULL},
      {15, 0x2ca35f0a039b4f1bULL},  {16, 0x7eda0ed8c837a168ULL},  {17, 0xc9518fe63ebf6127ULL},
      {24, 0x310064a8de2c42d2ULL},  {31, 0xbd5ca6ee28fc43cbULL},  {32, 0xa53f806f23a314e8ULL},
      {33, 0x0d861240f8a6c64bULL},  {48, 0xcccfb01274f3c2eeULL},  {63, 0x6594e8a0d59e80eeULL},
      {64, 0x1e7ecab0f1b22f0fULL},  {65, 0xd4956fceda7039f9ULL},  {100, 0x531a2f061aee64fdULL},
      {127, 0xeeecbdf4b5fbb98aULL}, {128, 0xe57626f7d182892aULL}, {129, 0xfa5938ce10890961ULL},
      {191, 0xa5612e146e8b0d5bULL}, {192, 0x7938b8fff6e320faULL}, {193, 0x97a353d714a446eaULL},
      {256, 0x2009a56b6fc852b4ULL}, {1000, 0x7c02499cb9a589edULL}};
  for (const auto& [length, hash] : kLengths) EXPECT_EQ(of(std::string_view(bytes).substr(0, length)), hash) << length;
}

TEST(FidTest, a_negative_id_has_the_slot_of_its_bits) {
  EXPECT_EQ(slot_v2(-1), 32767U);
  EXPECT_EQ(slot_v1(-1), 1023U);
  EXPECT_EQ(slot_v2(make_fid_v2(305, ~0ULL)), 305U);
  static_assert(make_fid_v2(1, 2) == (1LL << 48 | 2));
  static_assert(make_fid_v1(512, 0) < 0);
}

}  // namespace
}  // namespace engine
