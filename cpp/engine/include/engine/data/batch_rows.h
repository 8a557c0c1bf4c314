// batch_rows.h: how many rows a serialized ExampleBatch says it has; only its outermost fields are walked over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace engine::data {

// Nothing where the bytes are no message. A size below 0 counts as 0: who reads the rows refuses it.
std::optional<std::uint32_t> batch_rows(std::span<const std::byte> record);

}  // namespace engine::data
