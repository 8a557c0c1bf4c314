// hash.h: the engine's fixed 64-bit mixing functions. They never change: filters keep them on disk.
#pragma once

#include <bit>
#include <cstdint>

namespace engine {

__extension__ using Product = unsigned __int128;

inline constexpr std::uint64_t kMixed = 0x2d358dccaa6c78a5ULL;
inline constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15ULL;

// One multiplication to 128 bits, folded. Good enough to place ids, and the cheapest that is.
inline std::uint64_t mix(std::uint64_t x) noexcept {
  const auto product = static_cast<Product>(x ^ kMixed) * kFactor;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

// mix(id) and a key of 64 bits, in memory only, from which id_of() makes the id again.
struct IdHash {
  std::uint64_t mixed;
  std::uint64_t key;

  [[nodiscard]] std::uint32_t upper() const noexcept { return static_cast<std::uint32_t>(key >> 32); }
  // Chooses a bucket. The bits by which mix() chooses a part, which are equal within it, are rotated to the end.
  [[nodiscard]] std::uint32_t spread() const noexcept {
    return static_cast<std::uint32_t>(key) ^ std::rotl(upper(), 8);
  }
};
[[gnu::always_inline]] inline IdHash hash_id(std::int64_t id) noexcept {
  const auto product = static_cast<Product>(static_cast<std::uint64_t>(id) ^ kMixed) * kFactor;
  const auto key = static_cast<std::uint64_t>(product);
  return {.mixed = key ^ static_cast<std::uint64_t>(product >> 64), .key = key};
}
// The key with this upper() and spread().
inline std::uint64_t key_of(std::uint32_t upper, std::uint32_t spread) noexcept {
  return std::uint64_t{upper} << 32 | (spread ^ std::rotl(upper, 8));
}
inline std::int64_t id_of(std::uint64_t key) noexcept {
  constexpr std::uint64_t kInverse = 0xf1de83e19937733dULL;
  static_assert(kFactor * kInverse == 1);
  return static_cast<std::int64_t>((key * kInverse) ^ kMixed);
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
