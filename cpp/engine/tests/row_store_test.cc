// row_store_test.cc: rows keep their content through growth, and freed ones are used again.
#include "engine/row_store.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace engine
