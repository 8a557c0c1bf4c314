// float_pieces.h: several arrays of floats in one buffer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>

#include "engine/data/records.h"

namespace serving {

// Hands out aligned pieces of one buffer: first all sizes are added, then the buffer is taken.
class FloatPieces {
 public:
  // Returns the first byte of the piece.
  std::size_t add(std::size_t floats) {
    const std::size_t begin = size_;
    size_ += (floats * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  }
  [[nodiscard]] std::shared_ptr<engine::data::Buffer> take() const {
    return engine::data::Buffer::take(std::max(size_, kAlignment));
  }
  [[nodiscard]] static float* at(engine::data::Buffer& buffer, std::size_t begin) {
    return reinterpret_cast<float*>(buffer.data() + begin);
  }

 private:
  static constexpr std::size_t kAlignment = 64;
  std::size_t size_ = 0;
};

}  // namespace serving
