// batch_rows_test.cc: the size of a batch that is not read.
#include "engine/data/batch_rows.h"

#include <gtest/gtest.h>

#include <string_view>

namespace engine::data {
namespace {

std::optional<std::uint32_t> rows_of(std::string_view record) {
  return batch_rows({reinterpret_cast<const std::byte*>(record.data()), record.size()});
}

TEST(BatchRows, AreFoundAmongOtherFields) {
  EXPECT_EQ(rows_of(""), 0U);
  EXPECT_EQ(rows_of("\x18\x64"), 100U);
  EXPECT_EQ(rows_of("\x0a\x02\x18\x07\x18\x64"), 100U);              // a column before it
  EXPECT_EQ(rows_of("\x18\x64\x18\x65"), 101U);                      // the last one counts
  EXPECT_EQ(rows_of("\x18\x64\x25xxxx\x31xxxxxxxx\x20\x05"), 100U);  // other kinds behind it
}

TEST(BatchRows, ANegativeSizeIsNone) { EXPECT_EQ(rows_of("\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), 0U); }

TEST(BatchRows, BytesThatAreNoMessageHaveNone) {
  for (const std::string_view bytes :
       {"\x18", "\x0a\x05x", "\x1b", "\x07", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"}) {
    EXPECT_EQ(rows_of(bytes), std::nullopt);
  }
}

}  // namespace
}  // namespace engine::data
