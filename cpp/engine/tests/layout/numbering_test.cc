// numbering_test.cc: numbers follow the first occurrence, from table to table, through growth and a count that is full.
#include "layout/numbering.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace engine::layout {
namespace {

struct Numbered {
  std::vector<std::uint32_t> numbers;
  std::vector<std::int64_t> ids;
  std::vector<std::uint32_t> counts;
};

Numbered number(Numbering& numbering, const std::vector<std::int64_t>& values) {
  Numbered result{std::vector<std::uint32_t>(values.size()), std::vector<std::int64_t>(values.size()),
                  std::vector<std::uint32_t>(values.size())};
  numbering.number(values, result.numbers.data(), result.ids.data(), result.counts.data());
  result.ids.resize(numbering.size());
  result.counts.resize(numbering.size());
  return result;
}

TEST(Numbering, NumbersFollowTheFirstOccurrence) {
  Numbering numbering;
  for (int table = 0; table < 3; ++table) {
    numbering.begin(0, 4);
    const Numbered result = number(numbering, {30, -1, 30, 10 + table});
    EXPECT_EQ(result.numbers, (std::vector<std::uint32_t>{0, 1, 0, 2}));
    EXPECT_EQ(result.ids, (std::vector<std::int64_t>{30, -1, 10 + table}));
    EXPECT_EQ(result.counts, (std::vector<std::uint32_t>{2, 1, 1}));
  }
}

TEST(Numbering, GrowsForMoreIdsThanExpected) {
  Numbering numbering;
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < 100'000; ++i) values.push_back(i * 7919);
  for (int table = 0; table < 2; ++table) {
    numbering.begin(0, static_cast<std::uint32_t>(values.size()));
    EXPECT_EQ(number(numbering, values).ids, values);
  }
}

TEST(Numbering, ForgetsEarlierTablesWhenTheCountIsFull) {
  Numbering numbering;
  numbering.begin(0, 3);
  (void)number(numbering, {1, 2, 3});
  numbering.begin(0, 0xFFFFFFFCU);  // as many cannot follow: the count restarts
  const Numbered result = number(numbering, {3, 2, 3});
  EXPECT_EQ(result.numbers, (std::vector<std::uint32_t>{0, 1, 0}));
  EXPECT_EQ(result.counts, (std::vector<std::uint32_t>{2, 1}));
}

}  // namespace
}  // namespace engine::layout
