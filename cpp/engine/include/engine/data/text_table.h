// text_table.h: rows of CSV and JSON lines -> columns in memory, in the layout of Arrow. Types of columns are given, or
// inferred from rows. Functions here are Concurrent; they keep nothing between calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/records.h"

namespace engine::data {

// Bytes of a block of text, at most.
inline constexpr std::size_t kMostTextBytes = (std::size_t{1} << 30) - 1;

enum class TextType : std::uint8_t {
  kNull,    // no row has a value
  kBool,    // true and false
  kInt64,   //
  kUint64,  //
  kDouble,  //
  kText,    //
  kNested,  // objects, and lists of lists: no feature can have them
};

[[nodiscard]] std::string_view name_of(TextType type) noexcept;
[[nodiscard]] std::optional<TextType> text_type(std::string_view name) noexcept;

// A column to read. `index` is its place in a row of CSV; JSON lines find it by its name.
struct TextField {
  std::string name;
  TextType type = TextType::kText;
  bool is_list = false;
  std::uint32_t index = 0;
};

// The first error of a block.
struct TextProblem {
  std::uint64_t row = 0;   // in the block, from 0
  std::uint64_t byte = 0;  // of the block, where the row or the value begins
  std::string column;      // empty where the whole row is wrong
  std::string value;       // the text as it stands, cut when it is long
  std::string reason;      // the error, and the rule
};

// The values of one column. A bitmap is empty when every value is there.
struct TextColumn {
  TextType type = TextType::kNull;
  bool is_list = false;
  std::uint64_t value_count = 0;
  std::vector<std::uint64_t> words;      // bits of integers and doubles
  std::vector<std::uint8_t> bits;        // truth values, lowest bit first
  std::vector<char> characters;          // of all texts
  std::vector<std::int64_t> text_ends;   // 0, then the end of each text
  std::vector<std::uint8_t> valid;       // bitmap of the values
  std::vector<std::int64_t> list_ends;   // 0, then the end of each list
  std::vector<std::uint8_t> list_valid;  // bitmap of the lists
};

struct TextTable {
  std::uint64_t rows = 0;
  std::vector<TextColumn> columns;  // as the fields
  std::optional<TextProblem> problem;
};

// Rows end with \n, \r\n or \r. A field in quotes may contain line ends, delimiters and doubled quotes. Empty fields
// and words for a missing value (NA, null, ...) outside of quotes are missing values. Empty lines are skipped.
struct CsvShape {
  char delimiter = ',';
  std::uint32_t width = 1;  // fields of a row
};

// Rows of a block, which begins at a row; the last row may lack its line end. Throws ConfigError for a field outside of
// the width, or a block above kMostTextBytes.
[[nodiscard]] TextTable parse_csv(std::string_view block, const CsvShape& shape, const std::vector<TextField>& fields);

struct InferredText {
  std::vector<TextField> fields;
  std::optional<TextProblem> problem;
};

// Types of all fields of a row: integers, truth values, doubles, else text. Names are empty.
[[nodiscard]] InferredText infer_csv(std::string_view block, const CsvShape& shape);

// End of the last whole row of a block that begins at a row; 0 without one.
[[nodiscard]] std::size_t cut_csv(std::string_view block, char delimiter);

// One JSON object per line, on one line; empty lines are skipped. Fields that a row lacks are missing values; members
// of the object that are not among `fields` are skipped. A member that comes twice is an error.
[[nodiscard]] TextTable parse_json_lines(std::string_view block, const std::vector<TextField>& fields);

// Members of all objects in the order of their first appearance, with the type that holds all values.
[[nodiscard]] InferredText infer_json_lines(std::string_view block);

}  // namespace engine::data
