// layouts_test.cc: a plan numbers ids, pools rows and takes gradients back, whatever the pooling and the threads.
#include "engine/layout/layouts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "engine/error.h"
#include "engine/fid.h"

namespace engine::layout {
namespace {

constexpr float kUnset = std::numeric_limits<float>::quiet_NaN();

// The ids of one feature, with the memory that FeatureIds only shows.
struct Ids {
  std::vector<std::int64_t> values;
  std::vector<std::int64_t> offsets;
  bool is_shared = false;

  [[nodiscard]] FeatureIds view() const { return {values, offsets, is_shared}; }
};

MatrixView<float> view(std::vector<float>& values, std::size_t columns) {
  return {values.data(), values.size() / columns, columns};
}
MatrixView<const float> const_view(const std::vector<float>& values, std::size_t columns) {
  return {values.data(), values.size() / columns, columns};
}

std::string error_of(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Layouts, ASumAMeanAndASequenceGoThereAndBack) {
  // Table 0 has rows (v, 10 v), table 1 rows (v).
  const Layouts layouts({2, 1}, {{0, Pooling::kSum, 0}, {0, Pooling::kMean, 0}, {1, Pooling::kFirst, 2}},
                        {{0, 0, 0, 2, 0, 0}, {0, 1, 0, 2, 0, 0}, {1, 2, 0, 1, 0, 1}}, {2, 2});
  const std::vector<Ids> ids{{{5, 7, 5}, {0, 2, 3}}, {{7, 9}, {0, 2, 2}}, {{1, 2, 3}, {0, 3, 3}}};
  Pool team(2);
  const std::vector<FeatureIds> views{ids[0].view(), ids[1].view(), ids[2].view()};
  const StepPlan plan = layouts.plan(2, views, team);

  const std::vector<std::int64_t> unique{5, 7, 9};
  EXPECT_TRUE(std::ranges::equal(plan.unique(0).ids, unique));
  EXPECT_TRUE(std::ranges::equal(plan.unique(0).counts, std::vector<std::uint32_t>{2, 2, 1}));
  EXPECT_TRUE(std::ranges::equal(plan.unique(1).ids, std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(plan.occurrences(), 7U);

  const std::vector<float> rows0{5, 50, 7, 70, 9, 90};
  const std::vector<float> rows1{1, 2};
  std::vector<float> out0(4, kUnset);
  std::vector<float> out1(4, kUnset);
  plan.pool(std::vector{const_view(rows0, 2), const_view(rows1, 1)}, std::vector{view(out0, 2), view(out1, 2)}, team);
  EXPECT_EQ(out0, (std::vector<float>{12 + 8, 120 + 80, 5, 50}));
  EXPECT_EQ(out1, (std::vector<float>{1, 2, 0, 0}));

  const std::vector<float> grad0{1, 2, 4, 8};
  const std::vector<float> grad1{3, 5, 7, 9};
  std::vector<float> back0(6, kUnset);
  std::vector<float> back1(2, kUnset);
  const std::vector<double> squares = plan.scatter(std::vector{const_view(grad0, 2), const_view(grad1, 2)},
                                                   std::vector{view(back0, 2), view(back1, 1)}, team);
  EXPECT_EQ(back0, (std::vector<float>{5, 10, 1.5F, 3, 0.5F, 1}));
  EXPECT_EQ(back1, (std::vector<float>{3, 5}));
  EXPECT_EQ(squares, (std::vector<double>{25 + 100 + 2.25 + 9 + 0.25 + 1, 9 + 25}));
}

TEST(Layouts, ASharedBagIsStoredOnceAndHasTheGradientOfAllExamples) {
  const Layouts layouts({1}, {{0, Pooling::kSum, 0}}, {{0, 0, 0, 1, 1, 0}}, {3});
  const Ids ids{{4, 6}, {0, 2}, true};
  Pool team(1);
  const std::vector<FeatureIds> views{ids.view()};
  const StepPlan plan = layouts.plan(3, views, team);
  const std::vector<float> rows{4, 6};
  std::vector<float> out(9, kUnset);
  plan.pool(std::vector{const_view(rows, 1)}, std::vector{view(out, 3)}, team);
  EXPECT_EQ(out, (std::vector<float>{0, 10, 0, 0, 10, 0, 0, 10, 0}));
  std::vector<float> back(2, kUnset);
  const auto squares = plan.scatter(std::vector{const_view(out, 3)}, std::vector{view(back, 1)}, team);
  EXPECT_EQ(back, (std::vector<float>{30, 30}));
  EXPECT_EQ(squares, std::vector<double>{1800});
}

// Everything a plan gives for many ids of few tables, as bytes to compare.
struct Results {
  std::vector<std::int64_t> ids;
  std::vector<std::uint32_t> counts;
  std::vector<float> out;
  std::vector<float> back;
  std::vector<double> squares;
  bool operator==(const Results&) const = default;
};

Results results_with(unsigned threads) {
  constexpr std::size_t kRows = 40'000;
  constexpr std::size_t kDim = 17;
  const Layouts layouts({kDim}, {{0, Pooling::kSum, 0}, {0, Pooling::kMean, 0}},
                        {{0, 0, 0, kDim, 0, 0}, {0, 1, 0, kDim, 0, 0}}, {kDim});
  std::vector<Ids> ids(2);
  std::uint64_t state = 1;
  for (Ids& feature : ids) {
    feature.offsets.push_back(0);
    for (std::size_t row = 0; row < kRows; ++row) {
      for (std::size_t i = 0; i < 1 + row % 2; ++i) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        feature.values.push_back(static_cast<std::int64_t>((state >> 40) % (row + 1)));
      }
      feature.offsets.push_back(static_cast<std::int64_t>(feature.values.size()));
    }
  }
  Pool team(threads);
  const std::vector<FeatureIds> views{ids[0].view(), ids[1].view()};
  const StepPlan plan = layouts.plan(kRows, views, team);
  Results results;
  results.ids.assign(plan.unique(0).ids.begin(), plan.unique(0).ids.end());
  results.counts.assign(plan.unique(0).counts.begin(), plan.unique(0).counts.end());
  std::vector<float> rows(results.ids.size() * kDim);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = 1.0F / static_cast<float>(1 + i % 1013);
  results.out.assign(kRows * kDim, kUnset);
  results.back.assign(rows.size(), kUnset);
  plan.pool(std::vector{const_view(rows, kDim)}, std::vector{view(results.out, kDim)}, team);
  results.squares =
      plan.scatter(std::vector{const_view(results.out, kDim)}, std::vector{view(results.back, kDim)}, team);
  return results;
}

template <class T>
std::vector<T> read_packed(const std::vector<std::byte>& packed, std::size_t at, std::size_t count) {
  std::vector<T> values(count);
  std::memcpy(values.data(), packed.data() + at, count * sizeof(T));
  return values;
}

TEST(Layouts, APackedPlanHasTheIdsPlacesAndOffsetsOfThePlan) {
  const Layouts layouts({2, 5}, {{0, Pooling::kSum, 0}, {1, Pooling::kFirst, 2}, {0, Pooling::kSum, 0}},
                        {{0, 0, 0, 2, 0, 0}, {1, 1, 0, 5, 0, 5}}, {2, 10});
  const std::vector<Ids> ids{{{5, 7, 5}, {0, 2, 3}}, {{1, 2, 3, 9}, {0, 3, 4}}, {{7, 8}, {0, 2}, true}};
  Pool team(2);
  const std::vector<FeatureIds> views{ids[0].view(), ids[1].view(), ids[2].view()};
  const StepPlan plan = layouts.plan(2, views, team);
  std::vector<std::byte> packed(plan.packed_bytes());
  plan.pack(packed, team);

  const auto tables = read_packed<StepPlan::PackedTable>(packed, 0, 2);
  EXPECT_EQ(read_packed<std::int64_t>(packed, tables[0].ids, tables[0].count), (std::vector<std::int64_t>{5, 7, 8}));
  EXPECT_EQ(read_packed<std::int64_t>(packed, tables[1].ids, tables[1].count), (std::vector<std::int64_t>{1, 2, 9}));
  EXPECT_EQ(tables[1].first_row, 3U);
  EXPECT_EQ(tables[1].rows, 8U);   // 3 rows of 2 floats, rounded up to a multiple of four
  EXPECT_EQ(tables[1].sums, 12U);  // 3 rows of 4 floats
  const auto features = read_packed<StepPlan::PackedFeature>(packed, 2 * sizeof(StepPlan::PackedTable), 3);
  const std::vector<std::vector<std::uint32_t>> places{{0, 1, 0}, {0, 1, 2}, {1, 2}};
  const std::vector<std::vector<std::uint32_t>> offsets{{0, 2, 3}, {0, 2, 3}, {0, 2}};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(read_packed<std::uint32_t>(packed, features[i].places, features[i].count), places[i]);
    EXPECT_EQ(read_packed<std::uint32_t>(packed, features[i].offsets, offsets[i].size()), offsets[i]);
    EXPECT_EQ(features[i].first, 3 * i);
    EXPECT_EQ(features[i].is_shared, i == 2 ? 1U : 0U);
  }
  packed.pop_back();
  EXPECT_NE(error_of([&] { plan.pack(packed, team); }).find("expected " + std::to_string(plan.packed_bytes())),
            std::string::npos);
}

TEST(Layouts, BagsOfOneIdArePackedWithoutOffsets) {
  const Layouts layouts({1}, {{0, Pooling::kSum, 0}}, {{0, 0, 0, 1, 0, 0}}, {1});
  const Ids ids{{5, 7, 5}, {0, 1, 2, 3}};
  Pool team(1);
  const StepPlan plan = layouts.plan(3, std::vector<FeatureIds>{ids.view()}, team);
  std::vector<std::byte> packed(plan.packed_bytes());
  plan.pack(packed, team);
  EXPECT_EQ(read_packed<StepPlan::PackedFeature>(packed, sizeof(StepPlan::PackedTable), 1)[0].offsets, 0U);
}

TEST(Layouts, TheNumberOfThreadsChangesNoBit) {
  const Results alone = results_with(1);
  std::uint64_t total = 0;
  for (const std::uint32_t count : alone.counts) total += count;
  EXPECT_EQ(total, 2 * (20'000U + 40'000U));
  for (const unsigned threads : {2U, 3U, 8U}) EXPECT_EQ(results_with(threads), alone);
}

TEST(Layouts, WhatDoesNotFitIsRefusedWithItsNumber) {
  const auto make = [](Part part) { return [part] { Layouts({2}, {{0, Pooling::kSum, 0}}, {part}, {2}); }; };
  EXPECT_EQ(error_of(make({0, 0, 1, 2, 0, 0})),
            "part 0 reads columns 1 to 3 of feature 0, and the rows of its table 0 have 2 floats");
  EXPECT_EQ(error_of(make({0, 0, 0, 2, 1, 0})), "part 0 writes floats 1 to 3 of output 0, which has 2 per example");

  const Layouts layouts({2}, {{0, Pooling::kSum, 0}}, {{0, 0, 0, 2, 0, 0}}, {2});
  Pool team(1);
  const auto plan = [&](Ids ids) {
    return [&layouts, &team, ids] {
      const std::vector<FeatureIds> views{ids.view()};
      (void)layouts.plan(2, views, team);
    };
  };
  EXPECT_EQ(error_of(plan({{1}, {0, 1}})), "feature 0 has 2 offsets; a batch of 2 has 3");
  EXPECT_EQ(error_of(plan({{1}, {0, 2, 1}})),
            "feature 0 has offsets that fall; bag i is values[offsets[i]:offsets[i + 1]]");
  EXPECT_EQ(error_of(plan({{1}, {0, 1, 2}})), "feature 0 has offsets from 0 to 2; they must go from 0 to its 1 ids");
}

TEST(IdTransform, PlacesSignaturesInAVocabularyAndKeepsTheSlot) {
  const std::int64_t hashed = make_fid_v2(7, (std::uint64_t{1} << 47) + 12345);
  EXPECT_EQ((IdTransform{}.apply(make_fid_v2(7, 5))), make_fid_v2(7, 5));
  EXPECT_EQ((IdTransform{}.apply(hashed)), make_fid_v2(7, 0));  // a negative place
  EXPECT_EQ((IdTransform{.size = 7}.apply(hashed)), make_fid_v2(7, ((std::uint64_t{1} << 47) + 12345) % 7));
  EXPECT_EQ((IdTransform{.divisor = 251}.apply(make_fid_v2(7, 999))), make_fid_v2(7, 999 % 251));
  EXPECT_EQ((IdTransform{.divisor = 251, .is_quotient = true}.apply(make_fid_v2(7, 999))), make_fid_v2(7, 251 + 3));
  EXPECT_EQ((IdTransform{.size = 500, .divisor = 251, .is_quotient = true}.apply(make_fid_v2(7, 999))),
            make_fid_v2(7, 251 + 1));
}

TEST(IdTransform, IdsOfAPlanAreTransformed) {
  const Layouts layouts({1}, {{0, Pooling::kSum, 0, IdTransform{.size = 3}}, {0, Pooling::kFirst, 1, {}}},
                        {{0, 0, 0, 1, 0, 0}, {1, 1, 0, 1, 0, 1}}, {1, 1});
  const Ids first{{4, 7, 5}, {0, 2, 3}};
  const Ids second{{4, 9, 5}, {0, 2, 3}};
  Pool pool(1);
  const StepPlan plan = layouts.plan(2, std::vector{first.view(), second.view()}, pool);
  EXPECT_EQ(std::vector(plan.unique(0).ids.begin(), plan.unique(0).ids.end()), (std::vector<std::int64_t>{1, 2, 4, 5}));
  EXPECT_EQ(std::vector(plan.unique(0).counts.begin(), plan.unique(0).counts.end()),
            (std::vector<std::uint32_t>{2, 1, 1, 1}));
}

TEST(IdTransform, SizesThatCannotWorkAreRefused) {
  const auto make = [](IdTransform transform) {
    return [transform] { Layouts({1}, {{0, Pooling::kSum, 0, transform}}, {{0, 0, 0, 1, 0, 0}}, {1}); };
  };
  EXPECT_NE(error_of(make({.size = IdTransform::kLargest + 1})).find("2^47"), std::string::npos);
  EXPECT_NE(error_of(make({.is_quotient = true})).find("divisor 0"), std::string::npos);
  EXPECT_EQ(error_of(make({.size = IdTransform::kLargest, .divisor = IdTransform::kLargest})), "no error");
}

}  // namespace
}  // namespace engine::layout
