// rows.h: the few loops over a row's floats that every batched call is made of.
#pragma once

#include <cstddef>
#include <cstring>
#include <limits>
#include <type_traits>

#include "engine/bags.h"
#include "engine/pages.h"

namespace engine {

[[gnu::always_inline]] inline void prefetch(const void* address) noexcept { __builtin_prefetch(address, 0, 3); }

// Fetches a line that will be written, so that no other processor keeps it.
[[gnu::always_inline]] inline void prefetch_for_write(const void* address) noexcept {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(address)));
#else
  __builtin_prefetch(address, 1, 3);
#endif
}

// Fetches the lines of the first `bytes` of a row.
[[gnu::always_inline]] inline void prefetch_row(const void* row, std::size_t bytes) noexcept {
  for (std::size_t at = 0; at < bytes; at += kLineBytes) prefetch(static_cast<const std::byte*>(row) + at);
}

// Rows between the fetch of a row and its use.
inline constexpr std::size_t kAhead = 16;

// A row width known at run time; std::integral_constant is one known to the compiler, which then unrolls.
struct AnyWidth {
  std::size_t value;
};

// Four floats at a time. Copied in and out, so that the compiler need not prove that rows do not overlap.
using Four = float __attribute__((vector_size(16)));

template <class Width>
inline void copy_row(float* out, const float* row, Width width) noexcept {
  std::memcpy(out, row, width.value * sizeof(float));
}

template <class Width>
inline void add_row(float* out, const float* row, Width width) noexcept {
  const std::size_t whole = width.value / 4 * 4;
  for (std::size_t i = 0; i < whole; i += 4) {
    Four sum;
    Four four;
    std::memcpy(&sum, out + i, sizeof sum);
    std::memcpy(&four, row + i, sizeof four);
    sum += four;
    std::memcpy(out + i, &sum, sizeof sum);
  }
  for (std::size_t i = whole; i < width.value; ++i) out[i] += row[i];
}

inline void scale_row(float* out, float factor, std::size_t width) noexcept {
  for (std::size_t i = 0; i < width; ++i) out[i] *= factor;
}

// Turns the sums of bags into means: each bag's row divided by the bag's length.
inline void divide_by_length(const Bags& bags, UnitRange units, float* rows, std::size_t dim) noexcept {
  for (std::size_t bag = units.begin; bag < units.end; ++bag) {
    const auto length = static_cast<float>(bags.offsets[bag + 1] - bags.offsets[bag]);
    if (length > 1) scale_row(rows + bag * dim, 1.0F / length, dim);
  }
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
    // A vector and a bias in one row.
    case 9:
      return work(std::integral_constant<std::size_t, 9>{});
    case 17:
      return work(std::integral_constant<std::size_t, 17>{});
    case 33:
      return work(std::integral_constant<std::size_t, 33>{});
    case 65:
      return work(std::integral_constant<std::size_t, 65>{});
    default:
      return work(AnyWidth{width});
  }
}

}  // namespace engine
