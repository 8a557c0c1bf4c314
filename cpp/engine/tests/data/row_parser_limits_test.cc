// Records of a few kilobytes that ask for gigabytes, or for hours: they are read in little memory, or refused.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/data/assembler.h"
#include "engine/data/row_encoder.h"
#include "engine/data/row_parser.h"
#include "engine/error.h"

namespace engine::data {
namespace {

std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
  return out;
}

std::string number(std::uint32_t field, std::uint64_t value) { return varint(field << 3) + varint(value); }

std::string block(std::uint32_t field, std::string_view bytes) {
  return varint(field << 3 | 2) + varint(bytes.size()) + std::string(bytes);
}

std::string repeated(std::string_view text, std::size_t times) {
  std::string out;
  for (std::size_t i = 0; i < times; ++i) out += text;
  return out;
}

// Feature of an Example with one text, and with floats.
std::string text_feature(std::string_view text) { return block(6, block(1, text)); }
std::string float_feature(std::size_t count) { return block(3, block(1, std::string(count * 4, '\0'))); }

std::string named(std::string_view name, std::string_view feature) { return block(1, name) + block(2, feature); }

std::string shared_column(std::string_view name, std::string_view feature) {
  return block(1, named(name, feature) + number(3, 1));
}

class RowParserLimits : public testing::Test {
 protected:
  Rows parse(RecordKind kind, const std::string& record, bool keep_all = false,
             std::vector<std::string> label_features = {}) {
    auto records = std::make_shared<Records>();
    auto buffer = Buffer::take(record.size());
    std::memcpy(buffer->data(), record.data(), record.size());
    records->source = "stream";
    records->buffer = std::move(buffer);
    records->entries.push_back({0, static_cast<std::uint32_t>(record.size()), 0, 0});
    ParserConfig config;
    config.kind = kind;
    config.keep_all = keep_all;
    config.label_features = std::move(label_features);
    RowParser parser(config, columns_);
    return parser.parse(records);
  }

  static std::string line_of(const Rows& rows, std::size_t row) {
    const Bytes line = rows.info(row).line;
    return {reinterpret_cast<const char*>(line.data()), line.size()};
  }

  static std::vector<std::int64_t> actions_of(const Rows& rows, std::size_t row) {
    std::vector<std::int64_t> actions;
    line_ints(rows.info(row).line, find_field(standard_line_fields(), "actions"), actions);
    return actions;
  }

  std::shared_ptr<Columns> columns_ = std::make_shared<Columns>();
};

TEST_F(RowParserLimits, ABatchOfFewBytesDoesNotHaveMillionsOfRows) {
  const std::string record = shared_column("a", float_feature(1)) + number(3, 1 << 21);
  EXPECT_THROW((void)parse(RecordKind::kExampleBatch, record), RecordCorrupt);
  EXPECT_EQ(parse(RecordKind::kExampleBatch, shared_column("a", float_feature(1)) + number(3, 1 << 16)).size(),
            std::size_t{1} << 16);
}

TEST_F(RowParserLimits, LabelsThatAllRowsShareAreNotCopiedWithoutEnd) {
  const std::string record = shared_column("__LABEL__", float_feature(4096)) + number(3, 1 << 16);  // 1 GiB of labels
  EXPECT_THROW((void)parse(RecordKind::kExampleBatch, record), RecordCorrupt);
  const Rows rows = parse(RecordKind::kExampleBatch, shared_column("__LABEL__", float_feature(2)) + number(3, 1000));
  EXPECT_EQ(rows.info(999).label_count, 2U);
}

TEST_F(RowParserLimits, ALineIdThatAllRowsShareIsStoredOnce) {
  const std::string line = block(48, std::string(2000, 'c'));
  const std::string column = shared_column("__LINE_ID__", text_feature(line));
  const Rows rows = parse(RecordKind::kExampleBatch, column + column + number(3, 30000));
  ASSERT_EQ(rows.size(), 30000U);
  EXPECT_EQ(line_of(rows, 29999), line);
  EXPECT_EQ(rows.info(0).line.data(), rows.info(29999).line.data());
}

TEST_F(RowParserLimits, ALaterColumnOfLineIdsCountsInTheRowsThatItFills) {
  const std::string first = block(48, "first");
  const std::string second = block(48, "second");
  const std::string columns =
      block(1, block(1, "__LINE_ID__") + block(2, text_feature(first)) + block(2, text_feature(first))) +
      block(1, block(1, "__LINE_ID__") + block(2, "") + block(2, text_feature(second)));
  const Rows rows = parse(RecordKind::kExampleBatch, columns + number(3, 2));
  EXPECT_EQ(line_of(rows, 0), first);
  EXPECT_EQ(line_of(rows, 1), second);
}

TEST_F(RowParserLimits, SharedFeaturesOfARowMajorBatchAreReadOnce) {
  columns_->want("a");
  // Ids that are not packed have to be gathered: 40 kB for each of 20,000 rows would be 800 MB.
  const std::string ids = repeated(varint(1 << 3 | 1) + std::string(8, '\1'), 5000);
  const std::string record = block(1, named("a", block(2, ids))) + repeated(block(3, ""), 20000);
  const Rows rows = parse(RecordKind::kExampleBatchRowMajor, record);
  ASSERT_EQ(rows.size(), 20000U);
  EXPECT_EQ(rows.cell(0, 0).size, 40000U);
  EXPECT_EQ(rows.cell(0, 0).data, rows.cell(19999, 0).data);
}

TEST_F(RowParserLimits, OfSharedFeaturesWithOneNameTheLastCountsAndTheRowsOwnCountsMore) {
  columns_->want("a");
  const std::string record = block(1, named("a", float_feature(1))) + block(1, named("a", float_feature(2))) +
                             block(1, named("a", "")) + block(3, "") + block(3, block(1, named("a", float_feature(3))));
  const Rows rows = parse(RecordKind::kExampleBatchRowMajor, record);
  EXPECT_EQ(rows.cell(0, 0).size, 8U);
  EXPECT_EQ(rows.cell(1, 0).size, 12U);
}

TEST_F(RowParserLimits, SharedLineIdsOfARowMajorBatchAreNotMergedWithoutEnd) {
  const std::string line = block(48, std::string(60000, 'c'));
  const std::string own = block(3, block(100, number(3, 5)));
  const std::string shared = block(1, named("__LINE_ID__", text_feature(line)));
  EXPECT_THROW((void)parse(RecordKind::kExampleBatchRowMajor, shared + repeated(own, 4000)), RecordCorrupt);
  const Rows rows = parse(RecordKind::kExampleBatchRowMajor, shared + repeated(own, 2));
  EXPECT_EQ(line_of(rows, 1), number(3, 5) + line);
}

TEST_F(RowParserLimits, ALineIdInManyPiecesIsPutTogetherOnce) {
  // Copied for each piece, the 50,000 pieces would take 3.75 GB.
  const Rows rows = parse(RecordKind::kExample, repeated(block(100, number(6, 7)), 50000));
  EXPECT_EQ(actions_of(rows, 0), std::vector<std::int64_t>(50000, 7));
}

TEST_F(RowParserLimits, AFeatureInManyPiecesIsPutTogetherOnce) {
  columns_->want("a");
  const std::string pieces = repeated(block(2, block(5, block(1, varint(7)))), 50000);
  const Rows rows = parse(RecordKind::kExample, block(1, block(1, "a") + pieces));
  EXPECT_EQ(rows.cell(0, 0).size, 50000U);
}

TEST_F(RowParserLimits, ManyActionsOfATfExampleAreWrittenAtOnce) {
  const std::string values = block(3, block(1, std::string(200000, '\7')));
  const Rows rows = parse(RecordKind::kTfExample, block(1, block(1, named("__ACTIONS__", values))));
  EXPECT_EQ(actions_of(rows, 0), std::vector<std::int64_t>(200000, 7));
}

TEST_F(RowParserLimits, OfALineFieldThatATfExampleNamesTwiceTheLastCounts) {
  const auto actions = [](std::string_view values) { return named("__ACTIONS__", block(3, block(1, values))); };
  const Rows rows = parse(RecordKind::kTfExample, block(1, block(1, actions("\1\2")) + block(1, actions("\3"))));
  EXPECT_EQ(actions_of(rows, 0), std::vector<std::int64_t>{3});
}

TEST(LineIdEdits, AValueIsAddedBehindUnpackedOnesToo) {
  const LineField& actions = find_field(standard_line_fields(), "actions");
  const std::string line = block(6, "\1") + number(6, 2);
  Arena arena;
  std::vector<std::int64_t> values;
  line_ints(line_add_int(std::as_bytes(std::span(line)), actions, 3, arena), actions, values);
  EXPECT_EQ(values, (std::vector<std::int64_t>{1, 2, 3}));
}

TEST_F(RowParserLimits, AFieldOfAnInstanceWithoutValuesHidesNoLaterOne) {
  columns_->want("x");
  const std::string floats = block(3, std::string(8, '\1'));
  for (const std::string& empty : {block(2, ""), block(6, ""), block(6, block(1, "")), block(2, "") + block(6, "")}) {
    const Rows rows = parse(RecordKind::kInstance, block(9, block(1, "x") + empty + floats));
    EXPECT_EQ(rows.cell(0, 0).arm, Arm::kFloat);
    EXPECT_EQ(rows.cell(0, 0).size, 8U);
  }
}

TEST_F(RowParserLimits, ANumberThatIsTooLongIsNamedByItsPlace) {
  const std::string numbers = repeated("\x80", 9) + "\x7f";
  try {
    static_cast<void>(parse(RecordKind::kExample, block(1, named("a", block(5, block(1, numbers)))), true));
    ADD_FAILURE() << "the record was read";
  } catch (const RecordCorrupt& error) {
    EXPECT_STREQ(error.what(), "stream: record at byte 0, byte 20 of it: a number is longer than 64 bits");
  }
}

TEST_F(RowParserLimits, LabelsOfTheRecordAreNoFeatureBesideLabelFeatures) {
  const std::string record = block(1, named("__LABEL__", text_feature("x"))) + block(1, named("a", text_feature("y"))) +
                             block(1, named("click", float_feature(1)));
  const Rows rows = parse(RecordKind::kExample, record, true, {"click"});
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows.info(0).label_count, 1U);
  EXPECT_EQ(columns_->find("__LABEL__"), Columns::kUnwanted);
  ASSERT_NE(columns_->find("a"), Columns::kUnwanted);
  // The row as an Example is read by a parser that has no label features.
  const std::vector<std::string> encoded = encode_examples(rows, *columns_);
  const Rows again = parse(RecordKind::kExample, encoded.at(0), true);
  EXPECT_EQ(again.info(0).label_count, 1U);
}

}  // namespace
}  // namespace engine::data
