// json_lines_fuzz.cc: blocks of JSON lines: types and values, of declared types too.
#include "text_target.h"

namespace {

using engine::data::TextField;
using engine::data::TextType;

// Input: an option for the declared types, then the block.
void run(fuzz::Bytes bytes) {
  fuzz::Input input(bytes);
  const std::uint8_t option = input.byte();
  const fuzz::Bytes rest = input.rest();
  const std::string_view block = fuzz::text_of(rest);
  auto inferred = engine::data::infer_json_lines(block);
  if (inferred.problem) fuzz::check_problem(*inferred.problem, block);
  // A member that comes twice in a line, and a number that no double holds, are errors of values only.
  const auto table = engine::data::parse_json_lines(block, inferred.fields);
  fuzz::check_table(table, block);
  if (inferred.problem) fuzz::expect(table.problem.has_value(), "the types have an error and the values have none");

  std::vector<TextField> declared = inferred.fields;
  for (TextField& field : declared) {
    field.type = static_cast<TextType>(option % 6);
    field.is_list = (option & 0x80) != 0;
  }
  fuzz::check_table(engine::data::parse_json_lines(block, declared), block);
  const auto none = engine::data::parse_json_lines(block, {});
  fuzz::expect(!none.problem || inferred.problem, "unread members make an error");
}

const fuzz::Target target("json_lines", run, fuzz::Layout::kBytes, 1);

}  // namespace
