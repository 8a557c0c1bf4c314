// score_answer.h: writes scores as JSON of REST and as PredictResponse of gRPC.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "serving/model.h"

namespace serving {

// Rows [begin, begin + rows) of the scores of a batch.
struct ScoreSlice {
  const Model& model;
  const Scores& scores;
  std::span<const std::size_t> outputs;  // places among the outputs of the program
  std::size_t begin = 0;
  std::size_t rows = 0;

  [[nodiscard]] std::span<const float> values(std::size_t output) const noexcept;
};

[[nodiscard]] std::string write_json(const ScoreSlice& slice, bool is_by_row);
[[nodiscard]] std::string write_message(const ScoreSlice& slice, std::string_view signature);
// {"error": text} with the escapes of JSON.
[[nodiscard]] std::string write_error(std::string_view text);

}  // namespace serving
