// line_id_fuzz.cc: reads and edits of serialized LineIds. An edit changes its own field and nothing else.
#include <algorithm>
#include <bit>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/line_id.h"
#include "target.h"

namespace {

using namespace engine::data;

// The published fields and some that users could add.
const std::vector<LineField>& fields() {
  static const std::vector<LineField> all = [] {
    std::vector<LineField> made = standard_line_fields();
    made.push_back({"floats", 1001, FieldKind::kFloat, true, 0});
    made.push_back({"doubles", 7, FieldKind::kDouble, true, 0});
    made.push_back({"double", 15, FieldKind::kDouble, false, 2.5});
    made.push_back({"words", 16, FieldKind::kFixed64, true, 0});
    made.push_back({"half_words", 536870911, FieldKind::kFixed32, true, 0});
    made.push_back({"half_word", 2047, FieldKind::kFixed32, false, 0});
    made.push_back({"texts", 1000, FieldKind::kText, true, 0});
    return made;
  }();
  return all;
}

// Reading refuses with wire::Malformed, whose place is in the line.
template <typename Read>
bool reads(Bytes line, Read&& read) {
  try {
    read();
    return true;
  } catch (const engine::wire::Malformed& fault) {
    fuzz::expect(!fault.reason.empty(), "a fault has no text");
    fuzz::expect(fault.at == nullptr || (fault.at >= line.data() && fault.at <= line.data() + line.size()),
                 "a fault lies outside the line");
    return false;
  }
}

bool is_equal(Bytes a, Bytes b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }
bool is_real(const LineField& field) { return field.kind == FieldKind::kFloat || field.kind == FieldKind::kDouble; }

struct Values {
  std::vector<std::int64_t> ints;
  std::vector<double> reals;
  std::vector<std::string_view> texts;

  [[nodiscard]] std::size_t size() const noexcept { return ints.size() + reals.size() + texts.size(); }
};

// All values of a field; the singular readers give the last one.
bool read_values(Bytes line, const LineField& field, Values& values) {
  return reads(line, [&] {
    const bool has = line_has(line, field.number);
    bool is_there = false;
    if (field.kind == FieldKind::kText) {
      std::string_view last;
      line_texts(line, field, values.texts);
      is_there = line_text(line, field, last);
      fuzz::expect(values.texts.empty() || last == values.texts.back(), "the last text does not count");
    } else if (is_real(field)) {
      double last = 0;
      line_reals(line, field, values.reals);
      is_there = line_real(line, field, last);
      fuzz::expect(values.reals.empty() ||
                       std::bit_cast<std::uint64_t>(last) == std::bit_cast<std::uint64_t>(values.reals.back()),
                   "the last number does not count");
    } else {
      std::int64_t last = 0;
      line_ints(line, field, values.ints);
      is_there = line_int(line, field, last);
      fuzz::expect(values.ints.empty() || last == values.ints.back(), "the last number does not count");
    }
    fuzz::expect(is_there == (values.size() > 0), "a field with values is not there");
    fuzz::expect(!has || is_there, "a field that is there has no values");
  });
}

void expect_edited(Bytes line, Bytes edited, const LineField& field, Arena& arena) {
  fuzz::expect(is_equal(line_clear(line, field.number, arena), line_clear(edited, field.number, arena)),
               "an edit changed other fields");
}

std::int64_t as_stored(const LineField& field, std::int64_t value) {
  return field.kind == FieldKind::kFixed32 ? static_cast<std::int64_t>(static_cast<std::uint32_t>(value)) : value;
}

void edit(Bytes line, const LineField& field, std::uint64_t word, Arena& arena) {
  const std::string text = std::to_string(word);
  const std::string_view some = std::string_view(text).substr(0, word % (text.size() + 1));
  Values after;
  if (field.kind == FieldKind::kText) {
    const Bytes edited = line_set_text(line, field, some, arena);
    fuzz::expect(read_values(edited, field, after) && after.texts.size() == 1 && after.texts[0] == some,
                 "another text comes back");
    return expect_edited(line, edited, field, arena);
  }
  if (is_real(field)) {
    const auto value = field.kind == FieldKind::kFloat
                           ? static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(word)))
                           : std::bit_cast<double>(word);
    const Bytes edited = line_set_real(line, field, value, arena);
    fuzz::expect(read_values(edited, field, after) && after.reals.size() == 1 &&
                     (after.reals[0] == value || (after.reals[0] != after.reals[0] && value != value)),
                 "another number comes back");
    return expect_edited(line, edited, field, arena);
  }
  const auto value = static_cast<std::int64_t>(word);
  const Bytes edited = line_set_int(line, field, value, arena);
  fuzz::expect(read_values(edited, field, after) && after.ints.size() == 1 && after.ints[0] == as_stored(field, value),
               "another number comes back");
  expect_edited(line, edited, field, arena);

  const Bytes longer = line_add_int(line, field, value, arena);
  expect_edited(line, longer, field, arena);
  Values before;
  if (!read_values(line, field, before)) return;
  before.ints.push_back(as_stored(field, value));
  Values all;
  fuzz::expect(read_values(longer, field, all) && all.ints == before.ints, "a value was not appended");
}

// Input: field, a value of 8 bytes, line.
void run(fuzz::Bytes bytes) {
  fuzz::Input input(bytes);
  const LineField& chosen = fields()[input.byte() % fields().size()];
  const std::uint64_t word = input.word();
  const Bytes line = input.rest();
  for (const LineField& field : fields()) {
    Values values;
    (void)read_values(line, field, values);
    fuzz::expect(values.size() <= line.size(), "there are more values than bytes");
  }
  Arena arena;
  if (!reads(line, [&] { (void)line_clear(line, chosen.number, arena); })) {
    fuzz::expect(!reads(line, [&] { (void)line_set_int(line, chosen, 1, arena); }), "a broken line was edited");
    return;
  }
  edit(line, chosen, word, arena);
}

const fuzz::Target target("line_id", run, fuzz::Layout::kMessage, 9);

}  // namespace
