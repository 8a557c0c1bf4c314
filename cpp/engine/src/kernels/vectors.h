// vectors.h: groups of floats as wide as the registers of the level. Included by kernels only, hence unnamed.
#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "../rows.h"

namespace engine {
namespace {

using Eight = float __attribute__((vector_size(32)));
using Sixteen = float __attribute__((vector_size(64)));

#if defined(__AVX512F__)
constexpr std::size_t kRegisterFloats = 16;
#elif defined(__AVX__)
constexpr std::size_t kRegisterFloats = 8;
#else
constexpr std::size_t kRegisterFloats = 4;
#endif

// Floats of the widest vector that divides `width`; 1 if none does.
constexpr std::size_t lane_floats(std::size_t width) {
  std::size_t floats = kRegisterFloats;
  while (floats > 1 && width % floats != 0) floats = floats == 4 ? 1 : floats / 2;
  return floats;
}

template <std::size_t kFloats>
using Lane = std::conditional_t<kFloats == 16, Sixteen,
                                std::conditional_t<kFloats == 8, Eight, std::conditional_t<kFloats == 4, Four, float>>>;

// Neighbouring floats in registers. Lanes are copied one by one: one copy of them all would go through memory.
template <std::size_t kWidth>
class Block {
 public:
  Block() = default;
  [[gnu::always_inline]] explicit Block(const float* from) noexcept {
    for (std::size_t i = 0; i < kLanes; ++i) std::memcpy(&lanes_[i], from + i * kLaneFloats, sizeof(lanes_[i]));
  }

  [[gnu::always_inline]] void add(const Block& other) noexcept {
    for (std::size_t i = 0; i < kLanes; ++i) lanes_[i] += other.lanes_[i];
  }
  [[gnu::always_inline]] void scale(float factor) noexcept {
    for (std::size_t i = 0; i < kLanes; ++i) lanes_[i] *= factor;
  }
  [[nodiscard, gnu::always_inline]] Block times(const Block& other) const noexcept {
    Block product;
    for (std::size_t i = 0; i < kLanes; ++i) product.lanes_[i] = lanes_[i] * other.lanes_[i];
    return product;
  }
  [[nodiscard, gnu::always_inline]] Block less(const Block& other) const noexcept {
    Block difference;
    for (std::size_t i = 0; i < kLanes; ++i) difference.lanes_[i] = lanes_[i] - other.lanes_[i];
    return difference;
  }
  [[gnu::always_inline]] void store(float* to) const noexcept {
    for (std::size_t i = 0; i < kLanes; ++i) std::memcpy(to + i * kLaneFloats, &lanes_[i], sizeof(lanes_[i]));
  }
  [[gnu::always_inline]] void add_to(float* to) const noexcept {
    Block sum(to);
    sum.add(*this);
    sum.store(to);
  }

 private:
  static constexpr std::size_t kLaneFloats = lane_floats(kWidth);
  static constexpr std::size_t kLanes = kWidth / kLaneFloats;

  Lane<kLaneFloats> lanes_[kLanes]{};
};

}  // namespace
}  // namespace engine
