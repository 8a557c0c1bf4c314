// bind_text.cc: CSV and JSON lines -> columns in memory, which `Column` takes as buffers.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string_view>
#include <tuple>

#include "arrays.h"
#include "engine/data/text_table.h"
#include "engine/error.h"
#include "module.h"

namespace bindings {

using namespace nb::literals;
using engine::data::CsvShape;
using engine::data::InferredText;
using engine::data::TextColumn;
using engine::data::TextField;
using engine::data::TextProblem;
using engine::data::TextTable;
using engine::data::TextType;

namespace {

using FieldTuple = std::tuple<std::string, std::string, bool, std::uint32_t>;

std::vector<TextField> as_fields(const std::vector<FieldTuple>& tuples) {
  std::vector<TextField> fields;
  fields.reserve(tuples.size());
  for (const auto& [name, type, is_list, index] : tuples) {
    const auto known = engine::data::text_type(type);
    if (!known) throw engine::ConfigError("column '" + name + "' has type '" + type + "', expected a type of text");
    fields.push_back({name, *known, is_list, index});
  }
  return fields;
}

std::string_view as_text(const Buffer& buffer) {
  return {reinterpret_cast<const char*>(buffer.bytes().data()), buffer.bytes().size()};
}

CsvShape as_shape(const std::string& delimiter, std::uint32_t width) {
  if (delimiter.size() != 1) throw engine::ConfigError("delimiter is '" + delimiter + "', expected one byte");
  return {delimiter.front(), width};
}

// (row, byte, column, value, reason), or None.
nb::object problem_of(const std::optional<TextProblem>& problem) {
  if (!problem) return nb::none();
  return nb::make_tuple(problem->row, problem->byte, problem->column,
                        nb::bytes(problem->value.data(), problem->value.size()), problem->reason);
}

using SharedTable = std::shared_ptr<TextTable>;

// An array that shows memory of the table, and keeps the table alive; None for an empty one.
template <typename Value>
nb::object view(const SharedTable& table, const std::vector<Value>& values) {
  if (values.empty()) return nb::none();
  nb::capsule owner(new SharedTable(table), [](void* held) noexcept { delete static_cast<SharedTable*>(held); });
  auto* data = reinterpret_cast<const std::uint8_t*>(values.data());
  return nb::cast(NewVector<const std::uint8_t>(data, {values.size() * sizeof(Value)}, owner));
}

class ParsedText {
 public:
  explicit ParsedText(TextTable table) : table_(std::make_shared<TextTable>(std::move(table))) {}

  [[nodiscard]] const TextTable& table() const noexcept { return *table_; }

  [[nodiscard]] nb::tuple column(std::size_t place) const {
    const TextColumn& column = table_->columns.at(place);
    const auto kind = engine::data::name_of(column.type);
    const bool is_text = column.type == TextType::kText;
    const nb::object values = is_text                          ? view(table_, column.characters)
                              : column.type == TextType::kBool ? view(table_, column.bits)
                                                               : view(table_, column.words);
    return nb::make_tuple(nb::str(kind.data(), kind.size()), column.value_count, values, view(table_, column.text_ends),
                          view(table_, column.valid), view(table_, column.list_ends), view(table_, column.list_valid));
  }

 private:
  SharedTable table_;
};

// Names that are not UTF-8 get marks in place of the bytes.
nb::str as_str(const std::string& name) {
  return nb::steal<nb::str>(PyUnicode_DecodeUTF8(name.data(), static_cast<Py_ssize_t>(name.size()), "replace"));
}

nb::tuple inferred_of(const InferredText& inferred) {
  nb::list fields;
  for (const TextField& field : inferred.fields) {
    const auto type = engine::data::name_of(field.type);
    fields.append(nb::make_tuple(as_str(field.name), nb::str(type.data(), type.size()), field.is_list));
  }
  return nb::make_tuple(fields, problem_of(inferred.problem));
}

}  // namespace

void bind_text(nb::module_& m) {
  nb::class_<ParsedText>(m, "ParsedText", "Columns of a block of text.")
      .def_prop_ro("rows", [](const ParsedText& parsed) { return parsed.table().rows; })
      .def_prop_ro(
          "problem", [](const ParsedText& parsed) { return problem_of(parsed.table().problem); },
          nb::sig("def problem(self) -> tuple[int, int, str, bytes, str] | None"),
          "The first error: row, byte of the block, column, value, reason.")
      .def("column", &ParsedText::column, "place"_a,
           nb::sig("def column(self, place: int) -> tuple[str, int, typing.Any, typing.Any, typing.Any, typing.Any, "
                   "typing.Any]"),
           "Return the type, the number of values, and the buffers: values, text offsets, validity, list offsets, "
           "validity of lists.");
  m.def(
      "parse_csv",
      [](nb::handle block, const std::string& delimiter, std::uint32_t width, const std::vector<FieldTuple>& fields) {
        const Buffer buffer(block);
        const CsvShape shape = as_shape(delimiter, width);
        const auto wanted = as_fields(fields);
        ReleasedGil unlocked;
        return ParsedText(engine::data::parse_csv(as_text(buffer), shape, wanted));
      },
      "block"_a, "delimiter"_a, "width"_a, "fields"_a,
      nb::sig("def parse_csv(block: typing_extensions.Buffer, delimiter: str, width: int, "
              "fields: collections.abc.Sequence[tuple[str, str, bool, int]]) -> ParsedText"),
      "Return columns of the rows of a block; a field is (name, type, is a list, place in the row).");
  m.def(
      "infer_csv",
      [](nb::handle block, const std::string& delimiter, std::uint32_t width) {
        const Buffer buffer(block);
        return inferred_of(engine::data::infer_csv(as_text(buffer), as_shape(delimiter, width)));
      },
      "block"_a, "delimiter"_a, "width"_a,
      nb::sig("def infer_csv(block: typing_extensions.Buffer, delimiter: str, width: int) -> "
              "tuple[list[tuple[str, str, bool]], tuple[int, int, str, bytes, str] | None]"),
      "Return the types of the fields of a row, and the first error.");
  m.def(
      "cut_csv",
      [](nb::handle block, const std::string& delimiter) {
        const Buffer buffer(block);
        return engine::data::cut_csv(as_text(buffer), as_shape(delimiter, 1).delimiter);
      },
      "block"_a, "delimiter"_a, nb::sig("def cut_csv(block: typing_extensions.Buffer, delimiter: str) -> int"),
      "Return the end of the last whole row of a block; 0 without one.");
  m.def(
      "parse_json_lines",
      [](nb::handle block, const std::vector<FieldTuple>& fields) {
        const Buffer buffer(block);
        const auto wanted = as_fields(fields);
        ReleasedGil unlocked;
        return ParsedText(engine::data::parse_json_lines(as_text(buffer), wanted));
      },
      "block"_a, "fields"_a,
      nb::sig("def parse_json_lines(block: typing_extensions.Buffer, "
              "fields: collections.abc.Sequence[tuple[str, str, bool, int]]) -> ParsedText"),
      "Return members of the objects of a block; a field is (name, type, is a list, 0).");
  m.def(
      "infer_json_lines",
      [](nb::handle block) {
        const Buffer buffer(block);
        return inferred_of(engine::data::infer_json_lines(as_text(buffer)));
      },
      "block"_a,
      nb::sig("def infer_json_lines(block: typing_extensions.Buffer) -> "
              "tuple[list[tuple[str, str, bool]], tuple[int, int, str, bytes, str] | None]"),
      "Return name, type and whether it is a list of each member, and the first error.");
}

}  // namespace bindings
