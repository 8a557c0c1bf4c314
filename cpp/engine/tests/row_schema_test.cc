// row_schema_test.cc: widths that would overflow a sum or a row are refused.
#include "engine/row_schema.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/error.h"

namespace engine {
namespace {

SliceConfig slice(std::uint32_t dim) {
  return {.dim = dim,
          .optimizer = {.kind = "sgd", .settings = {}},
          .initializer = {.kind = "zeros", .settings = {}},
          .compressor = {.kind = "fp32", .settings = {}}};
}

TEST(RowSchema, WidthsThatOverflow32BitsAreRefused) {
  const std::vector<SliceConfig> wrapping = {slice(1U << 31), slice((1U << 31) + 4)};
  EXPECT_THROW(RowSchema(wrapping, 0, false), ConfigError);
  EXPECT_THROW(RowSchema(wrapping, 0, true), ConfigError);
}

TEST(RowSchema, ARowHasAtMostAMebibyteOfValues) {
  const std::vector<SliceConfig> largest = {slice(kMostColumns - 1), slice(1)};
  EXPECT_EQ(RowSchema(largest, 0, false).dim(), kMostColumns);
  const std::vector<SliceConfig> too_wide = {slice(kMostColumns), slice(1)};
  EXPECT_THROW(RowSchema(too_wide, 0, false), ConfigError);
  const std::vector<SliceConfig> none = {slice(0)};
  EXPECT_THROW(RowSchema(none, 0, false), ConfigError);
}

}  // namespace
}  // namespace engine
