#include "engine/data/column_encoder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "engine/error.h"
#include "wire.h"

namespace engine::data {
namespace {

template <typename T>
Bytes bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

Bytes bytes_of(const std::string& text) { return std::as_bytes(std::span(text.data(), text.size())); }

template <typename T>
ColumnLayout flat(std::string name, ColumnKind kind, ValueType type, const std::vector<T>& values) {
  ColumnLayout layout;
  layout.name = std::move(name);
  layout.kind = kind;
  layout.type = type;
  layout.rows = layout.value_count = values.size();
  layout.values = bytes_of(values);
  return layout;
}

template <typename T>
ColumnLayout lists(std::string name, ColumnKind kind, ValueType type, const std::vector<T>& values,
                   const std::vector<std::int32_t>& offsets) {
  auto layout = flat(std::move(name), kind, type, values);
  layout.rows = offsets.size() - 1;
  layout.list_offsets = bytes_of(offsets);
  return layout;
}

ColumnLayout texts(std::string name, const std::string& characters, const std::vector<std::int32_t>& offsets) {
  ColumnLayout layout;
  layout.name = std::move(name);
  layout.kind = ColumnKind::kBytes;
  layout.type = ValueType::kText32;
  layout.rows = layout.value_count = offsets.size() - 1;
  layout.values = bytes_of(characters);
  layout.text_offsets = bytes_of(offsets);
  return layout;
}

std::string hex(Bytes bytes) {
  std::string text;
  for (const std::byte each : bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    text += kDigits[static_cast<unsigned>(each) >> 4];
    text += kDigits[static_cast<unsigned>(each) & 15];
  }
  return text;
}

std::string encoded(const std::vector<ColumnLayout>& layouts, std::uint64_t begin, std::uint64_t end) {
  std::vector<Column> columns(layouts.begin(), layouts.end());
  std::vector<const Column*> pointers;
  for (const Column& column : columns) pointers.push_back(&column);
  const Records records = encode_columns(pointers, begin, end, "table", begin);
  EXPECT_EQ(records.size(), 1U);
  EXPECT_EQ(records.entries[0].stream_offset, begin);
  return hex(to_messages(records)[0]);
}

TEST(ColumnEncoder, WritesTheBytesOfTheFormat) {
  const std::vector<std::int64_t> ids{(std::int64_t{1} << 48) | 100};
  const std::vector<float> labels{1.0F};
  EXPECT_EQ(encoded({flat("a", ColumnKind::kFidV2, ValueType::kInt64, ids),
                     flat("__LABEL__", ColumnKind::kFloat, ValueType::kFloat, labels)},
                    0, 1),
            "0a110a0161120c120a0a086400000000000100"
            "0a150a095f5f4c4142454c5f5f12081a060a040000803f"
            "1801");
}

TEST(ColumnEncoder, AssemblesTheLineIdFromItsColumns) {
  const std::vector<std::int64_t> uids{7};
  const std::vector<float> rates{0.5F};
  const std::vector<std::int8_t> actions{1, -1};
  const std::vector<std::int32_t> offsets{0, 2};
  auto uid = flat("__UID__", ColumnKind::kInt64, ValueType::kInt64, uids);
  uid.line_field = LineField{"uid", 2, FieldKind::kFixed64, false, 0};
  auto rate = flat("__SAMPLE_RATE__", ColumnKind::kFloat, ValueType::kFloat, rates);
  rate.line_field = LineField{"sample_rate", 27, FieldKind::kFloat, false, 1};
  auto action = lists("__ACTIONS__", ColumnKind::kInt64, ValueType::kInt8, actions, offsets);
  action.line_field = LineField{"actions", 6, FieldKind::kInt, true, 0};
  EXPECT_EQ(encoded({uid, rate, action}, 0, 1),
            "0a2f0a0b5f5f4c494e455f49445f5f12203"
            "21e0a1c"
            "110700000000000000"
            "dd010000003f"
            "320b01ffffffffffffffffff01"
            "1801");
}

TEST(ColumnEncoder, ANullIsAFeatureWithoutValues) {
  const std::vector<std::int32_t> numbers{5, 6, 300};
  const std::vector<std::uint8_t> valid{0b101};
  auto column = flat("n", ColumnKind::kInt64, ValueType::kInt32, numbers);
  column.value_valid = bytes_of(valid);
  EXPECT_EQ(encoded({column}, 0, 3),
            "0a140a016e12052a030a01051200"
            "12062a040a02ac02"
            "1803");
}

TEST(ColumnEncoder, AFieldOfALineIdThatIsNullIsAbsentAndAnEmptyLineIdIsNoValue) {
  const std::vector<std::int64_t> uids{7, 8};
  const std::vector<std::uint8_t> valid{0b10};
  auto uid = flat("__UID__", ColumnKind::kInt64, ValueType::kInt64, uids);
  uid.value_valid = bytes_of(valid);
  uid.line_field = LineField{"uid", 2, FieldKind::kFixed64, false, 0};
  EXPECT_EQ(encoded({uid}, 0, 2),
            "0a1e0a0b5f5f4c494e455f49445f5f1200120d320b0a09110800000000000000"
            "1802");
}

TEST(ColumnEncoder, ASliceIsTheSameAsItsRowsAlone) {
  const std::string characters = "xxabcde";
  const std::vector<std::int32_t> offsets{2, 3, 3, 7};
  const std::vector<std::int32_t> tail{3, 3, 7};
  EXPECT_EQ(encoded({texts("t", characters, offsets)}, 1, 3), encoded({texts("t", characters, tail)}, 0, 2));
  const std::vector<std::int64_t> values{1, 2, 3, 4, 5};
  const std::vector<std::int32_t> ends{0, 1, 3, 4};
  auto sliced = lists("v", ColumnKind::kFidV1, ValueType::kInt64, values, ends);
  sliced.first_row = 1;
  sliced.rows = 2;
  sliced.first_value = 1;
  sliced.value_count = 4;
  const std::vector<std::int64_t> same{3, 4, 5};
  const std::vector<std::int32_t> same_ends{0, 2, 3};
  EXPECT_EQ(encoded({sliced}, 0, 2),
            encoded({lists("v", ColumnKind::kFidV1, ValueType::kInt64, same, same_ends)}, 0, 2));
}

TEST(ColumnEncoder, RefusesBuffersThatDoNotFitTogether) {
  const std::vector<std::int64_t> values{1, 2, 3};
  for (const std::vector<std::int32_t>& offsets :
       {std::vector<std::int32_t>{0, 4}, std::vector<std::int32_t>{0, 2, 1}, std::vector<std::int32_t>{-1, 2}}) {
    EXPECT_THROW(Column(lists("v", ColumnKind::kFidV1, ValueType::kInt64, values, offsets)), ConfigError);
  }
  auto long_column = flat("v", ColumnKind::kFidV1, ValueType::kInt64, values);
  long_column.rows = 4;
  EXPECT_THROW(Column{long_column}, ConfigError);
  long_column.value_count = std::numeric_limits<std::uint64_t>::max();
  EXPECT_THROW(Column{long_column}, ConfigError);
  const std::vector<std::int32_t> offsets{0, 9};
  EXPECT_THROW(Column(texts("t", "short", offsets)), ConfigError);
  auto short_bits = flat("v", ColumnKind::kFidV1, ValueType::kInt64, std::vector<std::int64_t>(9));
  short_bits.values = bytes_of(values);
  EXPECT_THROW(Column{short_bits}, ConfigError);
  const Column column(flat("v", ColumnKind::kFidV1, ValueType::kInt64, values));
  const Column* pointer = &column;
  EXPECT_THROW((void)encode_columns({&pointer, 1}, 0, 4, "table", 0), ConfigError);
  EXPECT_THROW((void)encode_columns({&pointer, 1}, 2, 1, "table", 0), ConfigError);
}

TEST(ColumnEncoder, RefusesTypesThatCannotBecomeTheKind) {
  const std::vector<double> reals{1.5};
  EXPECT_THROW(Column(flat("r", ColumnKind::kInt64, ValueType::kDouble, reals)), SchemaMismatch);
  EXPECT_THROW(Column(flat("r", ColumnKind::kBytes, ValueType::kDouble, reals)), SchemaMismatch);
  const std::vector<std::int64_t> ids{1};
  const std::vector<std::int32_t> offsets{0, 1};
  auto uid = lists("__UID__", ColumnKind::kInt64, ValueType::kInt64, ids, offsets);
  uid.line_field = LineField{"uid", 2, FieldKind::kFixed64, false, 0};
  EXPECT_THROW(Column{uid}, SchemaMismatch);
  uid.line_field = LineField{"uid", 0, FieldKind::kFixed64, true, 0};
  EXPECT_THROW(Column{uid}, ConfigError);
}

TEST(ColumnEncoder, NamesTheRowOfAValueThatDoesNotFit) {
  const std::vector<std::uint64_t> values{1, std::uint64_t{1} << 63};
  const Column column(flat("big", ColumnKind::kInt64, ValueType::kUint64, values));
  const Column* pointer = &column;
  try {
    (void)encode_columns({&pointer, 1}, 0, 2, "table", 40);
    FAIL() << "nothing was thrown";
  } catch (const SchemaMismatch& error) {
    EXPECT_NE(std::string(error.what()).find("table: column 'big', row 41: 9223372036854775808"), std::string::npos)
        << error.what();
  }
}

TEST(ColumnEncoder, SteadyWorkTakesItsMemoryFromThePool) {
  const std::vector<std::int64_t> ids(4096, 1);
  const Column column(flat("a", ColumnKind::kFidV2, ValueType::kInt64, ids));
  const Column* pointer = &column;
  (void)encode_columns({&pointer, 1}, 0, 4096, "table", 0);
  const std::size_t pooled = Buffer::pooled_bytes();
  for (int i = 0; i < 100; ++i) (void)encode_columns({&pointer, 1}, 0, 4096, "table", 0);
  EXPECT_EQ(Buffer::pooled_bytes(), pooled);
}

}  // namespace
}  // namespace engine::data
