// int_map.h: a fixed map from 64-bit numbers to their places in a list, for membership tests per row. Private.
#pragma once

#include <bit>
#include <cstdint>
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

  [[nodiscard]] std::size_t bit_of(std::int64_t key) const noexcept {
    return (static_cast<std::uint64_t>(key) * 0x9e3779b97f4a7c15ULL) >> shift_;
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
