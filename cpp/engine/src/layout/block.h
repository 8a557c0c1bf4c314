// block.h: a few neighbouring floats of a row, held in registers. Private.
#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "../rows.h"

namespace engine::layout {

template <std::size_t kWidth>
class Block {
 public:
  Block() = default;
  [[gnu::always_inline]] explicit Block(const float* from) noexcept { std::memcpy(lanes_, from, sizeof lanes_); }

  [[gnu::always_inline]] void add(const float* from) noexcept {
    const Block other(from);
    for (std::size_t i = 0; i < kLanes; ++i) lanes_[i] += other.lanes_[i];
  }
  [[gnu::always_inline]] void scale(float factor) noexcept {
    for (auto& lane : lanes_) lane *= factor;
  }
  [[gnu::always_inline]] void store(float* to) const noexcept { std::memcpy(to, lanes_, sizeof lanes_); }
  [[gnu::always_inline]] void add_to(float* to) const noexcept {
    Block sum(to);
    for (std::size_t i = 0; i < kLanes; ++i) sum.lanes_[i] += lanes_[i];
    sum.store(to);
  }

 private:
  static constexpr bool kFours = kWidth % 4 == 0;
  static constexpr std::size_t kLanes = kFours ? kWidth / 4 : kWidth;
  std::conditional_t<kFours, Four, float> lanes_[kLanes]{};
};

}  // namespace engine::layout
