// csv_table.cc: rows are split into fields, some hundred rows at a time; then each column converts its fields.
#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "engine/data/text_table.h"
#include "engine/error.h"
#include "text_columns.h"
#include "text_numbers.h"
#include "text_scan.h"

namespace engine::data {

namespace {

using text::Decimal;

constexpr std::size_t kChunkRows = 128;
constexpr char kQuote = '"';

// Words for a missing value, outside of quotes; a test holds them against the reader's list.
constexpr std::array<std::string_view, 8> kNulls{"NA", "N/A", "NaN", "nan", "NULL", "null", "None", "\\N"};

bool is_null(std::string_view field) noexcept {
  if (field.empty()) return true;
  if (field.size() > 4 || (field[0] != 'N' && field[0] != 'n' && field[0] != '\\')) return false;
  return std::find(kNulls.begin(), kNulls.end(), field) != kNulls.end();
}

bool is_space(char c) noexcept { return c == ' ' || c == '\t'; }

std::string_view trim(std::string_view field) noexcept {
  while (!field.empty() && is_space(field.front())) field.remove_prefix(1);
  while (!field.empty() && is_space(field.back())) field.remove_suffix(1);
  return field;
}

// How a field is written.
enum Quoting : std::uint32_t {
  kPlain,   //
  kQuoted,  // the span is the text between the quotes
  kMixed,   // the span begins with the opening quote; doubled quotes, or text behind the closing one
};

// A field in the block.
struct Span {
  std::uint32_t begin;
  std::uint32_t size : 30;
  std::uint32_t quoting : 2;
};

// A row that has another number of fields, or a quote without end.
struct BadRow {
  std::uint64_t byte;
  std::uint64_t end;
  std::string reason;
};

// Splits rows into fields. Exclusive.
class RowSplitter {
 public:
  RowSplitter(std::string_view block, const CsvShape& shape)
      : block_(block), shape_(shape), walk_({shape.delimiter, '\n', '\r', kQuote}, block.data(), block.size()) {}

  // Writes the fields of the next rows, row after row; returns the number of rows. Stops before a bad row.
  std::size_t split(Span* fields, std::uint32_t* row_begins, std::size_t most_rows) {
    if (bad_) return 0;
    if (is_regular_) {
      if (const std::size_t rows = split_regular(fields, row_begins, most_rows)) return rows;
    }
    walk_.seek(begin_);
    return split_any(fields, row_begins, most_rows);
  }

  [[nodiscard]] const std::optional<BadRow>& bad() const noexcept { return bad_; }

 private:
  // Finds the ends of the next fields, at least `count` where the block has as many; returns their number. Stops near
  // the end of the block, and before a quote that neither opens nor closes a whole field.
  std::size_t find_ends(std::size_t count) {
    const text::CharacterSet separators(shape_.delimiter, '\n', '\r', '\n');
    const text::CharacterSet quotes(kQuote, kQuote, kQuote, kQuote);
    ends_.resize(count + text::kStride + 8);  // eight are written where one is found
    std::uint32_t* const ends = ends_.data();
    std::size_t size = 0;
    std::size_t base = begin_ / text::kStride * text::kStride;
    std::uint64_t wanted = ~std::uint64_t{0} << begin_ % text::kStride;
    std::uint64_t inside = 0;                                          // all ones behind an open quote
    std::uint64_t opens = std::uint64_t{1} << begin_ % text::kStride;  // a field begins with this character
    std::uint64_t closes = 0;                                          // a separator must be this character
    for (; size < count && base + text::kStride <= block_.size(); base += text::kStride) {
      const char* const at = block_.data() + base;
      std::uint64_t mask = separators.find(at) & wanted;
      const std::uint64_t marks = quotes.find(at) & wanted;
      if ((marks | inside | closes) != 0) {
        const std::uint64_t between = text::mark_between(marks) ^ inside;
        mask &= ~between;
        const std::uint64_t closing = marks & ~between;
        const bool is_regular = (marks & between & ~(mask << 1 | opens)) == 0 && ((closing << 1 | closes) & ~mask) == 0;
        if (!is_regular) break;
        inside = std::uint64_t{0} - (between >> 63);
        closes = closing >> 63;
      }
      opens = mask >> 63;
      wanted = ~std::uint64_t{0};
      const auto hits = static_cast<std::size_t>(std::popcount(mask));
      for (std::size_t written = 0; written < hits; written += 8) {
        for (std::size_t place = 0; place < 8; ++place) {
          ends[size + written + place] =
              static_cast<std::uint32_t>(base + static_cast<std::size_t>(std::countr_zero(mask)));
          mask &= mask - 1;
        }
      }
      size += hits;
    }
    return size;
  }

  // `split` for rows that end with \n, whose quotes enclose whole fields. Returns 0 before another row, and near the
  // end of the block.
  std::size_t split_regular(Span* fields, std::uint32_t* row_begins, std::size_t most_rows) {
    const std::size_t width = shape_.width;
    const std::size_t most = std::min(find_ends(most_rows * width) / width, most_rows);
    const char* const block = block_.data();
    const char delimiter = shape_.delimiter;
    const std::uint32_t* end = ends_.data();
    auto begin = static_cast<std::uint32_t>(begin_);
    std::size_t rows = 0;
    for (; rows < most; ++rows) {
      const std::uint32_t row_begin = begin;
      const std::uint32_t* const last = end + width - 1;
      int difference = block[*last] ^ '\n';
      for (; end != last; ++end) {
        difference |= block[*end] ^ delimiter;
        *fields++ = whole_span(block, begin, *end);
        begin = *end + 1;
      }
      *fields++ = whole_span(block, begin, *end);
      begin = *end++ + 1;
      const bool is_empty = width == 1 && begin == row_begin + 1;
      if (difference != 0 || is_empty) {
        begin = row_begin;
        is_regular_ = rows != 0;
        break;
      }
      row_begins[rows] = row_begin;
    }
    begin_ = begin;
    return rows;
  }

  // A field without quotes, or between two.
  static Span whole_span(const char* block, std::uint32_t begin, std::uint32_t end) noexcept {
    static_assert(kPlain == 0 && kQuoted == 1);
    const std::uint32_t quoted = block[begin] == kQuote ? 1 : 0;
    return make_span(begin + quoted, end - quoted, quoted);
  }

  // `split` for any row.
  std::size_t split_any(Span* fields, std::uint32_t* row_begins, std::size_t most_rows) {
    std::size_t rows = 0;
    // Members would be loaded and stored for each field.
    text::CharacterWalk walk = walk_;
    const std::string_view block = block_;
    const CsvShape shape = shape_;
    std::size_t begin = begin_;
    while (rows < most_rows) {
      const std::size_t row_begin = begin;
      Span* const row = fields + rows * shape.width;
      std::size_t column = 0;
      std::size_t at = 0;
      while (true) {
        std::uint32_t quoting = kPlain;
        std::size_t closing = 0;
        at = walk.next();
        while (at != block.size() && block[at] == kQuote) {
          if (at == begin && quoting == kPlain) {
            quoting = kQuoted;
            closing = find_closing(block, walk, quoting);
            if (closing == block.size()) break;
          }
          at = walk.next();
        }
        if (quoting != kPlain && closing == block.size()) {
          bad_ = BadRow{row_begin, block.size(), "quote is not closed, expected a second one"};
          return rows;
        }
        if (column < shape.width) {
          if (quoting == kQuoted && closing + 1 == at) {
            row[column] = make_span(begin + 1, closing, kQuoted);
          } else {
            row[column] = make_span(begin, at, quoting == kPlain ? kPlain : kMixed);
          }
        }
        begin = at + 1;
        ++column;
        if (at == block.size() || block[at] != shape.delimiter) break;
      }
      const bool is_empty = column == 1 && at == row_begin;
      if (!is_empty && column != shape.width) {
        bad_ = BadRow{row_begin, at,
                      "row has " + std::to_string(column) + " fields, expected " + std::to_string(shape.width)};
        return rows;
      }
      if (!is_empty) row_begins[rows++] = static_cast<std::uint32_t>(row_begin);  // else: the \n of \r\n, or nothing
      if (at == block.size()) {
        begin = at;
        break;
      }
    }
    walk_ = walk;
    begin_ = begin;
    return rows;
  }

  static Span make_span(std::size_t begin, std::size_t end, std::uint32_t quoting) noexcept {
    return {static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end - begin) & 0x3fffffffU, quoting & 3U};
  }

  // Returns where the quote closes; the size of the block if it does not.
  static std::size_t find_closing(std::string_view block, text::CharacterWalk& walk, std::uint32_t& quoting) noexcept {
    while (true) {
      const std::size_t at = walk.next();
      if (at == block.size()) return at;
      if (block[at] != kQuote) continue;
      if (at + 1 == block.size() || block[at + 1] != kQuote) return at;
      static_cast<void>(walk.next());
      quoting = kMixed;
    }
  }

  std::string_view block_;
  CsvShape shape_;
  text::CharacterWalk walk_;
  std::vector<std::uint32_t> ends_;  // of fields
  std::size_t begin_ = 0;            // of the next row
  bool is_regular_ = true;           // rows end with \n
  std::optional<BadRow> bad_;
};

// The text of a mixed field: the text between the quotes, and any text behind them.
std::string_view unquote(std::string_view field, std::string& scratch) {
  field.remove_prefix(1);
  const std::size_t first = field.find(kQuote);
  if (first == std::string_view::npos) return field;
  if (first + 1 == field.size()) return field.substr(0, first);
  scratch.clear();
  std::size_t from = 0;
  while (true) {
    const std::size_t quote = field.find(kQuote, from);
    if (quote == std::string_view::npos) break;
    scratch.append(field.substr(from, quote - from));
    if (quote + 1 < field.size() && field[quote + 1] == kQuote) {
      scratch.push_back(kQuote);
      from = quote + 2;
      continue;
    }
    scratch.append(field.substr(quote + 1));
    return scratch;
  }
  scratch.append(field.substr(from));
  return scratch;
}

// --- values ---

bool parse_hex(std::string_view digits, std::uint64_t& value) noexcept {
  if (digits.empty() || digits.size() > 16) return false;
  const auto [at, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  return error == std::errc{} && at == digits.data() + digits.size();
}

bool is_hex(std::string_view field) noexcept {
  return field.size() > 2 && field[0] == '0' && (field[1] == 'x' || field[1] == 'X');
}

bool parse_uint64(std::string_view field, std::uint64_t& value) noexcept {
  field = trim(field);
  if (is_hex(field)) return parse_hex(field.substr(2), value);
  return text::parse_digits(field, value);
}

bool parse_int64(std::string_view field, std::uint64_t& value) noexcept {
  constexpr std::uint64_t kLowest = std::uint64_t{1} << 63;
  field = trim(field);
  if (is_hex(field)) return parse_hex(field.substr(2), value);
  const bool is_negative = field.starts_with('-');
  if (is_negative) field.remove_prefix(1);
  if (!text::parse_digits(field, value)) return false;
  if (value > kLowest || (value == kLowest && !is_negative)) return false;
  if (is_negative) value = ~value + 1;
  return true;
}

bool equals_lower(std::string_view field, std::string_view lower) noexcept {
  return std::equal(field.begin(), field.end(), lower.begin(), lower.end(),
                    [](char c, char wanted) { return static_cast<char>(c | 0x20) == wanted; });
}

bool parse_named_double(std::string_view field, double& value) noexcept {
  const bool is_negative = field.starts_with('-');
  if (is_negative || field.starts_with('+')) field.remove_prefix(1);
  if (equals_lower(field, "inf") || equals_lower(field, "infinity")) {
    value = std::numeric_limits<double>::infinity();
  } else if (equals_lower(field, "nan")) {
    value = std::numeric_limits<double>::quiet_NaN();
  } else {
    return false;
  }
  if (is_negative) value = -value;
  return true;
}

bool parse_double(std::string_view field, double& value) noexcept {
  if (text::parse_short_real(field, value)) return true;
  field = trim(field);
  Decimal number;
  if (!text::scan_decimal<false>(field.data(), field.data() + field.size(), number) ||
      number.end != field.data() + field.size()) {
    return parse_named_double(field, value);
  }
  value = text::to_double(number, field);
  return true;
}

bool parse_bool(std::string_view field, bool& value) noexcept {
  value = field == "1" || field == "true" || field == "True" || field == "TRUE";
  return value || field == "0" || field == "false" || field == "False" || field == "FALSE";
}

const char* expected(TextType type) noexcept {
  switch (type) {
    case TextType::kNull:
      return "expected no value, as in the first rows";
    case TextType::kBool:
      return "expected true or false";
    case TextType::kInt64:
      return "expected an integer of 64 bits";
    case TextType::kUint64:
      return "expected an integer of 64 bits without a sign";
    case TextType::kDouble:
      return "expected a number";
    default:
      return "expected text";
  }
}

// --- a chunk of rows, column by column ---

// Converts the fields of one chunk. Exclusive.
class ChunkReader {
 public:
  ChunkReader(std::string_view block, std::size_t width) : block_(block), width_(width) {}

  // Appends the fields of one column; returns the row of a value that does not fit.
  std::optional<std::size_t> read(const Span* fields, std::size_t rows, const TextField& field, TextColumn& column) {
    const Span* const first = fields + field.index;
    switch (field.type) {
      case TextType::kInt64:
        return read_words(first, rows, column,
                          [this](const Span& span, std::uint64_t& word) { return read_int(span, word); });
      case TextType::kUint64:
        return read_words(first, rows, column,
                          [this](const Span& span, std::uint64_t& word) { return parse_uint64(text_of(span), word); });
      case TextType::kDouble:
        return read_words(first, rows, column, [this](const Span& span, std::uint64_t& word) {
          double value;
          if (!read_real(span, value)) return false;
          word = std::bit_cast<std::uint64_t>(value);
          return true;
        });
      case TextType::kBool:
        return read_bools(first, rows, column);
      case TextType::kText:
        return read_texts(first, rows, column);
      default:
        return read_nulls(first, rows);
    }
  }

  [[nodiscard]] std::string_view raw(const Span& span) const noexcept { return block_.substr(span.begin, span.size); }

  [[nodiscard]] std::string_view text_of(const Span& span) {
    return span.quoting == kMixed ? unquote(raw(span), scratch_) : raw(span);
  }

 private:
  static constexpr std::uint32_t kShort = 8;  // characters that are converted together

  bool read_real(const Span& span, double& value) {
    if (span.quoting == kPlain) {
      if (std::size_t{span.begin} + 1 + kShort <= block_.size()) [[likely]] {
        const char* const at = block_.data() + span.begin;
        const std::uint32_t sign = *at == '-' ? 1 : 0;
        if (span.size - sign - 1 < kShort && text::parse_short_decimal(at + sign, span.size - sign, value)) [[likely]] {
          if (sign != 0) value = -value;
          return true;
        }
      }
      if (is_null(raw(span))) return false;  // NaN is a missing value
    }
    return parse_double(text_of(span), value);
  }

  bool read_int(const Span& span, std::uint64_t& word) {
    const std::uint32_t size = span.size;
    const char* const at = block_.data() + span.begin;
    if (span.quoting == kPlain && std::size_t{span.begin} + 2 * kShort <= block_.size()) [[likely]] {
      if (size - 1 < kShort && text::parse_short_digits(at, size, word)) [[likely]]
        return true;
      std::uint64_t high = 0;
      if (size - 1 - kShort < kShort && text::parse_short_digits(at, size - kShort, high) &&
          text::parse_short_digits(at + size - kShort, kShort, word)) {
        word += high * 100'000'000;
        return true;
      }
    }
    return parse_int64(text_of(span), word);
  }

  template <typename Read>
  std::optional<std::size_t> read_words(const Span* first, std::size_t rows, TextColumn& column, Read&& read) {
    const std::size_t before = column.words.size();
    column.words.resize(before + rows);
    std::uint64_t* const out = column.words.data() + before;
    nulls_.clear();
    for (std::size_t row = 0; row < rows; ++row) {
      const Span& span = first[row * width_];
      if (read(span, out[row])) [[likely]]
        continue;
      if (span.quoting != kPlain || !is_null(raw(span))) return row;
      out[row] = 0;
      nulls_.push_back(row);
    }
    end_values(column, rows);
    return std::nullopt;
  }

  // Counts values that were appended, except those in `nulls_`.
  void end_values(TextColumn& column, std::size_t rows) {
    if (!nulls_.empty() || !column.valid.empty()) {
      auto null = nulls_.begin();
      for (std::size_t row = 0; row < rows; ++row) {
        const bool is_null_row = null != nulls_.end() && *null == row;
        if (is_null_row) ++null;
        text::add_valid(column.valid, column.value_count + row, !is_null_row);
      }
    }
    column.value_count += rows;
  }

  std::optional<std::size_t> read_bools(const Span* first, std::size_t rows, TextColumn& column) {
    for (std::size_t row = 0; row < rows; ++row) {
      const Span& span = first[row * width_];
      bool value = false;
      if (parse_bool(text_of(span), value)) {
        text::add_bool(column, value);
      } else if (span.quoting == kPlain && is_null(raw(span))) {
        text::add_null(column);
      } else {
        return row;
      }
    }
    return std::nullopt;
  }

  std::optional<std::size_t> read_texts(const Span* first, std::size_t rows, TextColumn& column) {
    constexpr std::size_t kStep = 16;  // characters that are copied together
    std::size_t bytes = 0;
    for (std::size_t row = 0; row < rows; ++row) bytes += first[row * width_].size;
    auto& characters = column.characters;
    const std::size_t before = characters.size();
    characters.resize(before + bytes + kStep);
    column.text_ends.resize(column.text_ends.size() + rows);
    std::int64_t* const ends = column.text_ends.data() + column.text_ends.size() - rows;
    char* out = characters.data() + before;
    nulls_.clear();
    for (std::size_t row = 0; row < rows; ++row) {
      const Span& span = first[row * width_];
      if (span.quoting == kPlain && is_null(raw(span))) {
        nulls_.push_back(row);
      } else if (span.quoting != kMixed && span.size <= kStep && span.begin + kStep <= block_.size()) [[likely]] {
        std::memcpy(out, block_.data() + span.begin, kStep);
        out += span.size;
      } else {
        const std::string_view text = text_of(span);
        out = std::copy(text.begin(), text.end(), out);
      }
      ends[row] = out - characters.data();
    }
    characters.resize(static_cast<std::size_t>(out - characters.data()));
    end_values(column, rows);
    return std::nullopt;
  }

  std::optional<std::size_t> read_nulls(const Span* first, std::size_t rows) const {
    for (std::size_t row = 0; row < rows; ++row) {
      const Span& span = first[row * width_];
      if (span.quoting != kPlain || !is_null(raw(span))) return row;
    }
    return std::nullopt;
  }

  std::string_view block_;
  std::size_t width_;
  std::string scratch_;
  std::vector<std::size_t> nulls_;  // rows of the chunk without a value
};

void check_block(std::string_view block, const CsvShape& shape) {
  if (block.size() > kMostTextBytes) {
    throw ConfigError("block has " + std::to_string(block.size()) + " bytes, expected at most " +
                      std::to_string(kMostTextBytes) + "; make rows shorter");
  }
  if (shape.width == 0 || shape.width > 1 << 20) {
    throw ConfigError("a row has " + std::to_string(shape.width) + " fields, expected 1 to 2^20");
  }
}

TextProblem problem_of(const BadRow& bad, std::uint64_t row, std::string_view block) {
  return {row, bad.byte, "", text::shorten(block.substr(bad.byte, bad.end - bad.byte)), bad.reason};
}

// Rows of a chunk: fewer where rows are wide.
std::size_t chunk_rows(const CsvShape& shape) { return std::clamp<std::size_t>(65'536 / shape.width, 1, kChunkRows); }

// Calls `use(fields, row_begins, rows, rows before)` for each chunk; returns the problem of a bad row.
template <typename Use>
std::optional<TextProblem> for_each_chunk(std::string_view block, const CsvShape& shape, Use&& use) {
  check_block(block, shape);
  RowSplitter splitter(block, shape);
  const std::size_t most = chunk_rows(shape);
  std::vector<Span> fields(most * shape.width);
  std::vector<std::uint32_t> row_begins(most);
  std::uint64_t before = 0;
  while (const std::size_t rows = splitter.split(fields.data(), row_begins.data(), most)) {
    if (auto problem = use(fields.data(), row_begins.data(), rows, before)) return problem;
    before += rows;
  }
  if (splitter.bad()) return problem_of(*splitter.bad(), before, block);
  return std::nullopt;
}

// Reserves memory for all rows of a block, by the size of the first rows.
void reserve_rows(std::vector<TextColumn>& columns, std::size_t rows, std::size_t first_bytes, std::size_t bytes) {
  constexpr double kMostTimes = 512;
  const double times = std::min(1.0625 * static_cast<double>(bytes) / static_cast<double>(first_bytes), kMostTimes);
  const auto reserve = [times](auto& values) {
    values.reserve(static_cast<std::size_t>(static_cast<double>(values.size()) * times));
  };
  if (rows < kChunkRows) return;
  for (TextColumn& column : columns) {
    reserve(column.words);
    reserve(column.characters);
    reserve(column.text_ends);
  }
}

// True for one to 18 digits.
bool is_short_integer(std::string_view field) noexcept {
  return !field.empty() && field.size() <= 18 && std::all_of(field.begin(), field.end(), text::is_digit);
}

// Types that hold every value of a column so far.
struct Candidates {
  bool has_value = false;
  bool is_int = true;
  bool is_uint = true;
  bool is_bool = true;
  bool is_double = true;

  void see(std::string_view field) noexcept {
    has_value = true;
    if (!is_int && !is_uint && !is_bool && !is_double) return;  // text
    std::uint64_t word = 0;
    if (is_int && is_short_integer(field)) {
      is_bool = is_bool && (field == "0" || field == "1");
      return;
    }
    if (is_int && parse_int64(field, word)) {
      const bool is_marked = is_hex(trim(field));
      is_uint = is_uint && (is_marked || trim(field).front() != '-');
      is_bool = is_bool && (field == "0" || field == "1");
      is_double = is_double && !is_marked;
      return;
    }
    double real = 0;
    bool truth = false;
    is_int = false;
    is_uint = is_uint && parse_uint64(field, word);
    is_bool = is_bool && parse_bool(field, truth);
    is_double = is_double && parse_double(field, real);
  }

  [[nodiscard]] TextType type() const noexcept {
    if (!has_value) return TextType::kNull;
    if (is_int) return TextType::kInt64;
    if (is_bool) return TextType::kBool;
    if (is_uint && is_double) return TextType::kUint64;  // decimal digits above the signed integers
    return is_double ? TextType::kDouble : TextType::kText;
  }
};

}  // namespace

TextTable parse_csv(std::string_view block, const CsvShape& shape, const std::vector<TextField>& fields) {
  TextTable table;
  table.columns.reserve(fields.size());
  for (const TextField& field : fields) {
    if (field.index >= shape.width || field.is_list) {
      throw ConfigError("column '" + field.name + "' is field " + std::to_string(field.index) + ", expected one of " +
                        std::to_string(shape.width) + " single fields");
    }
    table.columns.push_back(text::make_column(field));
  }
  ChunkReader reader(block, shape.width);
  table.problem =
      for_each_chunk(block, shape,
                     [&](const Span* spans, const std::uint32_t* row_begins, std::size_t rows,
                         std::uint64_t before) -> std::optional<TextProblem> {
                       for (std::size_t place = 0; place < fields.size(); ++place) {
                         const auto bad = reader.read(spans, rows, fields[place], table.columns[place]);
                         if (!bad) continue;
                         const Span& span = spans[*bad * shape.width + fields[place].index];
                         return TextProblem{before + *bad, span.begin, fields[place].name,
                                            text::shorten(reader.text_of(span)), expected(fields[place].type)};
                       }
                       if (before == 0) {
                         reserve_rows(table.columns, rows, std::size_t{row_begins[rows - 1]} + 1, block.size());
                       }
                       table.rows = before + rows;
                       return std::nullopt;
                     });
  return table;
}

InferredText infer_csv(std::string_view block, const CsvShape& shape) {
  std::vector<Candidates> columns(shape.width);
  ChunkReader reader(block, shape.width);
  InferredText inferred;
  inferred.problem = for_each_chunk(
      block, shape,
      [&](const Span* spans, const std::uint32_t*, std::size_t rows, std::uint64_t) -> std::optional<TextProblem> {
        for (std::size_t row = 0; row < rows; ++row) {
          for (std::size_t column = 0; column < shape.width; ++column) {
            const Span& span = spans[row * shape.width + column];
            if (span.quoting == kPlain && is_null(reader.raw(span))) continue;
            columns[column].see(reader.text_of(span));
          }
        }
        return std::nullopt;
      });
  for (std::uint32_t index = 0; index < shape.width; ++index) {
    inferred.fields.push_back({"", columns[index].type(), false, index});
  }
  return inferred;
}

namespace {

// 64 characters of a block from `base` on; dots behind its end.
class Stride {
 public:
  Stride(std::string_view block, std::size_t base) : at_(block.data() + base) {
    if (base + text::kStride <= block.size()) return;
    std::fill(std::begin(last_), std::end(last_), '.');
    std::copy(block.begin() + static_cast<std::ptrdiff_t>(base), block.end(), last_);
    at_ = last_;
  }
  Stride(const Stride&) = delete;
  Stride& operator=(const Stride&) = delete;

  [[nodiscard]] const char* at() const noexcept { return at_; }

 private:
  const char* at_;
  char last_[text::kStride];
};

// The cut of a block whose quotes all open or close a field, or stand doubled inside of one; nothing for other blocks.
std::optional<std::size_t> cut_regular(std::string_view block, char delimiter) {
  const text::CharacterSet quotes(kQuote, kQuote, kQuote, kQuote);
  const text::CharacterSet openers(delimiter, '\n', '\r', kQuote);  // characters that may stand before an opening quote
  std::uint64_t inside = 0;                                         // all ones behind an open quote
  std::size_t base = 0;
  for (; base < block.size(); base += text::kStride) {
    const Stride stride(block, base);
    const std::uint64_t marks = quotes.find(stride.at());
    if (marks == 0) continue;
    const std::uint64_t between = text::mark_between(marks) ^ inside;
    if (const std::uint64_t opening = marks & between; opening != 0) {
      const char before = base == 0 ? '\n' : block[base - 1];
      const bool is_opener = before == delimiter || before == '\n' || before == '\r' || before == kQuote;
      if ((opening & ~(openers.find(stride.at()) << 1 | (is_opener ? 1 : 0))) != 0) return std::nullopt;
    }
    inside = std::uint64_t{0} - (between >> 63);
  }
  // The last line end outside of quotes.
  const text::CharacterSet ends('\n', '\n', '\n', '\n');
  while (base != 0) {
    base -= text::kStride;
    const Stride stride(block, base);
    const std::uint64_t between_alone = text::mark_between(quotes.find(stride.at()));
    inside ^= std::uint64_t{0} - (between_alone >> 63);  // before the stride
    const std::uint64_t rows = ends.find(stride.at()) & ~(between_alone ^ inside);
    if (rows != 0) return base + static_cast<std::size_t>(std::bit_width(rows));
  }
  return 0;
}

}  // namespace

std::size_t cut_csv(std::string_view block, char delimiter) {
  if (block.find(kQuote) == std::string_view::npos) return block.rfind('\n') + 1;
  if (const auto cut = cut_regular(block, delimiter)) return *cut;
  text::CharacterWalk walk({delimiter, '\n', '\r', kQuote}, block.data(), block.size());
  std::size_t begin = 0;  // of the field
  std::size_t cut = 0;
  bool is_inside = false;
  for (std::size_t at = walk.next(); at != block.size(); at = walk.next()) {
    if (is_inside) {
      if (block[at] != kQuote) continue;
      is_inside = at + 1 < block.size() && block[at + 1] == kQuote;
      if (is_inside) static_cast<void>(walk.next());
    } else if (block[at] == kQuote) {
      is_inside = at == begin;
    } else {
      begin = at + 1;
      if (block[at] == '\n') cut = begin;
    }
  }
  return cut;
}

}  // namespace engine::data
