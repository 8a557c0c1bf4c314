// text_scan.h: finds characters in text, 64 at a time. Private to the data engine.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace engine::data::text {

inline constexpr std::size_t kStride = 64;

// A bit for each of 64 characters that is behind an odd number of marked ones, itself included.
inline std::uint64_t mark_between(std::uint64_t marks) noexcept {
  for (unsigned shift = 1; shift < 64; shift *= 2) marks ^= marks << shift;
  return marks;
}

// A bit for each of 64 characters that is one of four.
class CharacterSet {
 public:
  CharacterSet(char a, char b, char c, char d) : wanted_{a, b, c, d} {}

  [[nodiscard]] std::uint64_t find(const char* at) const noexcept {
#if defined(__aarch64__)
    const uint8x16_t kBit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t hits[4];
    for (int i = 0; i < 4; ++i) {
      const uint8x16_t text = vld1q_u8(reinterpret_cast<const std::uint8_t*>(at) + 16 * i);
      uint8x16_t hit = vceqq_u8(text, vdupq_n_u8(static_cast<std::uint8_t>(wanted_[0])));
      for (int k = 1; k < 4; ++k) {
        hit = vorrq_u8(hit, vceqq_u8(text, vdupq_n_u8(static_cast<std::uint8_t>(wanted_[k]))));
      }
      hits[i] = vandq_u8(hit, kBit);
    }
    const uint8x16_t low = vpaddq_u8(hits[0], hits[1]);
    const uint8x16_t high = vpaddq_u8(hits[2], hits[3]);
    const uint8x16_t all = vpaddq_u8(low, high);
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(all, all)), 0);
#elif defined(__SSE2__)
    std::uint64_t found = 0;
    for (int i = 0; i < 4; ++i) {
      const __m128i text = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 16 * i));
      __m128i hit = _mm_cmpeq_epi8(text, _mm_set1_epi8(wanted_[0]));
      for (int k = 1; k < 4; ++k) hit = _mm_or_si128(hit, _mm_cmpeq_epi8(text, _mm_set1_epi8(wanted_[k])));
      found |= static_cast<std::uint64_t>(static_cast<std::uint32_t>(_mm_movemask_epi8(hit))) << (16 * i);
    }
    return found;
#else
    return find_portable(at);
#endif
  }

  // The same without vector instructions; tests compare both.
  [[nodiscard]] std::uint64_t find_portable(const char* at) const noexcept {
    std::uint64_t found = 0;
    for (std::size_t i = 0; i < kStride; ++i) {
      const bool is_one = at[i] == wanted_[0] || at[i] == wanted_[1] || at[i] == wanted_[2] || at[i] == wanted_[3];
      found |= std::uint64_t{is_one} << i;
    }
    return found;
  }

 private:
  char wanted_[4];
};

// Walks over the characters of a set, from left to right. Exclusive.
class CharacterWalk {
 public:
  CharacterWalk(const CharacterSet& set, const char* data, std::size_t size) : set_(set), data_(data), size_(size) {
    load(0);
  }

  // Continues at a position, at most the size of the text.
  void seek(std::size_t at) noexcept {
    load(at / kStride * kStride);
    mask_ &= ~std::uint64_t{0} << at % kStride;
  }

  // Position of the next character of the set, or the size of the text.
  [[nodiscard]] std::size_t next() noexcept {
    while (mask_ == 0) {
      if (base_ + kStride >= size_) return size_;
      load(base_ + kStride);
    }
    const std::size_t at = base_ + static_cast<std::size_t>(std::countr_zero(mask_));
    mask_ &= mask_ - 1;
    return at;
  }

 private:
  void load(std::size_t base) noexcept {
    base_ = base;
    if (base + kStride <= size_) {
      mask_ = set_.find(data_ + base);
      return;
    }
    char last[kStride] = {};
    const std::size_t left = size_ - base;
    if (left == 0) {
      mask_ = 0;
      return;
    }
    std::memcpy(last, data_ + base, left);
    mask_ = set_.find(last) & ((std::uint64_t{1} << left) - 1);
  }

  CharacterSet set_;
  const char* data_;
  std::size_t size_;
  std::size_t base_ = 0;
  std::uint64_t mask_ = 0;
};

// Position of the first quote, backslash or control character in [at, end), or `end`.
inline const char* find_string_end(const char* at, const char* end) noexcept {
  constexpr std::uint64_t kOnes = 0x0101010101010101;
  constexpr std::uint64_t kTops = 0x8080808080808080;
  const auto zeros = [](std::uint64_t word) { return (word - kOnes) & ~word & kTops; };
  while (end - at >= 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    const std::uint64_t control = (word - kOnes * 0x20) & ~word & kTops;
    const std::uint64_t hits = zeros(word ^ kOnes * '"') | zeros(word ^ kOnes * '\\') | control;
    // Above the first hit a carry may have marked other characters; the first is right.
    if (hits != 0) return at + std::countr_zero(hits) / 8;
    at += 8;
  }
  while (at != end && *at != '"' && *at != '\\' && static_cast<unsigned char>(*at) >= 0x20) ++at;
  return at;
}

}  // namespace engine::data::text
