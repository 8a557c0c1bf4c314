// hash.h: the partition of a key. Part of the format: writers and joiners of any version must agree on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace eventlog {

[[nodiscard]] constexpr std::uint64_t fnv1a64(std::span<const std::byte> key) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const std::byte byte : key) hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3U;
  return hash;
}

// The finalizer of SplitMix64.
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

[[nodiscard]] constexpr std::uint32_t choose_partition(std::span<const std::byte> key,
                                                       std::uint32_t partitions) noexcept {
  return static_cast<std::uint32_t>(mix(fnv1a64(key)) % partitions);
}

}  // namespace eventlog
