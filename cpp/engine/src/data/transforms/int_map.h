// int_map.h: a fixed map from 64-bit numbers to their places in a list, for membership tests per row. Private.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "engine/data/row_op.h"

namespace engine::data {

class IntMap {
 public:
  IntMap() = default;
  // A number that is there twice has its first place.
  explicit IntMap(std::span<const std::int64_t> keys) {
    if (keys.size() > kLinear) {
      mask_ = std::bit_ceil(keys.size() * 2) - 1;
      slots_.assign(mask_ + 1, -1);
      const std::size_t bits = std::bit_ceil(keys.size() * kBitsPerKey);
      shift_ = 64 - static_cast<unsigned>(std::countr_zero(bits));
      bits_.assign(bits / 64, 0);
    }
    for (const std::int64_t key : keys) {
      if (has(key)) continue;
      if (!slots_.empty()) {
        std::size_t at = mix(0, static_cast<std::uint64_t>(key)) & mask_;
        while (slots_[at] >= 0) at = (at + 1) & mask_;
        slots_[at] = static_cast<std::int32_t>(keys_.size());
        bits_[bit_of(key) / 64] |= std::uint64_t{1} << (bit_of(key) % 64);
      }
      keys_.push_back(key);
    }
  }

  [[nodiscard]] bool empty() const noexcept { return keys_.empty(); }
  [[nodiscard]] std::size_t size() const noexcept { return keys_.size(); }
  [[nodiscard]] bool has(std::int64_t key) const noexcept { return may_have(key) && find(key) >= 0; }
  // False when none of the packed numbers is there; true only means that a closer look is needed. Up to four are asked
  // for without a branch on their number, which cannot be predicted.
  [[nodiscard]] bool may_have_any(const std::byte* numbers, std::size_t count) const noexcept {
    constexpr std::size_t kFew = 4;
    if (bits_.empty() || count == 0) return count != 0;
    const std::uint64_t* const bits = bits_.data();
    const unsigned shift = shift_;
    const auto look = [=](std::size_t index) {
      std::uint64_t key = 0;
      std::memcpy(&key, numbers + index * sizeof key, sizeof key);
      const std::uint64_t bit = (key * kFactor) >> shift;
      return bits[bit / 64] >> (bit % 64);
    };
    if (count <= kFew) [[likely]] {
      const std::size_t last = count - 1;
      return ((look(0) | look(std::min<std::size_t>(1, last)) | look(std::min<std::size_t>(2, last)) | look(last)) &
              1) != 0;
    }
    std::uint64_t hits = 0;
    for (std::size_t index = 0; index < count; ++index) hits |= look(index);
    return (hits & 1) != 0;
  }
  // The key's place among the distinct keys, or -1.
  [[nodiscard]] std::int32_t find(std::int64_t key) const noexcept {
    if (slots_.empty()) return find_linear(key);
    for (std::size_t at = mix(0, static_cast<std::uint64_t>(key)) & mask_; slots_[at] >= 0; at = (at + 1) & mask_) {
      if (keys_[static_cast<std::size_t>(slots_[at])] == key) return slots_[at];
    }
    return -1;
  }

 private:
  static constexpr std::size_t kLinear = 8;
  static constexpr std::size_t kBitsPerKey = 32;
  static constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15ULL;

  [[nodiscard]] std::size_t bit_of(std::int64_t key) const noexcept {
    return (static_cast<std::uint64_t>(key) * kFactor) >> shift_;
  }
  // False for nearly all numbers that are not there, after one look into a small table of bits.
  [[nodiscard]] bool may_have(std::int64_t key) const noexcept {
    return bits_.empty() || ((bits_[bit_of(key) / 64] >> (bit_of(key) % 64)) & 1) != 0;
  }
  [[nodiscard]] std::int32_t find_linear(std::int64_t key) const noexcept {
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      if (keys_[i] == key) return static_cast<std::int32_t>(i);
    }
    return -1;
  }

  std::vector<std::int64_t> keys_;
  std::vector<std::int32_t> slots_;
  std::vector<std::uint64_t> bits_;
  std::size_t mask_ = 0;
  unsigned shift_ = 0;
};

// Counts how many distinct places of a list were seen since the last `begin`, without clearing anything.
class SeenOnce {
 public:
  explicit SeenOnce(std::size_t places = 0) : stamps_(places, 0) {}

  void begin() noexcept {
    ++stamp_;
    seen_ = 0;
  }
  void see(std::size_t place) noexcept {
    if (stamps_[place] != stamp_) stamps_[place] = stamp_, ++seen_;
  }
  [[nodiscard]] std::size_t seen() const noexcept { return seen_; }
  [[nodiscard]] bool all() const noexcept { return seen_ == stamps_.size(); }

 private:
  std::vector<std::uint64_t> stamps_;
  std::uint64_t stamp_ = 0;
  std::size_t seen_ = 0;
};

}  // namespace engine::data
