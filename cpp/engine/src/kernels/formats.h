// formats.h: kernels of the serving formats. Included by kernels only, hence unnamed.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/half.h"

namespace engine {
namespace {

// Halves are copied in and out byte-wise: slices lie one after the other, at any address.
[[gnu::flatten]] void encode_half_values(const float* values, std::byte* out, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint16_t half = half_from_float(values[i]);
    std::memcpy(out + i * sizeof(half), &half, sizeof(half));
  }
}

[[gnu::flatten]] void decode_half_values(const std::byte* in, float* values, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t half = 0;
    std::memcpy(&half, in + i * sizeof(half), sizeof(half));
    values[i] = float_from_half(half);
  }
}

// The nearest of 256 levels, halves away from zero; NaN gives 0. Clamped first: a float outside int is undefined.
[[gnu::always_inline]] inline std::int8_t level_of(float value, float step) noexcept {
  float steps = (value + std::copysign(step / 2.0F, value)) / step;
  steps = steps > 127.0F ? 127.0F : steps;
  steps = steps < -128.0F ? -128.0F : steps;
  steps = std::isnan(steps) ? 0.0F : steps;
  return static_cast<std::int8_t>(static_cast<std::int32_t>(steps));
}

[[gnu::flatten]] void encode_level_values(const float* values, std::byte* out, std::size_t count, float step) noexcept {
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::byte>(level_of(values[i], step));
}

[[gnu::flatten]] void decode_level_values(const std::byte* in, float* values, std::size_t count, float step) noexcept {
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(static_cast<std::int8_t>(in[i])) * step;
}

// `out` may be `values`.
[[gnu::flatten]] void round_to_level_values(const float* values, float* out, std::size_t count, float step) noexcept {
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<float>(level_of(values[i], step)) * step;
}

}  // namespace
}  // namespace engine
