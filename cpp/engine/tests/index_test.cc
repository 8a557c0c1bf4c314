// index_test.cc: the index against a std::unordered_map, through growth, removal and wrap-around.
#include "engine/index.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <unordered_map>
#include <vector>

namespace engine {
namespace {

std::uint64_t hash_of(std::int64_t id) { return mix(static_cast<std::uint64_t>(id)); }

void insert(Index& index, std::int64_t id, std::uint32_t row, std::uint32_t time) {
  index.reserve(1);
  index.insert(id, hash_of(id), row, time);
}

TEST(Index, AnEmptyIndexFindsNothing) {
  const Index index;
  EXPECT_EQ(index.find(0, hash_of(0)), kNoSlot);
  EXPECT_EQ(index.memory_bytes(), 0U);
}

TEST(Index, AnyInt64IsAnId) {
  Index index;
  const std::vector<std::int64_t> ids = {0, -1, 1, std::numeric_limits<std::int64_t>::min(),
                                         std::numeric_limits<std::int64_t>::max()};
  for (std::uint32_t i = 0; i < ids.size(); ++i) insert(index, ids[i], i, i + 100);
  for (std::uint32_t i = 0; i < ids.size(); ++i) {
    const Slot slot = index.find(ids[i], hash_of(ids[i]));
    ASSERT_NE(slot, kNoSlot);
    EXPECT_EQ(index.row(slot), i);
    EXPECT_EQ(index.time(slot), i + 100);
  }
  EXPECT_EQ(index.find(7, hash_of(7)), kNoSlot);
}

TEST(Index, RandomInsertsAndErasesAgreeWithAMap) {
  std::mt19937_64 random(1);
  Index index;
  std::unordered_map<std::int64_t, std::uint32_t> model;
  for (std::uint32_t step = 0; step < 200'000; ++step) {
    // A small universe, so that buckets fill up, overflow into their neighbours and are emptied again.
    const auto id = static_cast<std::int64_t>(random() % 3000);
    const Slot slot = index.find(id, hash_of(id));
    const auto known = model.find(id);
    ASSERT_EQ(slot == kNoSlot, known == model.end());
    if (slot != kNoSlot) {
      ASSERT_EQ(index.row(slot), known->second);
      if (random() % 2 == 0) {
        index.erase(slot);
        model.erase(known);
      }
    } else {
      insert(index, id, step, 0);
      model[id] = step;
    }
    ASSERT_EQ(index.size(), model.size());
  }
  for (std::int64_t id = 0; id < 3000; ++id) {
    ASSERT_EQ(index.find(id, hash_of(id)) != kNoSlot, model.contains(id));
  }
}

TEST(Index, GrowthKeepsEveryEntryAndStaysWellFilled) {
  Index index;
  constexpr std::uint32_t kIds = 400'000;
  for (std::uint32_t i = 0; i < kIds; ++i) {
    insert(index, std::int64_t{i} << 40, i, i);
    if (i > 50'000) {
      ASSERT_LE(index.memory_bytes(), std::size_t{i} * 36) << i;
    }
  }
  for (std::uint32_t i = 0; i < kIds; ++i) {
    const std::int64_t id = std::int64_t{i} << 40;
    const Slot slot = index.find(id, hash_of(id));
    ASSERT_NE(slot, kNoSlot);
    ASSERT_EQ(index.row(slot), i);
  }
}

TEST(Index, GrowthBytesForetellsTheGrowth) {
  Index index;
  for (std::uint32_t i = 0; i < 100'000; ++i) {
    const std::size_t foretold = index.growth_bytes(1);
    const std::size_t before = index.memory_bytes();
    index.reserve(1);
    ASSERT_LE(index.memory_bytes() - before, foretold + 4096) << i;  // a block rounds up to a page
    index.insert(i, hash_of(i), i, 0);
  }
}

TEST(Index, ShrinkGivesMemoryBackAndKeepsWhatIsLeft) {
  Index index;
  for (std::int64_t id = 0; id < 200'000; ++id) insert(index, id, static_cast<std::uint32_t>(id), 0);
  const std::size_t before = index.memory_bytes();
  for (std::int64_t id = 100; id < 200'000; ++id) index.erase(index.find(id, hash_of(id)));
  index.shrink();
  EXPECT_LT(index.memory_bytes(), before / 10);
  for (std::int64_t id = 0; id < 200; ++id) EXPECT_EQ(index.find(id, hash_of(id)) != kNoSlot, id < 100);
}

TEST(Index, ASearchEndsThoughEveryBucketIsFull) {
  std::vector<Index::Bucket> buckets(8);
  for (Index::Bucket& bucket : buckets) {
    for (std::uint32_t& row : bucket.rows) row = 1;
    for (std::int64_t& id : bucket.ids) id = 5;
  }
  Index index;
  index.adopt(buckets, buckets.size() * Index::kWidth);
  EXPECT_EQ(index.find(7, hash_of(7)), kNoSlot);
  EXPECT_NE(index.find(5, hash_of(5)), kNoSlot);
}

}  // namespace
}  // namespace engine
