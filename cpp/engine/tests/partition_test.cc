// partition_test.cc: occurrences in order of parts, and within a part in order of the call, for any number of threads.
#include "partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <tuple>
#include <vector>

#include "engine/hash.h"

namespace engine {
namespace {

using Occurrence = std::tuple<std::size_t, std::int64_t, std::uint32_t>;  // part, id, target

std::size_t part_of_id(std::int64_t id) { return part_of(mix(static_cast<std::uint64_t>(id))); }

// A call with bags of 0 to 40 ids, of which many repeat.
struct Call {
  std::vector<std::int64_t> ids;
  std::vector<std::int64_t> offsets;
  Pooling pooling;

  Call(std::size_t count, Pooling pooling, std::uint32_t seed) : pooling(pooling) {
    std::mt19937 random(seed);
    for (std::size_t i = 0; i < count; ++i) ids.push_back(random() % 3 == 0 ? 7 : random() % 50'000);
    if (pooling == Pooling::kNone) return;
    const auto last = static_cast<std::int64_t>(count);
    for (offsets.push_back(0); offsets.back() < last;) {
      offsets.push_back(std::min<std::int64_t>(offsets.back() + random() % 41, last));
    }
  }

  [[nodiscard]] Bags bags() const { return {ids, offsets, pooling, pooling == Pooling::kFirst ? 3U : 0U}; }

  [[nodiscard]] std::vector<Occurrence> expected() const {
    std::vector<Occurrence> all;
    bags().for_each(0, bags().units(),
                    [&](std::int64_t id, std::uint32_t target) { all.emplace_back(part_of_id(id), id, target); });
    std::ranges::stable_sort(all, {}, [](const Occurrence& one) { return std::get<0>(one); });
    return all;
  }
};

std::vector<Occurrence> gathered(const Partition& partition) {
  std::vector<Occurrence> all;
  for (std::size_t part = 0; part < kParts; ++part) {
    const Partition::Group group = partition.gather(part);
    EXPECT_EQ(group.ids.data(), partition.group(part).ids.data());
    EXPECT_EQ(group.ids.size(), partition.size(part));
    EXPECT_EQ(all.size(), partition.begin(part));
    for (std::size_t i = 0; i < group.ids.size(); ++i) all.emplace_back(part, group.ids[i], group.targets[i]);
  }
  return all;
}

TEST(Partition, SortsByPartInOrderOfTheCall) {
  for (const unsigned threads : {1U, 3U, 16U}) {
    Pool pool(threads);
    for (const std::size_t count : {0U, 1U, 2048U, 20'000U}) {
      for (const Pooling pooling : {Pooling::kNone, Pooling::kSum, Pooling::kMean, Pooling::kFirst}) {
        SCOPED_TRACE(testing::Message() << threads << " threads, " << count << " ids, pooling "
                                        << static_cast<int>(pooling));
        const Call call(count, pooling, static_cast<std::uint32_t>(count));
        EXPECT_EQ(gathered(partition(std::array{call.bags()}, pool)[0]), call.expected());
      }
    }
  }
}

TEST(Partition, SortsSmallAndLargeCallsTogether) {
  Pool pool(4);
  const std::vector<Call> all{{20'000, Pooling::kSum, 1},
                              {100, Pooling::kNone, 2},
                              {0, Pooling::kSum, 3},
                              {10'000, Pooling::kFirst, 4},
                              {10'000, Pooling::kNone, 5}};
  std::vector<Bags> calls;
  for (const Call& call : all) calls.push_back(call.bags());
  const std::span<const Partition> sorted = partition(calls, pool);
  ASSERT_EQ(sorted.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(gathered(sorted[i]), all[i].expected()) << "call " << i;
}

TEST(Partition, PiecesKnowTheirFirstOccurrenceOfEachPart) {
  Pool pool(4);
  const Call call(20'000, Pooling::kSum, 6);
  const Bags bags = call.bags();
  const Partition& sorted = partition(std::array{bags}, pool)[0];
  gathered(sorted);
  ASSERT_GT(sorted.pieces().size(), 1);
  for (const PartitionPiece& piece : sorted.pieces()) {
    auto next = piece.next;
    std::size_t position = bags.position_of(piece.units.begin);
    bags.for_each(piece.units.begin, piece.units.end, [&](std::int64_t id, std::uint32_t target) {
      const std::size_t part = sorted.parts()[position++];
      ASSERT_EQ(part, part_of_id(id));
      EXPECT_EQ(sorted.ids()[next[part]], id);
      EXPECT_EQ(sorted.targets()[next[part]++], target);
    });
  }
}

TEST(Partition, ScratchIsGivenBack) {
  Pool pool(2);
  const Call call(20'000, Pooling::kNone, 8);
  partition(std::array{call.bags()}, pool);
  EXPECT_GE(partition_scratch_bytes(), call.ids.size() * 2 * (sizeof(std::int64_t) + sizeof(std::uint32_t)));
  release_partition_scratch();
  EXPECT_EQ(partition_scratch_bytes(), 0);
}

}  // namespace
}  // namespace engine
