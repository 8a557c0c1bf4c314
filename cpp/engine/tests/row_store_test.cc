// row_store_test.cc: rows keep their content through growth, and freed ones are used again.
#include "engine/row_store.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

namespace engine {
namespace {

std::uint32_t take(RowStore& rows, std::uint64_t content) {
  rows.reserve(1);
  const std::uint32_t row = rows.take();
  std::memcpy(rows.at(row), &content, sizeof content);
  if (rows.state_at(row) != nullptr) std::memcpy(rows.state_at(row), &content, sizeof content);
  return row;
}

std::uint64_t content(const RowStore& rows, std::uint32_t row) {
  std::uint64_t value = 0;
  std::memcpy(&value, rows.at(row), sizeof value);
  if (rows.state_at(row) != nullptr) {
    std::uint64_t state = 0;
    std::memcpy(&state, rows.state_at(row), sizeof state);
    EXPECT_EQ(state, value) << "row " << row;
  }
  return value;
}

TEST(RowStore, RowsKeepTheirContentWhileTheStoreGrows) {
  constexpr std::size_t kRowBytes = 132;
  RowArena arena(kRowBytes / 3, kRowBytes / 3 * 2);
  RowStore rows(&arena);
  for (std::uint64_t i = 0; i < 20'000; ++i) ASSERT_EQ(take(rows, i * 7), i);
  for (std::uint32_t i = 0; i < 20'000; ++i) ASSERT_EQ(content(rows, i), i * 7ULL);
  EXPECT_LE(rows.memory_bytes(), 20'000 * kRowBytes * 11 / 10);
}

TEST(RowStore, FreedRowsAreTakenAgainBeforeNewOnes) {
  RowArena arena(8, 8);
  RowStore rows(&arena);
  for (std::uint64_t i = 0; i < 1000; ++i) take(rows, i);
  const std::size_t before = rows.memory_bytes();
  for (std::uint32_t row = 0; row < 500; ++row) rows.free(row);
  for (std::uint64_t i = 0; i < 500; ++i) EXPECT_LT(take(rows, i), 500U);
  EXPECT_EQ(rows.memory_bytes(), before);
  EXPECT_EQ(rows.end(), 1000U);
}

TEST(RowStore, ATinyStoreTakesLittleMemory) {
  RowArena arena(64, 64);
  RowStore rows(&arena);
  take(rows, 1);
  EXPECT_LE(rows.memory_bytes(), 1024U + kLineBytes);
}

TEST(RowStore, RowsLargerThanASlabWork) {
  constexpr std::size_t kRowBytes = 1 << 20;
  RowArena arena(kRowBytes, 0);
  RowStore rows(&arena);
  for (std::uint64_t i = 0; i < 20; ++i) take(rows, i);
  for (std::uint32_t i = 0; i < 20; ++i) EXPECT_EQ(content(rows, i), i);
}

TEST(RowStore, TimesAreZeroUntilOneIsSet) {
  RowArena arena(8, 8);
  RowStore rows(&arena);
  const auto take_now = [&](std::uint32_t time_s) {
    const std::uint32_t row = take(rows, 0);
    rows.set_time(row, time_s);
    return row;
  };
  for (std::uint32_t row = 0; row < 1000; ++row) ASSERT_EQ(take_now(0), row);
  EXPECT_EQ(rows.stored_times(), nullptr);
  EXPECT_EQ(rows.time(999), 0U);
  rows.set_time(5, 7);
  ASSERT_NE(rows.stored_times(), nullptr);
  for (std::uint32_t row = 1000; row < 20'000; ++row) ASSERT_EQ(take_now(row), row);
  for (std::uint32_t row = 0; row < 20'000; ++row) ASSERT_EQ(rows.time(row), row == 5 ? 7 : row < 1000 ? 0 : row);
  rows.set_time(5, 0);
  EXPECT_EQ(rows.time(5), 0U);
  rows.clear();
  EXPECT_EQ(take_now(0), 0U);
  EXPECT_EQ(rows.time(0), 0U);
  EXPECT_EQ(rows.stored_times(), nullptr);
}

TEST(RowStore, MemoryThatHeldOtherTimesGivesZeros) {
  constexpr std::uint32_t kRows = 50'000;
  RowArena arena(8, 0);
  const auto fill = [&](RowStore& rows, std::uint32_t time_s) {
    rows.reserve(kRows);
    for (std::uint32_t row = 0; row < kRows; ++row) rows.set_time(rows.take(), time_s);
  };
  RowStore kept(&arena);  // keeps the huge page that the times of all three share
  fill(kept, 1);
  RowStore dirty(&arena);
  fill(dirty, 0xFFFFFFFF);
  dirty.clear();
  RowStore rows(&arena);
  fill(rows, 0);
  rows.set_time(7, 9);
  for (std::uint32_t row = 0; row < kRows; ++row) ASSERT_EQ(rows.time(row), row == 7 ? 9U : 0U) << row;
}

TEST(RowStore, AdoptedRowsKeepTheirTimes) {
  RowArena arena(8, 0);
  std::array<std::byte, 3 * 8> content{};
  for (const std::uint32_t last : {0U, 9U}) {
    RowStore rows(&arena);
    rows.adopt(content.data(), std::array<std::uint32_t, 3>{0, 0, last});
    EXPECT_EQ(rows.time(0), 0U);
    EXPECT_EQ(rows.time(2), last);
    EXPECT_EQ(rows.stored_times() == nullptr, last == 0);
  }
}

}  // namespace
}  // namespace engine
