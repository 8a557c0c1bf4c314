// hash.h: the engine's fixed 64-bit mixing functions. They never change: filters keep them on disk.
#pragma once

#include <cstdint>

namespace engine {

__extension__ using Product = unsigned __int128;

// One multiplication to 128 bits, folded. Good enough to place ids, and the cheapest that is.
inline std::uint64_t mix(std::uint64_t x) noexcept {
  const auto product = static_cast<Product>(x ^ 0x2d358dccaa6c78a5ULL) * 0x9e3779b97f4a7c15ULL;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

// Two rounds of finalisation: every input bit reaches every output bit. For random numbers.
inline std::uint64_t scramble(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// A uniform float in [0, 1) with 24 random bits.
inline float unit_float(std::uint64_t bits) noexcept { return static_cast<float>(bits >> 40) * 0x1p-24F; }

}  // namespace engine
