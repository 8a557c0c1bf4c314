// copy_small.h: copies a few bytes. Private to the engine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace engine::data {

// Copies `size` bytes, mostly 8 to 8 * kWords, kWords at most 4. One to kWords words are copied without a branch on
// their number, which cannot be predicted.
template <std::uint32_t kWords>
inline void copy_small(std::byte* to, const std::byte* from, std::uint32_t size) noexcept {
  constexpr std::uint32_t kWord = 8;
  if (kWords == 0 || size - kWord > (kWords - 1) * kWord) {
    if (size != 0) std::memcpy(to, from, size);
    return;
  }
  const std::uint32_t last = size - kWord;
  std::uint64_t words[4];
  for (std::uint32_t i = 0; i < kWords; ++i) std::memcpy(&words[i], from + std::min(i * kWord, last), kWord);
  for (std::uint32_t i = 0; i < kWords; ++i) std::memcpy(to + std::min(i * kWord, last), &words[i], kWord);
}

}  // namespace engine::data
