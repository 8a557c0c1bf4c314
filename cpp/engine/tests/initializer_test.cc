// initializer_test.cc: first values are the right ones, reproducible, and spread as promised.
#include "engine/initializer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "engine/error.h"

namespace engine {
namespace {

using Floats = std::vector<float>;

Floats fill(const PartConfig& config, std::uint32_t dim, std::uint64_t seed = 1, std::int64_t id = 2) {
  Floats values(dim, -1.0F);
  make_initializer(config)->fill(seed, id, values.data(), dim);
  return values;
}

PartConfig uniform(double minval, double maxval) {
  return {"random_uniform", {{"minval", minval}, {"maxval", maxval}}};
}

TEST(Initializer, ConstantsFillTheirSlice) {
  EXPECT_EQ(fill({"zeros", {}}, 2), (Floats{0, 0}));
  EXPECT_EQ(fill({"ones", {}}, 2), (Floats{1, 1}));
  // Two slices of one row: constants 3 (dim 1) and 4 (dim 2).
  Floats row(3);
  make_initializer({"constants", {{"constant", 3}}})->fill(0, 0, row.data(), 1);
  make_initializer({"constants", {{"constant", 4}}})->fill(0, 0, row.data() + 1, 2);
  EXPECT_EQ(row, (Floats{3, 4, 4}));
}

TEST(Initializer, UniformIsAFunctionOfSeedIdAndPosition) {
  const Floats base = fill(uniform(-0.05, 0.05), 17);
  EXPECT_EQ(fill(uniform(-0.05, 0.05), 17), base);
  EXPECT_NE(fill(uniform(-0.05, 0.05), 17, 9), base);
  EXPECT_NE(fill(uniform(-0.05, 0.05), 17, 1, -2), base);
  EXPECT_EQ(fill(uniform(-0.05, 0.05), 8), Floats(base.begin(), base.begin() + 8));
  EXPECT_EQ(std::set<float>(base.begin(), base.end()).size(), base.size());
}

TEST(Initializer, UniformNeverChanges) {
  // Pinned: a table filled lazily on two machines, or before and after an upgrade, must agree.
  EXPECT_EQ(fill(uniform(0, 1), 3), (Floats{0x1.2172d6p-1F, 0x1.3748ecp-2F, 0x1.896e5ep-1F}));
}

TEST(Initializer, UniformHasTheMeanAndSpreadOfAUniform) {
  constexpr int kIds = 4000;
  constexpr std::uint32_t kDim = 16;
  std::vector<double> by_position(kDim);
  double squares = 0;
  for (int id = 0; id < kIds; ++id) {
    const Floats values = fill(uniform(-1, 3), kDim, 7, id);
    for (std::uint32_t i = 0; i < kDim; ++i) {
      EXPECT_TRUE(values[i] >= -1 && values[i] < 3);
      by_position[i] += values[i];
      squares += (values[i] - 1.0) * (values[i] - 1.0);
    }
  }
  const double deviation = 4 / std::sqrt(12.0);
  for (const double sum : by_position) EXPECT_NEAR(sum / kIds, 1, 4.5 * deviation / std::sqrt(kIds));
  EXPECT_NEAR(squares / (kIds * kDim), deviation * deviation, 0.02);
}

TEST(Initializer, UniformStaysBelowMaxvalHoweverNarrowTheRange) {
  const float next = std::nextafter(1.0F, 2.0F);
  for (int id = 0; id < 200; ++id) {
    for (const float value : fill(uniform(1, next), 3, 1, id)) EXPECT_EQ(value, 1.0F);
    for (const float value : fill(uniform(16777213, 16777216), 3, 1, id)) EXPECT_LT(value, 16777216.0F);
    for (const float value : fill(uniform(-2, -2), 3, 1, id)) EXPECT_EQ(value, -2.0F);
  }
}

TEST(Initializer, RefusesWhatItCannotUnderstand) {
  EXPECT_THROW(make_initializer({"normal", {}}), ConfigError);
  EXPECT_THROW(make_initializer({"constants", {}}), ConfigError);
  EXPECT_THROW(make_initializer({"zeros", {{"constant", 1}}}), ConfigError);
  EXPECT_THROW(make_initializer(uniform(1, -1)), ConfigError);
  EXPECT_THROW(make_initializer(uniform(-3e38, 3e38)), ConfigError);
}

}  // namespace
}  // namespace engine
