// score_request.h: reads the plain form of a predict request: records under one name. Readers return nothing for any
// other form and for any mistake; the Python path then reads the request and gives the error text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/records.h"
#include "engine/data/row_parser.h"

namespace serving {

struct ScoreRequest {
  std::string model;
  std::optional<std::int64_t> version;
  std::string label;
  std::string signature;  // empty = the default
  std::string input;      // empty = the only input of the signature
  std::vector<std::string> wanted;
  std::shared_ptr<engine::data::Records> records;
  bool is_by_row = false;  // JSON only
};

// The message kind of an input that holds records. Nothing for any other name.
[[nodiscard]] std::optional<engine::data::RecordKind> record_kind(std::string_view input);

// Reads a serialized PredictRequest.
[[nodiscard]] std::optional<ScoreRequest> read_predict_message(std::string_view message);

// Reads a JSON body of REST whose values are all base64 objects. At most about `max_values` values.
[[nodiscard]] std::optional<ScoreRequest> read_predict_json(std::string_view body, std::size_t max_values);

// Reads /v1/models/NAME[/versions/N|/labels/L]:predict into model, version and label.
[[nodiscard]] bool read_predict_path(std::string_view path, ScoreRequest& request);

}  // namespace serving
