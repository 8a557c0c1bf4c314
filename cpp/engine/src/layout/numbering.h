// numbering.h: gives distinct ids the numbers 0, 1, 2 .. in order of first occurrence. Private.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/hash.h"

namespace engine::layout {

// Open addressing, about half full. Made once per thread and restarted for every table: places keep numbers from one
// ever-growing count, so those of earlier tables are known by being too small, and nothing is cleared.
class Numbering {
 public:
  // Starts with room for `expected` distinct ids, grows when there are more, and takes at most `most`.
  void begin(std::size_t expected, std::uint32_t most) {
    if (most > ~next_) {
      std::fill(places_.begin(), places_.end(), Place{});
      next_ = 1;
    }
    first_ = next_;
    use(expected + kStride);
  }

  [[nodiscard]] std::uint32_t size() const noexcept { return next_ - first_; }

  // Writes the number of every value, and the distinct ids with their counts, which must have room. In strides: places
  // are fetched in a loop of their own, so that no search waits for memory.
  void number(std::span<const std::int64_t> values, std::uint32_t* numbers, std::int64_t* ids, std::uint32_t* counts) {
    std::array<std::size_t, kStride> homes;
    for (std::size_t begin = 0; begin < values.size(); begin += kStride) {
      const std::size_t count = std::min(kStride, values.size() - begin);
      if ((size() + count) * 2 > mask_ + 1) grow();
      for (std::size_t i = 0; i < count; ++i) {
        homes[i] = home(values[begin + i]);
        __builtin_prefetch(&places_[homes[i]], 1, 3);
      }
      for (std::size_t i = 0; i < count; ++i) {
        const std::int64_t id = values[begin + i];
        std::size_t at = homes[i];
        while (places_[at].number >= first_ && places_[at].id != id) at = (at + 1) & mask_;
        Place& place = places_[at];
        if (place.number < first_) {
          ids[size()] = id;
          counts[size()] = 0;
          place = {id, next_++};
        }
        const std::uint32_t number = place.number - first_;
        ++counts[number];
        numbers[begin + i] = number;
      }
    }
  }

 private:
  static constexpr std::size_t kStride = 64;

  struct Place {
    std::int64_t id = 0;
    std::uint32_t number = 0;  // of the ever-growing count, which starts at 1
  };

  [[nodiscard]] std::size_t home(std::int64_t id) const noexcept {
    return static_cast<std::size_t>(mix(static_cast<std::uint64_t>(id))) & mask_;
  }

  void use(std::size_t ids) {
    const std::size_t places = std::bit_ceil(ids * 2);
    if (places_.size() < places) places_.resize(places);
    mask_ = places - 1;
  }

  void grow() {
    std::vector<Place> taken;
    taken.reserve(size());
    for (std::size_t at = 0; at <= mask_; ++at) {
      if (places_[at].number < first_) continue;
      taken.push_back(places_[at]);
      places_[at].number = 0;
    }
    use((std::size_t{size()} + kStride) * 2);
    for (const Place& place : taken) {
      std::size_t at = home(place.id);
      while (places_[at].number >= first_) at = (at + 1) & mask_;
      places_[at] = place;
    }
  }

  std::vector<Place> places_;
  std::size_t mask_ = 0;
  std::uint32_t first_ = 1;
  std::uint32_t next_ = 1;
};

}  // namespace engine::layout
