// quantized.h: float vectors packed into a byte string behind the mark UE_QTZ, as embeddings travel inside features.
#pragma once

#include <span>

#include "engine/data/records.h"

namespace engine::data {

[[nodiscard]] bool has_quantized_prefix(Bytes text) noexcept;

// Decodes a vector of exactly values.size() floats; false when the text holds another number of them. Concurrent.
// More than 4 values: the least and the greatest as half floats, then a byte each. Up to 4: half floats.
[[nodiscard]] bool decode_quantized(Bytes text, std::span<float> values) noexcept;

}  // namespace engine::data
