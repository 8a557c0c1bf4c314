// numbering.h: gives distinct ids the numbers 0, 1, 2 .. in order of first occurrence. Private.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/hash.h"

namespace engine::layout {

// Open addressing, at most half full. Made once per thread and begun anew for every table: a place counts only when it
// has the stamp of the present table, so nothing is ever cleared.
class Numbering {
 public:
  // Starts with room for `expected` distinct ids and grows when there are more.
  void begin(std::size_t expected) {
    if (++stamp_ == 0) {
      std::fill(places_.begin(), places_.end(), Place{});
      stamp_ = 1;
    }
    use(std::bit_ceil(std::max<std::size_t>(expected, 32) * 2));
    size_ = 0;
  }

  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }

  void prefetch(std::int64_t id) const noexcept { __builtin_prefetch(&places_[home(id)], 1, 3); }

  // The number of an id; a new one gets the next, which `size()` then shows.
  [[nodiscard]] std::uint32_t number(std::int64_t id) {
    std::size_t at = home(id);
    for (; places_[at].stamp == stamp_; at = (at + 1) & mask_) {
      if (places_[at].id == id) return places_[at].number;
    }
    if (size_ * 2 >= mask_) {
      grow();
      for (at = home(id); places_[at].stamp == stamp_;) at = (at + 1) & mask_;
    }
    places_[at] = {id, size_, stamp_};
    return size_++;
  }

 private:
  struct Place {
    std::int64_t id = 0;
    std::uint32_t number = 0;
    std::uint32_t stamp = 0;
  };

  [[nodiscard]] std::size_t home(std::int64_t id) const noexcept {
    return static_cast<std::size_t>(mix(static_cast<std::uint64_t>(id))) & mask_;
  }

  void use(std::size_t places) {
    if (places_.size() < places) places_.assign(places, Place{});
    mask_ = places - 1;
  }

  void grow() {
    std::vector<Place> taken;
    taken.reserve(size_);
    for (std::size_t at = 0; at <= mask_; ++at) {
      if (places_[at].stamp == stamp_) taken.push_back(places_[at]);
    }
    begin(std::size_t{size_} * 2);
    for (Place& place : taken) {
      std::size_t at = home(place.id);
      while (places_[at].stamp == stamp_) at = (at + 1) & mask_;
      place.stamp = stamp_;
      places_[at] = place;
    }
    size_ = static_cast<std::uint32_t>(taken.size());
  }

  std::vector<Place> places_;
  std::size_t mask_ = 0;
  std::uint32_t size_ = 0;
  std::uint32_t stamp_ = 0;
};

}  // namespace engine::layout
