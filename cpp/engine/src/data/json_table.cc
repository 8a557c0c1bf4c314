// json_table.cc: one walk over the text. Objects of a file name their members in the same order: the member that stood
// at a place in the row before is tried first.
#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/data/text_table.h"
#include "engine/error.h"
#include "text_columns.h"
#include "text_numbers.h"
#include "text_scan.h"

namespace engine::data {

namespace {

using text::Decimal;

constexpr std::size_t kMostDepth = 256;
constexpr std::size_t kMostMembers = 1 << 16;

// Ends the reading of a block.
struct Failure {
  const char* at;
  std::string column;
  std::string value;
  std::string reason;
};

bool is_space(char c) noexcept { return c == ' ' || c == '\t' || c == '\r'; }

void append_utf8(std::string& out, std::uint32_t code) {
  if (code < 0x80) {
    out.push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    out.push_back(static_cast<char>(0xc0 | code >> 6));
    out.push_back(static_cast<char>(0x80 | (code & 0x3f)));
  } else if (code < 0x10000) {
    out.push_back(static_cast<char>(0xe0 | code >> 12));
    out.push_back(static_cast<char>(0x80 | (code >> 6 & 0x3f)));
    out.push_back(static_cast<char>(0x80 | (code & 0x3f)));
  } else {
    out.push_back(static_cast<char>(0xf0 | code >> 18));
    out.push_back(static_cast<char>(0x80 | (code >> 12 & 0x3f)));
    out.push_back(static_cast<char>(0x80 | (code >> 6 & 0x3f)));
    out.push_back(static_cast<char>(0x80 | (code & 0x3f)));
  }
}

// A place in the text, and the grammar of JSON from there on. Exclusive.
class JsonCursor {
 public:
  JsonCursor(std::string_view block) : at_(block.data()), end_(block.data() + block.size()) {}

  [[nodiscard]] const char* at() const noexcept { return at_; }
  [[nodiscard]] bool done() const noexcept { return at_ == end_; }
  [[nodiscard]] char peek() const noexcept { return at_ == end_ ? '\n' : *at_; }
  void step() noexcept { ++at_; }

  void skip_spaces() noexcept {
    while (at_ != end_ && is_space(*at_)) ++at_;
  }

  // Skips spaces and empty lines; false at the end.
  bool find_row() noexcept {
    while (at_ != end_ && (is_space(*at_) || *at_ == '\n')) ++at_;
    return at_ != end_;
  }

  [[noreturn]] void fail(std::string reason) const { throw Failure{at_, "", rest(), std::move(reason)}; }

  // The text at the cursor, up to the end of its line.
  [[nodiscard]] std::string rest() const {
    const std::string_view left(at_, std::min<std::size_t>(static_cast<std::size_t>(end_ - at_), text::kMostShown));
    return std::string(left.substr(0, left.find('\n')));
  }

  // The value at the cursor; the rest of the line where it is malformed.
  [[nodiscard]] std::string value_text(std::string& scratch) const {
    JsonCursor behind = *this;
    try {
      behind.skip_value(scratch);
    } catch (const Failure&) {
      return rest();
    }
    return text::shorten({at_, static_cast<std::size_t>(behind.at_ - at_)});
  }

  void expect(char wanted, const char* reason) {
    skip_spaces();
    if (peek() != wanted) fail(reason);
    ++at_;
  }

  // True if the text at the cursor is `key` and its closing quote.
  bool skip_key(std::string_view key) noexcept {
    if (static_cast<std::size_t>(end_ - at_) <= key.size() || at_[key.size()] != '"' ||
        std::memcmp(at_, key.data(), key.size()) != 0) {
      return false;
    }
    at_ += key.size() + 1;
    return true;
  }

  // The string behind the opening quote; a view of the block or of `scratch`.
  std::string_view string(std::string& scratch) {
    const char* const begin = at_;
    at_ = text::find_string_end(at_, end_);
    if (at_ != end_ && *at_ == '"') [[likely]] {
      return {begin, static_cast<std::size_t>(at_++ - begin)};
    }
    scratch.assign(begin, at_);
    while (true) {
      if (at_ == end_ || *at_ == '\n') fail("string is not closed, expected a quote");
      if (*at_ == '"') {
        ++at_;
        return scratch;
      }
      if (*at_ != '\\') fail("string has a control character, expected its escape");
      ++at_;
      escape(scratch);
      const char* const from = at_;
      at_ = text::find_string_end(at_, end_);
      scratch.append(from, at_);
    }
  }

  // A number as JSON writes it, and NaN and Infinity as Python does; false for anything else.
  bool number(Decimal& decimal, std::string_view& digits) {
    if (!text::scan_decimal<true>(at_, end_, decimal)) return false;
    digits = {at_, static_cast<std::size_t>(decimal.end - at_)};
    at_ = decimal.end;
    return true;
  }

  bool skip_word(std::string_view word) noexcept {
    if (static_cast<std::size_t>(end_ - at_) < word.size() || std::memcmp(at_, word.data(), word.size()) != 0)
      return false;
    at_ += word.size();
    return true;
  }

  bool special_number(double& value) noexcept {
    if (skip_word("NaN")) {
      value = std::numeric_limits<double>::quiet_NaN();
    } else if (skip_word("Infinity")) {
      value = std::numeric_limits<double>::infinity();
    } else if (skip_word("-Infinity")) {
      value = -std::numeric_limits<double>::infinity();
    } else {
      return false;
    }
    return true;
  }

  // Skips a value of any kind.
  void skip_value(std::string& scratch) {
    std::string open;  // brackets that are not closed yet
    while (true) {
      skip_spaces();
      const char c = peek();
      if (c == '{' || c == '[') {
        if (open.size() == kMostDepth) fail("value is nested deeper than 256, expected less");
        ++at_;
        skip_spaces();
        if (peek() == (c == '{' ? '}' : ']')) {
          ++at_;
        } else {
          open.push_back(c);
          if (c == '{') skip_member_name(scratch);
          continue;
        }
      } else {
        skip_scalar(scratch);
      }
      // Behind a value: closing brackets, then a comma or the end.
      while (true) {
        if (open.empty()) return;
        skip_spaces();
        const char close = open.back() == '{' ? '}' : ']';
        if (peek() == ',') {
          ++at_;
          if (open.back() == '{') skip_member_name(scratch);
          break;
        }
        if (peek() != close) fail(std::string("value is not closed, expected ',' or '") + close + "'");
        ++at_;
        open.pop_back();
      }
    }
  }

 private:
  void skip_member_name(std::string& scratch) {
    expect('"', "name of a member is missing, expected a string");
    static_cast<void>(string(scratch));
    expect(':', "name of a member has no value, expected ':'");
  }

  void skip_scalar(std::string& scratch) {
    Decimal decimal;
    std::string_view digits;
    double special;
    if (peek() == '"') {
      ++at_;
      static_cast<void>(string(scratch));
    } else if (!skip_word("true") && !skip_word("false") && !skip_word("null") && !special_number(special) &&
               !number(decimal, digits)) {
      fail("value is not JSON, expected a string, a number, true, false, null, an object or a list");
    }
  }

  std::uint32_t four_digits() {
    std::uint32_t code = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = peek();
      const char lower = static_cast<char>(c | 0x20);
      if (text::is_digit(c)) {
        code = code << 4 | static_cast<std::uint32_t>(c - '0');
      } else if (lower >= 'a' && lower <= 'f') {
        code = code << 4 | static_cast<std::uint32_t>(lower - 'a' + 10);
      } else {
        fail("escape is not valid, expected four hexadecimal digits");
      }
    }
    return code;
  }

  void escape(std::string& out) {
    const char c = peek();
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
    if (const std::size_t place = kNames.find(c); place != std::string_view::npos) {
      out.push_back(kValues[place]);
      ++at_;
      return;
    }
    if (c != 'u') fail("escape is not valid, expected one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\u");
    ++at_;
    std::uint32_t code = four_digits();
    if (code >= 0xdc00 && code <= 0xdfff) fail("escape is half of a pair, expected the first half before it");
    if (code >= 0xd800 && code <= 0xdbff) {
      if (!skip_word("\\u")) fail("escape is half of a pair, expected the second half behind it");
      const std::uint32_t low = four_digits();
      if (low < 0xdc00 || low > 0xdfff) fail("escape is half of a pair, expected the second half behind it");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    append_utf8(out, code);
  }

  const char* at_;
  const char* end_;
};

// Places of names, with a guess of the order in which they come. Exclusive.
class MemberNames {
 public:
  static constexpr std::uint32_t kUnknown = 0xffffffff;

  void add(const std::string& name, std::uint32_t place) { places_.emplace(name, place); }

  // Reads a name behind its opening quote; returns its place. `place_new` gives the place of an unknown name.
  template <typename PlaceNew>
  std::uint32_t read(JsonCursor& cursor, std::size_t number, std::string& scratch, PlaceNew&& place_new) {
    if (number < guesses_.size() && guesses_[number].is_set && cursor.skip_key(guesses_[number].name)) {
      return guesses_[number].place;
    }
    name_.assign(cursor.string(scratch));
    const auto known = places_.find(name_);
    const std::uint32_t place = known == places_.end() ? place_new(name_) : known->second;
    if (number >= guesses_.size() && number < kMostMembers) guesses_.resize(number + 1);
    // A name with an escape is spelled in another way than it reads.
    if (number < guesses_.size() &&
        text::find_string_end(name_.data(), name_.data() + name_.size()) == name_.data() + name_.size()) {
      guesses_[number] = {name_, place, true};
    }
    return place;
  }

 private:
  struct Guess {
    std::string name;
    std::uint32_t place = kUnknown;
    bool is_set = false;
  };
  std::unordered_map<std::string, std::uint32_t> places_;
  std::vector<Guess> guesses_;
  std::string name_;
};

// Calls `use(number of the member)` at each member name of an object, behind the quote; `use` reads name and value.
template <typename Use>
void for_each_member(JsonCursor& cursor, Use&& use) {
  cursor.expect('{', "line is not a JSON object, expected '{'");
  cursor.skip_spaces();
  if (cursor.peek() == '}') {
    cursor.step();
  } else {
    for (std::size_t number = 0;; ++number) {
      cursor.expect('"', "name of a member is missing, expected a string");
      use(number);
      cursor.skip_spaces();
      if (cursor.peek() == ',') {
        cursor.step();
        continue;
      }
      if (cursor.peek() != '}') cursor.fail("object is not closed, expected ',' or '}' on the same line");
      cursor.step();
      break;
    }
  }
  cursor.skip_spaces();
  if (cursor.peek() != '\n') cursor.fail("line has text behind its object, expected one object per line");
}

void check_block(std::string_view block) {
  if (block.size() > kMostTextBytes) {
    throw ConfigError("block has " + std::to_string(block.size()) + " bytes, expected at most " +
                      std::to_string(kMostTextBytes) + "; make lines shorter");
  }
}

TextProblem problem_of(const Failure& failure, std::uint64_t row, std::string_view block) {
  return {row, static_cast<std::uint64_t>(failure.at - block.data()), failure.column, failure.value, failure.reason};
}

// --- values of declared fields ---

class TableReader {
 public:
  TableReader(std::string_view block, const std::vector<TextField>& fields, TextTable& table)
      : cursor_(block), fields_(fields), table_(table), seen_(fields.size(), 0) {
    for (std::uint32_t place = 0; place < fields.size(); ++place) {
      names_.add(fields[place].name, place);
      table.columns.push_back(text::make_column(fields[place]));
    }
  }

  void read() {
    while (cursor_.find_row()) {
      const std::uint64_t row = table_.rows + 1;
      std::size_t present = 0;
      for_each_member(cursor_, [&](std::size_t number) {
        const std::uint32_t place =
            names_.read(cursor_, number, scratch_, [](const std::string&) { return MemberNames::kUnknown; });
        cursor_.expect(':', "name of a member has no value, expected ':'");
        cursor_.skip_spaces();
        if (place == MemberNames::kUnknown) return cursor_.skip_value(scratch_);
        if (seen_[place] == row) {
          throw Failure{cursor_.at(), fields_[place].name, cursor_.rest(), "member comes twice, expected it once"};
        }
        seen_[place] = row;
        ++present;
        read_member(fields_[place], table_.columns[place]);
      });
      if (present < fields_.size()) add_missing(row);
      table_.rows = row;
    }
  }

 private:
  void add_missing(std::uint64_t row) {
    for (std::size_t place = 0; place < fields_.size(); ++place) {
      if (seen_[place] == row) continue;
      if (fields_[place].is_list) {
        text::end_list(table_.columns[place], false);
      } else {
        text::add_null(table_.columns[place]);
      }
    }
  }

  void read_member(const TextField& field, TextColumn& column) {
    if (!field.is_list) return read_value(field, column);
    if (cursor_.skip_word("null")) return text::end_list(column, false);
    if (cursor_.peek() != '[') refuse(field, "expected a list");
    cursor_.step();
    cursor_.skip_spaces();
    if (cursor_.peek() == ']') {
      cursor_.step();
    } else {
      while (true) {
        cursor_.skip_spaces();
        read_value(field, column);
        cursor_.skip_spaces();
        if (cursor_.peek() == ',') {
          cursor_.step();
          continue;
        }
        if (cursor_.peek() != ']') refuse(field, "list is not closed, expected ',' or ']'");
        cursor_.step();
        break;
      }
    }
    text::end_list(column, true);
  }

  void read_value(const TextField& field, TextColumn& column) {
    switch (field.type) {
      case TextType::kText:
        if (cursor_.peek() == '"') [[likely]] {
          cursor_.step();
          return text::add_text(column, cursor_.string(scratch_));
        }
        break;
      case TextType::kBool:
        if (cursor_.skip_word("true")) return text::add_bool(column, true);
        if (cursor_.skip_word("false")) return text::add_bool(column, false);
        break;
      case TextType::kInt64:
      case TextType::kUint64:
      case TextType::kDouble:
        if (read_number(field, column)) return;
        break;
      default:
        break;
    }
    if (cursor_.skip_word("null")) return text::add_null(column);
    refuse(field, expected(field.type));
  }

  // False where there is no number.
  bool read_number(const TextField& field, TextColumn& column) {
    Decimal decimal;
    std::string_view digits;
    const JsonCursor before = cursor_;
    if (!cursor_.number(decimal, digits)) {
      double special;
      if (field.type != TextType::kDouble || !cursor_.special_number(special)) return false;
      text::add_double(column, special);
      return true;
    }
    if (field.type == TextType::kDouble) {
      const double value = text::to_double(decimal, digits);
      if (value > std::numeric_limits<double>::max() || value < std::numeric_limits<double>::lowest()) {
        cursor_ = before;
        refuse(field, "expected a number that a double can hold");
      }
      text::add_double(column, value);
      return true;
    }
    std::uint64_t word = decimal.mantissa;
    bool is_fitting = decimal.is_integer && (decimal.digits <= 19 || text::parse_digits(digits, word));
    constexpr std::uint64_t kLowest = std::uint64_t{1} << 63;
    if (field.type == TextType::kInt64) {
      is_fitting = is_fitting && (word < kLowest || (word == kLowest && decimal.is_negative));
      if (decimal.is_negative) word = ~word + 1;
    } else {
      is_fitting = is_fitting && !decimal.is_negative;
    }
    if (!is_fitting) {
      cursor_ = before;
      refuse(field, expected(field.type));
    }
    text::add_word(column, word);
    return true;
  }

  static const char* expected(TextType type) noexcept {
    switch (type) {
      case TextType::kNull:
        return "expected null, as in the first rows";
      case TextType::kBool:
        return "expected true or false";
      case TextType::kInt64:
        return "expected an integer of 64 bits";
      case TextType::kUint64:
        return "expected an integer of 64 bits without a sign";
      case TextType::kDouble:
        return "expected a number";
      default:
        return "expected a string";
    }
  }

  [[noreturn]] void refuse(const TextField& field, const char* reason) {
    throw Failure{cursor_.at(), field.name, cursor_.value_text(scratch_), reason};
  }

  JsonCursor cursor_;
  const std::vector<TextField>& fields_;
  TextTable& table_;
  MemberNames names_;
  std::vector<std::uint64_t> seen_;  // number of the last row with the field, from 1
  std::string scratch_;
};

// --- types ---

// Kinds of values that a member has had.
struct SeenKinds {
  bool has_bool = false;
  bool has_integer = false;
  bool has_negative = false;
  bool has_wide = false;  // above the signed integers
  bool has_real = false;
  bool has_text = false;
  bool has_nested = false;

  [[nodiscard]] bool has_number() const noexcept { return has_integer || has_real; }
  [[nodiscard]] int kinds() const noexcept {
    return (has_bool ? 1 : 0) + (has_number() ? 1 : 0) + (has_text ? 1 : 0) + (has_nested ? 1 : 0);
  }
  [[nodiscard]] TextType type() const noexcept {
    if (has_nested) return TextType::kNested;
    if (has_text) return TextType::kText;
    if (has_bool) return TextType::kBool;
    if (has_real || (has_wide && has_negative)) return TextType::kDouble;
    if (has_wide) return TextType::kUint64;
    return has_integer ? TextType::kInt64 : TextType::kNull;
  }
};

struct SeenMember {
  std::string name;
  SeenKinds kinds;
  bool has_list = false;
  bool has_single = false;
};

class TypeReader {
 public:
  explicit TypeReader(std::string_view block) : cursor_(block) {}

  void read() {
    while (cursor_.find_row()) {
      for_each_member(cursor_, [&](std::size_t number) {
        const std::uint32_t place =
            names_.read(cursor_, number, scratch_, [this](const std::string& name) { return add(name); });
        cursor_.expect(':', "name of a member has no value, expected ':'");
        cursor_.skip_spaces();
        see_member(members_[place]);
      });
      ++rows;
    }
  }

  [[nodiscard]] std::vector<TextField> fields() const {
    std::vector<TextField> fields;
    for (const SeenMember& member : members_) {
      fields.push_back({member.name, member.kinds.type(), member.has_list, 0});
    }
    return fields;
  }

  std::uint64_t rows = 0;

 private:
  std::uint32_t add(const std::string& name) {
    if (members_.size() >= kMostMembers) cursor_.fail("objects have more than 2^16 members, expected fewer");
    const auto place = static_cast<std::uint32_t>(members_.size());
    members_.push_back({name, {}, false, false});
    names_.add(name, place);
    return place;
  }

  void see_member(SeenMember& member) {
    const JsonCursor before = cursor_;
    if (cursor_.skip_word("null")) return;
    if (cursor_.peek() == '[') {
      member.has_list = true;
      see_list(member.kinds);
    } else {
      member.has_single = true;
      see_value(member.kinds);
    }
    if (member.kinds.kinds() > 1 || (member.has_list && member.has_single)) {
      throw Failure{before.at(), member.name, before.value_text(scratch_), "expected the type of the values before it"};
    }
  }

  void see_list(SeenKinds& kinds) {
    cursor_.step();
    cursor_.skip_spaces();
    if (cursor_.peek() == ']') return cursor_.step();
    while (true) {
      cursor_.skip_spaces();
      see_value(kinds);
      cursor_.skip_spaces();
      if (cursor_.peek() == ',') {
        cursor_.step();
        continue;
      }
      if (cursor_.peek() != ']') cursor_.fail("list is not closed, expected ',' or ']'");
      return cursor_.step();
    }
  }

  void see_value(SeenKinds& kinds) {
    Decimal decimal;
    std::string_view digits;
    double special;
    const char c = cursor_.peek();
    if (c == '"') {
      cursor_.step();
      static_cast<void>(cursor_.string(scratch_));
      kinds.has_text = true;
    } else if (c == '{' || c == '[') {
      cursor_.skip_value(scratch_);
      kinds.has_nested = true;
    } else if (cursor_.skip_word("true") || cursor_.skip_word("false")) {
      kinds.has_bool = true;
    } else if (cursor_.special_number(special)) {
      kinds.has_real = true;
    } else if (cursor_.number(decimal, digits)) {
      see_number(decimal, digits, kinds);
    } else if (!cursor_.skip_word("null")) {
      cursor_.skip_value(scratch_);  // names the error
    }
  }

  static void see_number(const Decimal& decimal, std::string_view digits, SeenKinds& kinds) {
    constexpr std::uint64_t kLowest = std::uint64_t{1} << 63;
    std::uint64_t word = decimal.mantissa;
    const bool fits = decimal.is_integer && (decimal.digits <= 19 || text::parse_digits(digits, word)) &&
                      (!decimal.is_negative || word <= kLowest);
    if (!fits) {
      kinds.has_real = true;
      return;
    }
    kinds.has_integer = true;
    kinds.has_negative = kinds.has_negative || decimal.is_negative;
    kinds.has_wide = kinds.has_wide || (!decimal.is_negative && word >= kLowest);
  }

  JsonCursor cursor_;
  MemberNames names_;
  std::vector<SeenMember> members_;
  std::string scratch_;
};

}  // namespace

TextTable parse_json_lines(std::string_view block, const std::vector<TextField>& fields) {
  check_block(block);
  TextTable table;
  TableReader reader(block, fields, table);
  try {
    reader.read();
  } catch (const Failure& failure) {
    table.problem = problem_of(failure, table.rows, block);
  }
  return table;
}

InferredText infer_json_lines(std::string_view block) {
  check_block(block);
  InferredText inferred;
  TypeReader reader(block);
  try {
    reader.read();
  } catch (const Failure& failure) {
    inferred.problem = problem_of(failure, reader.rows, block);
  }
  inferred.fields = reader.fields();
  return inferred;
}

}  // namespace engine::data
