// line_fields.h: fields of LineId, from Python's tuples.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "engine/data/line_id.h"
#include "engine/error.h"

namespace bindings {

// (name, number, kind, is_repeated, default)
using LineFieldTuple = std::tuple<std::string, std::uint32_t, std::string, bool, double>;

inline engine::data::LineField as_line_field(const LineFieldTuple& tuple) {
  using engine::data::FieldKind;
  const auto& [name, number, kind, is_repeated, default_value] = tuple;
  constexpr std::pair<const char*, FieldKind> kKinds[] = {
      {"int", FieldKind::kInt},     {"fixed64", FieldKind::kFixed64}, {"fixed32", FieldKind::kFixed32},
      {"float", FieldKind::kFloat}, {"double", FieldKind::kDouble},   {"text", FieldKind::kText},
  };
  for (const auto& [known, value] : kKinds) {
    if (kind == known) return {name, number, value, is_repeated, default_value};
  }
  throw engine::ConfigError("LineId field '" + name + "' is of kind '" + kind +
                            "'; it must be int, fixed64, fixed32, float, double or text");
}

inline std::vector<engine::data::LineField> as_line_fields(const std::vector<LineFieldTuple>& tuples) {
  std::vector<engine::data::LineField> fields;
  fields.reserve(tuples.size());
  for (const auto& tuple : tuples) fields.push_back(as_line_field(tuple));
  return fields;
}

}  // namespace bindings
