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

// mix(id) and a key of 64 bits, in memory only, from which id_of() makes the id again. The bits by which mix() chooses
// a part, which are equal within it, are the last ones of the key's high half.
struct IdHash {
  std::uint64_t mixed;
  std::uint32_t high;
  std::uint32_t low;
};
[[gnu::always_inline]] inline IdHash hash_id(std::int64_t id) noexcept {
  const auto product = static_cast<Product>(static_cast<std::uint64_t>(id) ^ kMixed) * kFactor;
  const auto lower = static_cast<std::uint64_t>(product);
  const std::uint32_t high = std::rotl(static_cast<std::uint32_t>(lower >> 32), 8);
  return {.mixed = lower ^ static_cast<std::uint64_t>(product >> 64),
          .high = high,
          .low = static_cast<std::uint32_t>(lower) ^ high};
}
inline std::int64_t id_of(std::uint32_t high, std::uint32_t low) noexcept {
  constexpr std::uint64_t kInverse = 0xf1de83e19937733dULL;
  static_assert(kFactor * kInverse == 1);
  const std::uint64_t product = (std::uint64_t{std::rotr(high, 8)} << 32) | (low ^ high);
  return static_cast<std::int64_t>((product * kInverse) ^ kMixed);
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
