// text_table_test.cc: CSV and JSON lines to columns: values, types, errors, and the scan with and without vectors.
#include "engine/data/text_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <string>

#include "data/text_numbers.h"
#include "data/text_scan.h"

namespace engine::data {
namespace {

std::vector<std::string> texts(const TextColumn& column) {
  std::vector<std::string> all;
  for (std::size_t i = 0; i + 1 < column.text_ends.size(); ++i) {
    const auto begin = column.characters.begin() + column.text_ends[i];
    all.emplace_back(begin, column.characters.begin() + column.text_ends[i + 1]);
  }
  return all;
}

std::vector<TextField> csv_fields(std::initializer_list<TextType> types) {
  std::vector<TextField> fields;
  for (const TextType type : types) {
    const auto index = static_cast<std::uint32_t>(fields.size());
    fields.push_back({"c" + std::to_string(index), type, false, index});
  }
  return fields;
}

TEST(CharacterSet, FindsTheSameWithAndWithoutVectors) {
  std::mt19937 random(1);
  const text::CharacterSet set(',', '\n', '\r', '"');
  for (int round = 0; round < 1000; ++round) {
    char block[text::kStride];
    for (char& c : block) c = ",\n\r\"ab\x80 "[random() % 8];
    EXPECT_EQ(set.find(block), set.find_portable(block));
  }
}

TEST(ShortDigits, AreTheNumber) {
  for (const std::string digits : {"0", "7", "42", "00000009", "12345678", "99999999", "1234567"}) {
    std::uint64_t value = 0;
    const std::string padded = digits + ",xxxxxxx";
    ASSERT_TRUE(text::parse_short_digits(padded.data(), digits.size(), value)) << digits;
    EXPECT_EQ(value, std::stoull(digits));
  }
  for (const std::string wrong : {"-1", "1a", "1.5", " 12", "1/", ":2"}) {
    std::uint64_t value = 0;
    EXPECT_FALSE(text::parse_short_digits((wrong + "        ").data(), wrong.size(), value)) << wrong;
  }
}

TEST(ShortDecimals, AreTheNumber) {
  for (const std::string digits : {"0", "5", "5.", ".5", "0.5", "0.1234", "1.23456", "12345.67", "1234567.", ".1234567",
                                   "12345678", "00.00100", "0.3"}) {
    double value = -1;
    const std::string padded = digits + ",.xxxxxx";
    ASSERT_TRUE(text::parse_short_decimal(padded.data(), digits.size(), value)) << digits;
    EXPECT_EQ(value, std::stod(digits)) << digits;
  }
  for (const std::string wrong : {".", "..", "1..2", "1.2.3", "-1", "1e5", " .5", "1.a", "/.5", "0.:", "\xae\x35"}) {
    double value = 0;
    EXPECT_FALSE(text::parse_short_decimal((wrong + "........").data(), wrong.size(), value)) << wrong;
  }
}

// Rows of three texts, in blocks with and without quotes. One row of `irregular` has delimiters, line ends and doubled
// quotes in its fields, an empty line behind it or another line end.
class RandomRows {
 public:
  RandomRows(unsigned seed, unsigned irregular, bool has_quotes) : random_(seed) {
    for (int row = 0; row < 1500; ++row) add_row(random_() % irregular == 0, has_quotes);
  }

  std::string block;
  std::vector<std::string> columns[3];
  std::vector<std::size_t> ends{0};  // behind the line ends outside of quotes

 private:
  void add_row(bool is_irregular, bool has_quotes) {
    for (auto& column : columns) {
      std::string field(random_() % 20, static_cast<char>('a' + random_() % 8));
      const std::size_t kind = is_irregular ? random_() % 4 : 3;
      if (kind < 3) {
        block += '"' + field + (kind == 0 ? ",\n" : kind == 1 ? "\"\"," : "") + '"';
        field += kind == 0 ? ",\n" : kind == 1 ? "\"," : "";
      } else {
        const std::string quote = has_quotes && random_() % 2 == 0 ? "\"" : "";
        block += quote + field + quote;
      }
      column.push_back(field);
      if (&column != &columns[2]) block += ',';
    }
    if (is_irregular && random_() % 2 == 0) block += '\r';
    end_line();
    if (is_irregular && random_() % 2 == 0) end_line();
  }
  void end_line() {
    block += '\n';
    ends.push_back(block.size());
  }

  std::mt19937 random_;
};

TEST(ParseCsv, ReadsRowsBeforeAndBehindIrregularOnes) {
  for (const unsigned irregular : {1U, 40U, 700U, 1'000'000U}) {
    for (const bool has_quotes : {false, true}) {
      const RandomRows rows(irregular, irregular, has_quotes);
      const auto table =
          parse_csv(rows.block, {',', 3}, csv_fields({TextType::kText, TextType::kText, TextType::kText}));
      ASSERT_FALSE(table.problem) << table.problem->reason;
      ASSERT_EQ(table.rows, 1500);
      for (int column = 0; column < 3; ++column) EXPECT_EQ(texts(table.columns[column]), rows.columns[column]);
    }
  }
}

TEST(CutCsv, EndsBehindTheLastLineEndOutsideOfQuotes) {
  std::mt19937 random(4);
  for (const unsigned irregular : {1U, 40U, 1'000'000U}) {
    const RandomRows rows(irregular, irregular, true);
    for (int round = 0; round < 200; ++round) {
      const std::size_t size = random() % rows.block.size();
      const auto end = std::upper_bound(rows.ends.begin(), rows.ends.end(), size) - 1;
      EXPECT_EQ(cut_csv(std::string_view(rows.block).substr(0, size), ','), *end) << size;
    }
  }
}

TEST(ParseCsv, CountsTheFieldsOfARowBehindManyRegularOnes) {
  std::string block;
  for (int row = 0; row < 300; ++row) block += "1,2\n";
  for (const std::string wrong : {"1\n", "1,2,3\n", ",,\n"}) {
    const auto table = parse_csv(block + wrong + block, {',', 2}, csv_fields({TextType::kInt64, TextType::kInt64}));
    ASSERT_TRUE(table.problem) << wrong;
    EXPECT_EQ(table.problem->row, 300);
    EXPECT_EQ(table.problem->byte, block.size());
  }
}

TEST(ParseCsv, RoundsDoublesAsTheStandardLibraryDoes) {
  std::mt19937_64 random(2);
  std::string block;
  std::vector<double> expected;
  for (int row = 0; row < 20'000; ++row) {
    const auto value =
        row % 3 == 0 ? std::bit_cast<double>(random()) : static_cast<double>(random() % 100'000'000) / 1e4;
    if (!std::isfinite(value)) continue;
    char number[40];
    std::snprintf(number, sizeof number, row % 2 == 0 ? "%.17g" : "%.6f", value);
    if (std::string_view(number).size() > 39) continue;
    block += std::string(number) + "\n";
    expected.push_back(std::strtod(number, nullptr));
  }
  const auto table = parse_csv(block, {',', 1}, csv_fields({TextType::kDouble}));
  ASSERT_FALSE(table.problem) << table.problem->reason;
  ASSERT_EQ(table.rows, expected.size());
  for (std::size_t row = 0; row < expected.size(); ++row) {
    EXPECT_EQ(table.columns[0].words[row], std::bit_cast<std::uint64_t>(expected[row]));
  }
}

TEST(ParseCsv, KeepsQuotedFieldsWhole) {
  const auto table = parse_csv("\"a,b\",1\r\n\"c\nd\",2\n\n\"e\"\"f\",3\n\"\",4\n,5\n\"g\"h,6", {',', 2},
                               csv_fields({TextType::kText, TextType::kInt64}));
  ASSERT_FALSE(table.problem);
  EXPECT_EQ(texts(table.columns[0]), (std::vector<std::string>{"a,b", "c\nd", "e\"f", "", "", "gh"}));
  EXPECT_EQ(table.columns[0].valid, std::vector<std::uint8_t>{0b101111});
  EXPECT_EQ(table.columns[1].words, (std::vector<std::uint64_t>{1, 2, 3, 4, 5, 6}));
}

TEST(ParseCsv, NamesTheFirstWrongValue) {
  const auto table = parse_csv("1,2\n3,x\n", {',', 2}, csv_fields({TextType::kInt64, TextType::kInt64}));
  ASSERT_TRUE(table.problem);
  EXPECT_EQ(table.problem->row, 1U);
  EXPECT_EQ(table.problem->byte, 6U);
  EXPECT_EQ(table.problem->column, "c1");
  EXPECT_EQ(table.problem->value, "x");
  for (const char* block : {"1\n", "1,2,3\n", "1,\"2\n"}) {
    EXPECT_TRUE(parse_csv(block, {',', 2}, {}).problem) << block;
  }
}

TEST(CutCsv, EndsBehindARow) {
  EXPECT_EQ(cut_csv("1,\"a\nb\"\n2,\"c\n", ','), 8U);
  EXPECT_EQ(cut_csv("1,a", ','), 0U);
  EXPECT_EQ(cut_csv("5\" pipe,1\n6,2\n7", ','), 14U);
}

TEST(InferCsv, TakesTheNarrowestType) {
  const auto inferred = infer_csv("1,1,true,18446744073709551615,2024-01-01,,0x1F\n2,1.5,0,1,x,NA,7\n", {',', 7});
  const std::vector<TextType> expected{TextType::kInt64, TextType::kDouble, TextType::kBool, TextType::kUint64,
                                       TextType::kText,  TextType::kNull,   TextType::kInt64};
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(inferred.fields[i].type, expected[i]) << i;
}

TEST(ParseJsonLines, ReadsValuesListsAndEscapes) {
  const std::vector<TextField> fields{{"a", TextType::kInt64, false, 0}, {"g", TextType::kText, true, 0}};
  const auto table = parse_json_lines(
      "{\"a\": 9007199254740993, \"g\": [\"x\", \"\\u00e9\\ud83d\\ude00\"], \"skipped\": {\"b\": [1, {}]}}\r\n\n"
      "{\"g\": [], \"a\": null}\n{}\n",
      fields);
  ASSERT_FALSE(table.problem) << table.problem->reason;
  EXPECT_EQ(table.rows, 3U);
  EXPECT_EQ(table.columns[0].words, (std::vector<std::uint64_t>{9007199254740993, 0, 0}));
  EXPECT_EQ(table.columns[0].valid, std::vector<std::uint8_t>{1});
  EXPECT_EQ(texts(table.columns[1]), (std::vector<std::string>{"x", "\xc3\xa9\xf0\x9f\x98\x80"}));
  EXPECT_EQ(table.columns[1].list_ends, (std::vector<std::int64_t>{0, 2, 2, 2}));
  EXPECT_EQ(table.columns[1].list_valid, std::vector<std::uint8_t>{3});
}

TEST(ParseJsonLines, RefusesMalformedLines) {
  const std::vector<TextField> fields{{"a", TextType::kInt64, false, 0}};
  for (const char* line :
       {"null", "[1]", "{\"a\":1", "{\"a\":1,}", "{\"a\":01}", "{\"a\":1}{\"a\":2}", "{\"a\":1,\"a\":2}", "{\"a\":\n1}",
        "{\"a\":\"x\"}", "{\"a\":1.0}", "{\"a\":9223372036854775808}", "{\"b\":\"\\ud800\"}", "{\"b\":\"\x01\"}",
        "{\"b\":tru}", "{\"b\":[1}", "{a:1}", "{\"a\" 1}"}) {
    EXPECT_TRUE(parse_json_lines(line, fields).problem) << line;
  }
  std::string deep = "{\"b\":";
  for (int i = 0; i < 100'000; ++i) deep += '[';
  EXPECT_TRUE(parse_json_lines(deep, fields).problem);
}

TEST(InferJsonLines, MergesNumbersAndRefusesMixtures) {
  const auto inferred =
      infer_json_lines("{\"a\":1,\"b\":[1],\"c\":18446744073709551615}\n{\"a\":1.5,\"b\":[2.5],\"d\":{}}\n");
  ASSERT_FALSE(inferred.problem);
  EXPECT_EQ(inferred.fields[0].type, TextType::kDouble);
  EXPECT_TRUE(inferred.fields[1].is_list);
  EXPECT_EQ(inferred.fields[1].type, TextType::kDouble);
  EXPECT_EQ(inferred.fields[2].type, TextType::kUint64);
  EXPECT_EQ(inferred.fields[3].type, TextType::kNested);
  const auto mixed = infer_json_lines("{\"a\":1}\n{\"a\":\"x\"}\n");
  ASSERT_TRUE(mixed.problem);
  EXPECT_EQ(mixed.problem->column, "a");
  EXPECT_EQ(mixed.problem->value, "\"x\"");
}

}  // namespace
}  // namespace engine::data
