// json_text.h: the slow parts of a model server's JSON: records as base64, and arrays of floats.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace engine {

// A JSON text without its records: the n-th object {"b64": "..."} is {"b64":n} in `rest`, and its text in `records`,
// as it stands in the JSON.
struct LiftedRecords {
  std::string rest;
  std::vector<std::string_view> records;
};

// Takes the records out of a JSON text. Returns nothing for a text without records, and for one whose marks would be
// ambiguous: a string with an escape, a "b64" elsewhere. `rest` is JSON exactly where the text is, as far as the
// records go: no other syntax is checked.
std::optional<LiftedRecords> lift_records(std::string_view json);

// Appends nested JSON arrays of these sizes, the last one innermost. Each number is the shortest that is read as the
// same float again; values without a JSON number are written as in JavaScript: NaN, Infinity, -Infinity.
void append_json(std::span<const float> values, std::span<const std::size_t> sizes, std::string& out);

}  // namespace engine
