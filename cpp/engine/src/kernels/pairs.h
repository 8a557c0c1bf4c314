// pairs.h: kernels of sums over all pairs of an example's vectors. Included by kernels only, hence unnamed.
#pragma once

#include <cstddef>

#include "kernels.h"
#include "vectors.h"

namespace engine {
namespace {

// Calls work(first column, width as a constant) for groups of neighbouring columns.
template <class Work>
[[gnu::always_inline]] inline void for_each_columns(std::size_t width, Work&& work) noexcept {
  std::size_t at = 0;
  for (; at + 16 <= width; at += 16) work(at, std::integral_constant<std::size_t, 16>{});
  for (; at + 4 <= width; at += 4) work(at, std::integral_constant<std::size_t, 4>{});
  for (; at < width; ++at) work(at, std::integral_constant<std::size_t, 1>{});
}

[[gnu::flatten]] void sum_pairs(const PairSums& sums) noexcept {
  const PairSums work = sums;  // a copy whose address is not taken can stay in registers
  const std::size_t width = work.vectors.width;
  for (std::size_t example = work.begin; example < work.end; ++example) {
    const float* const first = work.vectors.data + example * work.vectors.count * width;
    for_each_columns(width, [&](std::size_t at, auto columns) {
      Block<columns> together;
      Block<columns> squares;
      const float* vector = first + at;
      for (std::size_t i = 0; i < work.vectors.count; ++i, vector += width) {
        const Block<columns> values(vector);
        together.add(values);
        squares.add(values.times(values));
      }
      together.store(work.together + example * width + at);
      Block<columns> pairs = together.times(together).less(squares);
      pairs.scale(0.5F);
      pairs.store(work.pairs + example * width + at);
    });
  }
}

[[gnu::flatten]] void pair_gradients(const PairGradients& gradients) noexcept {
  const PairGradients work = gradients;
  const std::size_t width = work.vectors.width;
  for (std::size_t example = work.begin; example < work.end; ++example) {
    const std::size_t floats = work.vectors.count * width;
    const std::size_t first = example * floats;
    // Lines that another processor may have: see WirePool::fetch_out.
    for (std::size_t at = 0; at < floats; at += kLineBytes / sizeof(float)) prefetch_for_write(work.out + first + at);
    for_each_columns(width, [&](std::size_t at, auto columns) {
      const Block<columns> together(work.together + example * width + at);
      const Block<columns> grad(work.grads + example * width + at);
      std::size_t place = first + at;
      for (std::size_t i = 0; i < work.vectors.count; ++i, place += width) {
        Block<columns> sum = together.less(Block<columns>(work.vectors.data + place)).times(grad);
        if (work.others != nullptr) sum.add(Block<columns>(work.others + place));
        sum.store(work.out + place);
      }
    });
  }
}

}  // namespace
}  // namespace engine
