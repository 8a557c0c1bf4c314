// Conversions between kinds of values, at their edges.
#include "engine/data/value_ids.h"

#include <gtest/gtest.h>

#include <limits>

namespace engine::data {
namespace {

TEST(ValueIds, NamesAndKindsAreInverse) {
  for (const ValueKind kind : {ValueKind::kUnknown, ValueKind::kInteger, ValueKind::kText, ValueKind::kFid,
                               ValueKind::kBucket, ValueKind::kSlot48}) {
    EXPECT_EQ(value_kind(name_of(kind)), kind);
  }
  EXPECT_FALSE(value_kind("number"));
}

TEST(ValueIds, DecimalTextMustBeCanonical) {
  EXPECT_EQ(parse_decimal("0"), 0);
  EXPECT_EQ(parse_decimal("-9223372036854775808"), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(parse_decimal("18446744073709551615"), -1);
  for (const char* text :
       {"", "-", "-0", "00", "07", "+7", " 7", "7 ", "7.0", "x", "18446744073709551616", "-9223372036854775809"}) {
    EXPECT_FALSE(parse_decimal(text)) << text;
  }
}

TEST(ValueIds, FloatsMustBeExactIntegers) {
  EXPECT_EQ(parse_whole(-3.0, kMostDouble), -3);
  EXPECT_EQ(parse_whole(kMostDouble, kMostDouble), std::int64_t{1} << 53);
  EXPECT_FALSE(parse_whole(kMostDouble * 2, kMostDouble));
  EXPECT_FALSE(parse_whole(0x1p25, kMostFloat));
  EXPECT_FALSE(parse_whole(2.5, kMostDouble));
  EXPECT_FALSE(parse_whole(std::numeric_limits<double>::quiet_NaN(), kMostDouble));
  EXPECT_FALSE(parse_whole(std::numeric_limits<double>::infinity(), kMostDouble));
}

TEST(ValueIds, OnlyValuesOf48BitsFitBesideASlot) {
  EXPECT_TRUE(fits_slot((std::int64_t{1} << 48) - 1));
  EXPECT_FALSE(fits_slot(std::int64_t{1} << 48));
  EXPECT_FALSE(fits_slot(-1));
  EXPECT_EQ(slot_id(3, 7), make_fid_v2(3, 7));
  EXPECT_NE(slot_id(3, std::int64_t{1} << 48), slot_id(3, 0));
}

TEST(ValueIds, AnIntegerHashesLikeItsDecimalText) { EXPECT_EQ(hash_of_decimal(-12074), hash_of("-12074")); }

}  // namespace
}  // namespace engine::data
