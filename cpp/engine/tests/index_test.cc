// index_test.cc: both indexes against a std::unordered_map, through growth, removal and spilling.
#include "engine/index.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <limits>
#include <new>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace engine {
namespace {

constexpr std::uint32_t kNoRow = Index::kNoRow;

// One way to use either index.
void insert(Index& index, std::int64_t id, std::uint32_t row) {
  index.reserve(1);
  index.insert(id, row);
}
void insert(RingIndex& index, std::int64_t id, std::uint32_t row) {
  index.reserve(1);
  index.insert(id, row, row + 100);
}
std::uint32_t row_of(const Index& index, std::int64_t id) {
  // The search of lookups knows the row, or refers to find().
  bool continues = false;
  const std::uint32_t row = index.view().row_at(index.view().place(id), continues);
  EXPECT_EQ(continues ? index.find(id) : row, index.find(id));
  return index.find(id);
}
std::uint32_t row_of(const RingIndex& index, std::int64_t id) {
  const Slot slot = index.find(id);
  return slot == kNoSlot ? kNoRow : index.row(slot);
}
void erase(Index& index, std::int64_t id) { index.erase(id); }
void erase(RingIndex& index, std::int64_t id) { index.erase(index.find(id)); }
std::unordered_map<std::int64_t, std::uint32_t> content(const Index& index) {
  std::unordered_map<std::int64_t, std::uint32_t> rows;
  index.for_each([&](std::int64_t id, std::uint32_t row) { EXPECT_TRUE(rows.emplace(id, row).second) << id; });
  return rows;
}
std::unordered_map<std::int64_t, std::uint32_t> content(const RingIndex& index) {
  std::unordered_map<std::int64_t, std::uint32_t> rows;
  index.for_each(
      [&](std::int64_t id, std::uint32_t row, std::uint32_t) { EXPECT_TRUE(rows.emplace(id, row).second) << id; });
  return rows;
}

template <class Any>
class IndexTest : public ::testing::Test {};
using Indexes = ::testing::Types<Index, RingIndex>;
TYPED_TEST_SUITE(IndexTest, Indexes);

TYPED_TEST(IndexTest, AnEmptyOneFindsNothing) {
  const TypeParam index;
  EXPECT_EQ(row_of(index, 0), kNoRow);
  EXPECT_EQ(index.memory_bytes(), 0U);
  EXPECT_TRUE(content(index).empty());
}

TYPED_TEST(IndexTest, AnyInt64IsAnId) {
  TypeParam index;
  const std::vector<std::int64_t> ids = {0, -1, 1, std::numeric_limits<std::int64_t>::min(),
                                         std::numeric_limits<std::int64_t>::max()};
  for (std::uint32_t i = 0; i < ids.size(); ++i) insert(index, ids[i], i);
  for (std::uint32_t i = 0; i < ids.size(); ++i) EXPECT_EQ(row_of(index, ids[i]), i);
  EXPECT_EQ(row_of(index, 7), kNoRow);
}

TYPED_TEST(IndexTest, RandomInsertsAndErasesAgreeWithAMap) {
  std::mt19937_64 random(1);
  TypeParam index;
  std::unordered_map<std::int64_t, std::uint32_t> model;
  for (std::uint32_t step = 0; step < 200'000; ++step) {
    // A small universe, so that buckets fill up, overflow and are emptied again.
    const auto id = static_cast<std::int64_t>(random() % 3000);
    const auto known = model.find(id);
    ASSERT_EQ(row_of(index, id), known == model.end() ? kNoRow : known->second);
    if (known == model.end()) {
      insert(index, id, step);
      model[id] = step;
    } else if (random() % 2 == 0) {
      erase(index, id);
      model.erase(known);
    }
    ASSERT_EQ(index.size(), model.size());
  }
  EXPECT_EQ(content(index), model);
}

TYPED_TEST(IndexTest, GrowthKeepsEveryEntryAndStaysWellFilled) {
  TypeParam index;
  constexpr std::uint32_t kIds = 400'000;
  for (std::uint32_t i = 0; i < kIds; ++i) {
    insert(index, std::int64_t{i} << 40, i);
    if (i > 50'000) {
      ASSERT_LE(index.memory_bytes(), std::size_t{i} * (std::is_same_v<TypeParam, Index> ? 22 : 36)) << i;
    }
  }
  for (std::uint32_t i = 0; i < kIds; ++i) ASSERT_EQ(row_of(index, std::int64_t{i} << 40), i);
}

TYPED_TEST(IndexTest, GrowthBytesForetellsTheGrowth) {
  TypeParam index;
  for (std::uint32_t i = 0; i < 100'000; ++i) {
    const std::size_t foretold = index.growth_bytes(1);
    const std::size_t before = index.memory_bytes();
    insert(index, i, i);
    ASSERT_EQ(index.memory_bytes(), before + foretold) << i;
  }
}

TEST(RingIndex, TimesAreKept) {
  RingIndex index;
  for (std::uint32_t i = 0; i < 1000; ++i) insert(index, i, i);
  for (std::uint32_t i = 0; i < 1000; ++i) EXPECT_EQ(index.time(index.find(i)), i + 100);
}

// --- keys, buckets and spill ---

TEST(Index, AnEmptyOneHasNoNextBucket) {
  const Index index;
  for (std::int64_t id = 0; id < 2000; ++id) EXPECT_EQ(index.find_displaced(index.view().place(id), id), kNoRow);
}

TEST(Index, ANextBucketIsFoundAroundTheRing) {
  for (const std::size_t buckets : {1U, 2U, 3U, 20U}) {
    Index index;
    index.reserve(buckets * 5);
    const std::uint32_t count = index.view().bucket_count;
    std::vector<std::int64_t> ids;  // of the last bucket, one more than it holds
    for (std::int64_t id = 0; ids.size() < Index::kWidth + 1; ++id) {
      if (index.view().place(id).bucket == index.view().buckets + count - 1) ids.push_back(id);
    }
    for (std::uint32_t row = 0; row < ids.size(); ++row) index.insert(ids[row], row);
    EXPECT_EQ(index.find_displaced(index.view().place(ids.back()), ids.back()), Index::kWidth) << buckets;
    EXPECT_EQ(index.spilled(), count == 1 ? 1U : 0U);
  }
}

TEST(IdHash, TellsTheId) {
  std::mt19937_64 random(2);
  std::vector<std::int64_t> ids = {0, -1, 1, std::numeric_limits<std::int64_t>::min()};
  for (int i = 0; i < 100'000; ++i) ids.push_back(static_cast<std::int64_t>(random()));
  for (const std::int64_t id : ids) {
    const IdHash hash = hash_id(id);
    ASSERT_EQ(id_of(hash.key), id);
    ASSERT_EQ(hash.mixed, mix(static_cast<std::uint64_t>(id)));
  }
}

TEST(Index, ReturnsTheIdsOfAnyNumberOfBuckets) {
  std::mt19937_64 random(3);
  for (std::size_t ids = 1; ids < 60'000; ids += 1 + ids / 7) {
    Index index;
    index.reserve(ids);
    std::unordered_map<std::int64_t, std::uint32_t> model;
    for (std::uint32_t row = 0; row < std::min<std::size_t>(ids, 2000); ++row) {
      const auto id = static_cast<std::int64_t>(random());
      index.insert(id, row);
      model[id] = row;
    }
    ASSERT_EQ(content(index), model) << ids;
    for (const auto& [id, row] : model) ASSERT_EQ(row_of(index, id), row);
  }
}

// Ids as users make them. Most ids of each kind must stand in their bucket.
TEST(Index, MostIdsAreInTheirBucket) {
  std::mt19937_64 random(4);
  std::vector<std::pair<std::string, std::function<std::int64_t(std::int64_t)>>> kinds = {
      {"random", [&](std::int64_t) { return static_cast<std::int64_t>(random()); }},
      {"falling", [](std::int64_t i) { return -i; }},
      {"slots of few values", [](std::int64_t i) { return (i % 100) << 48 | i / 100; }},
      {"slots of hashed values",
       [](std::int64_t i) {
         return (i % 7) << 54 | static_cast<std::int64_t>(scramble(static_cast<std::uint64_t>(i)) >> 10);
       }},
      {"equal halves", [](std::int64_t i) { return i << 32 | i; }},
      {"decimals", [](std::int64_t i) { return i * 1'000'000'007; }},
  };
  for (int shift = 0; shift <= 46; ++shift) {
    kinds.emplace_back("multiples of 2^" + std::to_string(shift), [=](std::int64_t i) { return i << shift; });
  }
  for (const auto& [name, id_at] : kinds) {
    // An index holds the ids of one part of a table, whose first bits of another hash are equal.
    Index index;
    for (std::int64_t i = 0; index.size() < 6000 && i < (std::int64_t{1} << 20); ++i) {
      const std::int64_t id = id_at(i);
      if (mix(static_cast<std::uint64_t>(id)) >> 58 == 5 && index.find(id) == kNoRow) {
        insert(index, id, static_cast<std::uint32_t>(index.size()));
      }
    }
    EXPECT_GT(index.size(), 1000U) << name;
    EXPECT_LT(index.displaced(), index.size() / 6) << name;
    EXPECT_LT(index.spilled(), index.size() / 1000 + 8) << name;
  }
}

TEST(Index, IdsOfOneBucketStandInTheNextOnesAndInTheSpill) {
  Index index;
  index.reserve(9'000);
  // Of the last bucket but two, so that the next ones are around the ring.
  const Index::Bucket* const bucket = index.view().buckets + index.view().bucket_count - 3;
  constexpr std::size_t kNear = Index::kWidth * (Index::kMostDistance + 1);
  std::vector<std::int64_t> ids;
  for (std::int64_t id = 0; ids.size() < kNear + 30; ++id) {
    if (index.view().place(id).bucket == bucket) ids.push_back(id);
  }
  std::unordered_map<std::int64_t, std::uint32_t> model;
  for (std::uint32_t row = 0; row < ids.size(); ++row) {
    index.insert(ids[row], row);
    model[ids[row]] = row;
  }
  EXPECT_EQ(index.displaced(), ids.size() - Index::kWidth);
  EXPECT_EQ(index.spilled(), 30U);
  for (std::uint32_t row = 0; row < ids.size(); ++row) EXPECT_EQ(row_of(index, ids[row]), row);
  EXPECT_EQ(content(index), model);
  // A bucket with room again still knows that others are elsewhere.
  for (std::size_t i = 0; i < Index::kWidth; ++i) {
    index.erase(ids[i]);
    model.erase(ids[i]);
  }
  for (std::uint32_t row = 0; row < ids.size(); ++row) {
    EXPECT_EQ(row_of(index, ids[row]), row < Index::kWidth ? kNoRow : row);
  }
  // They come nearer when the index is put in order.
  index.shrink();
  EXPECT_EQ(index.displaced(), ids.size() - 2 * Index::kWidth);
  EXPECT_EQ(index.spilled(), 30 - Index::kWidth);
  EXPECT_EQ(content(index), model);
  // An index of these ids alone is emptied from the first bucket to the spill.
  for (std::size_t i = Index::kWidth; i < ids.size(); ++i) {
    index.erase(ids[i]);
    EXPECT_EQ(row_of(index, ids[i]), kNoRow);
  }
  EXPECT_EQ(index.displaced(), 0U);
  EXPECT_EQ(index.size(), 0U);
}

TEST(Index, EqualLowBytesAreToldApart) {
  Index index;
  index.reserve(100);
  const Index::Place first = index.view().place(0);
  std::vector<std::int64_t> ids;
  for (std::int64_t id = 0; ids.size() < 12; ++id) {
    const Index::Place place = index.view().place(id);
    if (place.bucket == first.bucket && place.byte == first.byte) ids.push_back(id);
  }
  for (std::uint32_t row = 0; row < 6; ++row) index.insert(ids[row], row);
  for (std::uint32_t row = 0; row < ids.size(); ++row) EXPECT_EQ(row_of(index, ids[row]), row < 6 ? row : kNoRow);
}

TEST(Index, ARowNumberTooLargeForItsBitsSpills) {
  Index index;
  insert(index, 1, 0xFFFFFFF0U);
  insert(index, 2, 5);
  EXPECT_EQ(row_of(index, 1), 0xFFFFFFF0U);
  EXPECT_EQ(row_of(index, 2), 5U);
  EXPECT_EQ(index.spilled(), 1U);
}

TEST(Index, HistoryTellsWhetherRowsAreStillThere) {
  Index index;
  insert(index, 1, 1);
  const Index::History before = index.history();
  for (std::int64_t id = 2; id < 5000; ++id) insert(index, id, static_cast<std::uint32_t>(id));
  EXPECT_EQ(index.history().leaves, before.leaves);  // growth moves entries, and no row
  EXPECT_NE(index.history().inserts, before.inserts);
  index.erase(7);
  EXPECT_NE(index.history().leaves, before.leaves);
  const std::uint64_t leaves = index.history().leaves;
  index.clear();
  EXPECT_NE(index.history().leaves, leaves);
}

TEST(Index, ShrinkLeavesBitsForEveryRowNumber) {
  Index index;
  for (std::int64_t id = 0; id < 400'000; ++id) insert(index, id, static_cast<std::uint32_t>(id));
  const std::size_t before = index.memory_bytes();
  for (std::int64_t id = 0; id < 390'000; ++id) index.erase(id);
  index.shrink();
  EXPECT_LT(index.memory_bytes(), before / 2);
  EXPECT_EQ(index.spilled(), 0U);
  for (std::int64_t id = 389'900; id < 400'000; ++id) EXPECT_EQ(row_of(index, id) != kNoRow, id >= 390'000);
}

TEST(Index, ShrinkGivesMemoryBackAndKeepsWhatIsLeft) {
  Index index;
  for (std::int64_t id = 0; id < 200'000; ++id) insert(index, id, static_cast<std::uint32_t>(id));
  const std::size_t before = index.memory_bytes();
  for (std::int64_t id = 100; id < 200'000; ++id) index.erase(id);
  index.shrink();
  EXPECT_LT(index.memory_bytes(), before / 2);
  for (std::int64_t id = 0; id < 200; ++id) EXPECT_EQ(row_of(index, id) != kNoRow, id < 100);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they reserve terabytes
TEST(Index, WithoutMemoryShrinkLeavesTheIndexAsItIs) {
  constexpr std::int64_t kIds = 1'500'000;
  constexpr std::int64_t kLeft = kIds / 5;
  Index index;
  for (std::int64_t id = 0; id < kIds; ++id) insert(index, id, static_cast<std::uint32_t>(id));
  for (std::int64_t id = kLeft; id < kIds; ++id) index.erase(id);
  const std::size_t bytes = index.memory_bytes();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlimit small{.rlim_cur = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)), .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &small), 0);
  rlimit now{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &now), 0);
  if (now.rlim_cur != small.rlim_cur) GTEST_SKIP() << "this system does not limit memory; QEMU does not";
  bool has_failed = false;
  try {
    index.shrink();
  } catch (const std::bad_alloc&) {
    has_failed = true;
  }
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_FALSE(has_failed);
  EXPECT_EQ(index.memory_bytes(), bytes);
  for (std::int64_t id = 0; id < kIds; id += 100) ASSERT_EQ(row_of(index, id) != kNoRow, id < kLeft) << id;
  index.shrink();
  EXPECT_LT(index.memory_bytes(), bytes);
}
#endif

}  // namespace
}  // namespace engine
