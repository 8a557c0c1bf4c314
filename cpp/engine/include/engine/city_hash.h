// city_hash.h: CityHash64 (version 1.1), which the original's extractor uses to turn values into signatures.
#pragma once

#include <cstddef>
#include <cstdint>

namespace engine {

// Concurrent. Equal on every machine: words are read as little-endian.
[[nodiscard]] std::uint64_t city_hash64(const void* data, std::size_t size) noexcept;

}  // namespace engine
