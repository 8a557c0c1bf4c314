// hashes.h: hashes of request keys. Pure functions: replays and other joiners make the same decision.
#pragma once

#include <cstdint>
#include <string_view>

namespace joiner {

// SplitMix64.
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t value) noexcept {
  value += 0x9E3779B97F4A7C15ULL;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

[[nodiscard]] constexpr std::uint64_t fnv1a64(std::string_view key) noexcept {
  std::uint64_t value = 0xCBF29CE484222325ULL;
  for (const char byte : key) value = (value ^ static_cast<std::uint8_t>(byte)) * 0x100000001B3ULL;
  return value;
}

// The hash of an impression, before its last mix.
[[nodiscard]] constexpr std::uint64_t identity_hash(std::string_view key, std::uint64_t item) noexcept {
  return fnv1a64(key) ^ mix(item);
}

// The draw of an impression, from 0 to 1. A sampler keeps a negative whose draw is below its rate.
[[nodiscard]] constexpr double draw_uniform(std::string_view key, std::uint64_t item, std::uint64_t salt) noexcept {
  return static_cast<double>(mix(identity_hash(key, item) ^ salt)) / 18446744073709551616.0;
}

}  // namespace joiner
