// varints_test.cc: reading eight bytes at a time equals reading one by one.
#include "data/varints.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace engine::data {
namespace {

std::vector<std::byte> packed(const std::vector<std::uint64_t>& numbers) {
  std::vector<std::byte> bytes;
  for (std::uint64_t number : numbers) {
    for (; number >= 0x80; number >>= 7) bytes.push_back(static_cast<std::byte>(number | 0x80));
    bytes.push_back(static_cast<std::byte>(number));
  }
  return bytes;
}

std::vector<std::uint64_t> read(Bytes bytes) {
  std::vector<std::uint64_t> numbers;
  varints::for_each(bytes, [&](std::uint64_t number) { numbers.push_back(number); });
  return numbers;
}

TEST(Varints, NumbersOfEveryLengthAreReadAndCounted) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::uint64_t> numbers(round % 9);
    for (auto& number : numbers) number = random() >> random() % 64;
    const auto bytes = packed(numbers);
    EXPECT_EQ(read(bytes), numbers);
    EXPECT_EQ(varints::count(bytes), numbers.size());
  }
}

TEST(Varints, TheLargestAndTheSmallestNumbersAreReadBesideEachOther) {
  const std::vector<std::uint64_t> numbers{0, ~std::uint64_t{0}, 1, std::uint64_t{1} << 56, 127, 128};
  EXPECT_EQ(read(packed(numbers)), numbers);
  EXPECT_TRUE(read({}).empty());
}

TEST(Varints, NumbersOfUpToSevenBytesArePlain) {
  for (int shift = 0; shift < 49; ++shift) {
    EXPECT_TRUE(varints::are_plain(packed({1, std::uint64_t{1} << shift, 1}))) << shift;
  }
}

TEST(Varints, ACutNumberIsNeverPlain) {
  for (std::size_t size = 1; size < 40; ++size) {
    std::vector<std::byte> bytes(size, std::byte{1});
    bytes.back() = std::byte{0x81};
    EXPECT_FALSE(varints::are_plain(bytes)) << size;
  }
}

TEST(Varints, ANumberOfTenBytesOrMoreIsNeverPlainWhereverItStands) {
  for (std::size_t before = 0; before < 20; ++before) {
    for (std::size_t length = 10; length < 30; ++length) {
      std::vector<std::byte> bytes(before, std::byte{5});
      bytes.resize(before + length - 1, std::byte{0x80});
      bytes.push_back(std::byte{1});
      EXPECT_FALSE(varints::are_plain(bytes)) << before << " " << length;
    }
  }
}

}  // namespace
}  // namespace engine::data
