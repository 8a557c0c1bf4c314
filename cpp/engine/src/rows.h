// rows.h: the few loops over a row's floats that every batched call is made of.
#pragma once

#include <cstddef>
#include <limits>
#include <type_traits>

#include "engine/pages.h"

namespace engine {

[[gnu::always_inline]] inline void prefetch(const void* address) noexcept { __builtin_prefetch(address, 0, 3); }

// Fetches the lines of the first `bytes` of a row.
[[gnu::always_inline]] inline void prefetch_row(const std::byte* row, std::size_t bytes) noexcept {
  for (std::size_t at = 0; at < bytes; at += kLineBytes) prefetch(row + at);
}

// A row width known at run time; std::integral_constant is one known to the compiler, which then unrolls.
struct AnyWidth {
  std::size_t value;
};

template <class Width>
inline void copy_row(float* __restrict out, const float* __restrict row, Width width) noexcept {
  for (std::size_t i = 0; i < width.value; ++i) out[i] = row[i];
}

template <class Width>
inline void add_row(float* __restrict out, const float* __restrict row, Width width) noexcept {
  for (std::size_t i = 0; i < width.value; ++i) out[i] += row[i];
}

inline void scale_row(float* out, float factor, std::size_t width) noexcept {
  for (std::size_t i = 0; i < width; ++i) out[i] *= factor;
}

// "Almost zero" of the original: the squared norm is below the smallest normal float.
inline bool is_zero_row(const float* values, std::size_t count) noexcept {
  float squares = 0.0F;
  for (std::size_t i = 0; i < count; ++i) squares += values[i] * values[i];
  return squares < std::numeric_limits<float>::min();
}

// Calls work(width) with a compile-time width for the usual dims.
template <class Work>
inline void with_width(std::size_t width, Work&& work) {
  switch (width) {
    case 1:
      return work(std::integral_constant<std::size_t, 1>{});
    case 4:
      return work(std::integral_constant<std::size_t, 4>{});
    case 8:
      return work(std::integral_constant<std::size_t, 8>{});
    case 16:
      return work(std::integral_constant<std::size_t, 16>{});
    case 32:
      return work(std::integral_constant<std::size_t, 32>{});
    case 64:
      return work(std::integral_constant<std::size_t, 64>{});
    default:
      return work(AnyWidth{width});
  }
}

}  // namespace engine
