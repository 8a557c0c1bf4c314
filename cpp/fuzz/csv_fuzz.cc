// csv_fuzz.cc: blocks of CSV: types, values, and where rows end.
#include "text_target.h"

namespace {

using engine::data::CsvShape;
using engine::data::TextField;
using engine::data::TextType;

// Input: width, delimiter, then the block.
void run(fuzz::Bytes bytes) {
  fuzz::Input input(bytes);
  const std::uint32_t width = input.byte() % 8 + 1;
  const CsvShape shape{",;\t|"[input.byte() % 4], width};
  const fuzz::Bytes rest = input.rest();
  const std::string_view block = fuzz::text_of(rest);
  const std::size_t cut = engine::data::cut_csv(block, shape.delimiter);
  fuzz::expect(cut <= block.size() && (cut == 0 || block[cut - 1] == '\n'), "a cut is not behind a line end");

  auto inferred = engine::data::infer_csv(block, shape);
  fuzz::expect(inferred.fields.size() == width, "types are missing");
  if (inferred.problem) fuzz::check_problem(*inferred.problem, block);
  const auto table = engine::data::parse_csv(block, shape, inferred.fields);
  fuzz::check_table(table, block);
  fuzz::expect(table.problem.has_value() == inferred.problem.has_value(), "a value does not fit its inferred type");

  // The rows before a cut and those behind it are the rows of the block.
  std::vector<TextField> texts = inferred.fields;
  for (TextField& field : texts) field.type = TextType::kText;
  const auto whole = engine::data::parse_csv(block, shape, texts);
  fuzz::check_table(whole, block);
  if (whole.problem) return;
  const auto head = engine::data::parse_csv(block.substr(0, cut), shape, texts);
  const auto tail = engine::data::parse_csv(block.substr(cut), shape, texts);
  fuzz::expect(!head.problem && !tail.problem, "a cut makes an error");
  fuzz::expect(head.rows + tail.rows == whole.rows, "a cut changes the number of rows");
  for (std::uint32_t column = 0; column < width; ++column) {
    auto joined = head.columns[column].characters;
    const auto& more = tail.columns[column].characters;
    joined.insert(joined.end(), more.begin(), more.end());
    fuzz::expect(joined == whole.columns[column].characters, "a cut changes a value");
  }
}

const fuzz::Target target("csv", run, fuzz::Layout::kBytes, 2);

}  // namespace
