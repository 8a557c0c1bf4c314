// batch_rows.h: the number of rows that a serialized ExampleBatch claims; only its outermost fields are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace engine::data {

// Nothing where the bytes are not a message. A size below 0 counts as 0: the parser refuses it.
std::optional<std::uint32_t> batch_rows(std::span<const std::byte> record);

}  // namespace engine::data
