// block.h: a few neighbouring floats of a row, held in registers. Private.
#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "../rows.h"

namespace engine::layout {

// Lanes are copied one by one: one copy of them all would go through memory.
template <std::size_t kWidth>
class Block {
 public:
  Block() = default;
  [[gnu::always_inline]] explicit Block(const float* from) noexcept {
    for (std::size_t i = 0; i < kLanes; ++i) std::memcpy(&lanes_[i], from + i * kLaneWidth, sizeof(Lane));
  }

  [[gnu::always_inline]] void add(const Block& other) noexcept {
    for (std::size_t i = 0; i < kLanes; ++i) lanes_[i] += other.lanes_[i];
  }
  [[gnu::always_inline]] void scale(float factor) noexcept {
    for (Lane& lane : lanes_) lane *= factor;
  }
  [[gnu::always_inline]] void store(float* to) const noexcept {
    for (std::size_t i = 0; i < kLanes; ++i) std::memcpy(to + i * kLaneWidth, &lanes_[i], sizeof(Lane));
  }
  [[gnu::always_inline]] void add_to(float* to) const noexcept {
    Block sum(to);
    sum.add(*this);
    sum.store(to);
  }

 private:
  static constexpr std::size_t kLaneWidth = kWidth % 4 == 0 ? 4 : 1;
  static constexpr std::size_t kLanes = kWidth / kLaneWidth;
  using Lane = std::conditional_t<kLaneWidth == 4, Four, float>;

  Lane lanes_[kLanes]{};
};

}  // namespace engine::layout
