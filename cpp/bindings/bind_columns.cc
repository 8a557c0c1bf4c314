// bind_columns.cc: columns of tables -> records, and messages that bring their own offsets.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <deque>
#include <optional>
#include <string_view>
#include <tuple>

#include "arrays.h"
#include "engine/data/column_encoder.h"
#include "engine/error.h"
#include "module.h"
#include "path.h"

namespace bindings {

using namespace nb::literals;
using engine::data::ColumnKind;
using engine::data::ColumnLayout;
using engine::data::FieldKind;
using engine::data::LineField;
using engine::data::Records;
using engine::data::ValueType;

namespace {

using FieldTuple = std::tuple<std::string, std::uint32_t, std::string, bool, double>;

template <typename Enum, typename Name>
Enum named(std::string_view text, const char* what, int first, int last, Name&& name) {
  std::string known;
  for (int value = first; value <= last; ++value) {
    const char* each = name(static_cast<Enum>(value));
    if (text == each) return static_cast<Enum>(value);
    known += std::string(known.empty() ? "" : ", ") + each;
  }
  throw engine::ConfigError(std::string(what) + " '" + std::string(text) + "' is not known; there are " + known);
}

const char* kind_name(FieldKind kind) {
  constexpr const char* kNames[] = {"int", "fixed64", "fixed32", "float", "double", "text"};
  return kNames[static_cast<int>(kind)];
}

LineField as_line_field(const FieldTuple& field) {
  const auto& [name, number, kind, is_repeated, default_value] = field;
  const auto parsed = named<FieldKind>(kind, "the kind of a LineId field", 0, static_cast<int>(FieldKind::kText),
                                       [](FieldKind each) { return kind_name(each); });
  return {name, number, parsed, is_repeated, default_value};
}

// A checked column and Python's hold on the memory that it shows.
class HeldColumn {
 public:
  HeldColumn(ColumnLayout layout, nb::handle values, nb::handle text_offsets, nb::handle value_valid,
             nb::handle list_offsets, nb::handle list_valid)
      : column_(with_buffers(std::move(layout), values, text_offsets, value_valid, list_offsets, list_valid)) {}
  HeldColumn(const HeldColumn&) = delete;
  HeldColumn& operator=(const HeldColumn&) = delete;

  [[nodiscard]] const engine::data::Column& column() const noexcept { return column_; }

 private:
  engine::data::Bytes hold(nb::handle object) {
    if (object.is_none()) return {};
    return held_.emplace_back(object).bytes();
  }

  ColumnLayout with_buffers(ColumnLayout layout, nb::handle values, nb::handle text_offsets, nb::handle value_valid,
                            nb::handle list_offsets, nb::handle list_valid) {
    layout.values = hold(values);
    layout.text_offsets = hold(text_offsets);
    layout.value_valid = hold(value_valid);
    layout.list_offsets = hold(list_offsets);
    layout.list_valid = hold(list_valid);
    return layout;
  }

  std::deque<Buffer> held_;  // before column_, which is made from it
  engine::data::Column column_;
};

void make_column(HeldColumn* self, std::string name, const std::string& kind, const std::string& type,
                 std::uint64_t rows, std::uint64_t value_count, nb::object values, nb::object text_offsets,
                 nb::object value_valid, nb::object list_offsets, nb::object list_valid, bool wide_list,
                 std::uint64_t first_value, std::uint64_t first_row, const std::optional<FieldTuple>& line_field) {
  ColumnLayout layout;
  layout.name = std::move(name);
  layout.kind = named<ColumnKind>(kind, "the kind of a column", 1, 6,
                                  [](ColumnKind each) { return engine::data::name_of(each); });
  layout.type = named<ValueType>(type, "the type of values", 0, static_cast<int>(ValueType::kText64),
                                 [](ValueType each) { return engine::data::name_of(each); });
  layout.rows = rows;
  layout.value_count = value_count;
  layout.first_value = first_value;
  layout.first_row = first_row;
  layout.wide_list = wide_list;
  if (line_field) layout.line_field = as_line_field(*line_field);
  new (self) HeldColumn(std::move(layout), values, text_offsets, value_valid, list_offsets, list_valid);
}

Records encode(const std::vector<const HeldColumn*>& held, std::uint64_t begin, std::uint64_t end, StreamName source,
               std::uint64_t offset) {
  std::vector<const engine::data::Column*> columns;
  columns.reserve(held.size());
  for (const HeldColumn* each : held) columns.push_back(&each->column());
  ReleasedGil unlocked;
  return engine::data::encode_columns(columns, begin, end, std::move(source), offset);
}

}  // namespace

void bind_columns(nb::module_& m) {
  nb::class_<HeldColumn>(m, "Column", "One column of a table in memory, checked; holds on to its buffers.")
      .def("__init__", &make_column, "name"_a, "kind"_a, "type"_a, nb::kw_only(), "rows"_a, "value_count"_a,
           "values"_a.none() = nb::none(), "text_offsets"_a.none() = nb::none(), "value_valid"_a.none() = nb::none(),
           "list_offsets"_a.none() = nb::none(), "list_valid"_a.none() = nb::none(), "wide_list"_a = false,
           "first_value"_a = 0, "first_row"_a = 0, "line_field"_a.none() = nb::none(),
           nb::sig(
               "def __init__(self, name: str, kind: str, type: str, *, rows: int, value_count: int, "
               "values: typing_extensions.Buffer | None = None, text_offsets: typing_extensions.Buffer | None = None, "
               "value_valid: typing_extensions.Buffer | None = None, "
               "list_offsets: typing_extensions.Buffer | None = None, "
               "list_valid: typing_extensions.Buffer | None = None, wide_list: bool = False, first_value: int = 0, "
               "first_row: int = 0, line_field: tuple[str, int, str, bool, float] | None = None) -> None"))
      .def_prop_ro("name", [](const HeldColumn& held) { return held.column().layout().name; })
      .def_prop_ro(
          "kind", [](const HeldColumn& held) { return engine::data::name_of(held.column().layout().kind); },
          "The arm of Feature that the values become.")
      .def("__len__", [](const HeldColumn& held) { return held.column().layout().rows; });
  m.def(
      "encode_columns", &encode, "columns"_a, "begin"_a, "end"_a, "source"_a, "offset"_a,
      nb::sig("def encode_columns(columns: collections.abc.Sequence[Column], begin: int, end: int, source: str, "
              "offset: int) -> Records"),
      "Rows from begin to end of the columns as one record of cells; offset is the number of row begin in the stream. "
      "As bytes, the record is an ExampleBatch.");
}

}  // namespace bindings
