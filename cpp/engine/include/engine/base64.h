// base64.h: reads RFC 4648's base64, as records travel in JSON.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace engine {

// Bytes of a base64 text, or nothing where its length is invalid: it comes in fours, the last padded.
std::optional<std::size_t> base64_size(std::string_view text);

// Writes those bytes; false where a sign is not of the alphabet. Line ends and spaces are none.
bool decode_base64(std::string_view text, std::byte* out);

}  // namespace engine
