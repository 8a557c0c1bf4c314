// half.h: IEEE half precision (fp16) as 16 bits, in portable code that compilers turn into vectors.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace engine {

inline constexpr float kHalfMax = 65504.0F;
inline constexpr float kHalfMinNormal = 0x1p-14F;

// Keeps NaN.
inline float clamp_to_half_range(float magnitude) noexcept { return magnitude > kHalfMax ? kHalfMax : magnitude; }

// Rounds to nearest, ties to even. A value that is too large, infinity included, becomes +-65504: one infinite weight
// would poison every score it takes part in. NaN stays NaN.
inline std::uint16_t half_from_float(float value) noexcept {
  const auto sign = (std::bit_cast<std::uint32_t>(value) >> 16) & 0x8000U;
  const float magnitude = clamp_to_half_range(std::abs(value));
  const auto bits = std::bit_cast<std::uint32_t>(magnitude);
  // Rebase the exponent from 127 to 15 and round away the low 13 bits; the odd bit breaks ties to even.
  const std::uint32_t normal = (bits - (112U << 23) + 0xfffU + ((bits >> 13) & 1U)) >> 13;
  // The sum's last bit is worth 2^-24, as a subnormal half's is: the addition does the rounding.
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(magnitude + 0.5F) - std::bit_cast<std::uint32_t>(0.5F);
  const std::uint32_t number = magnitude < kHalfMinNormal ? subnormal : normal;
  return static_cast<std::uint16_t>(sign | (bits > 0x7f800000U ? 0x7e00U : number));
}

inline float float_from_half(std::uint16_t half) noexcept {
#if defined(__aarch64__)
  return static_cast<float>(std::bit_cast<__fp16>(half));  // an instruction of every such processor
#else
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t shifted = (half & 0x7fffU) << 13;
  const std::uint32_t normal = shifted + (112U << 23);
  const std::uint32_t special = shifted + (224U << 23);  // infinity and NaN
  // 2^-14 + mantissa * 2^-24, less the 2^-14: no subnormal float is touched, which some processors read as 0.
  const float subnormal = std::bit_cast<float>(shifted + (113U << 23)) - kHalfMinNormal;
  const std::uint32_t finite = shifted < (1U << 23) ? std::bit_cast<std::uint32_t>(subnormal) : normal;
  return std::bit_cast<float>(sign | (shifted >= (31U << 23) ? special : finite));
#endif
}

// One of the two fp16 values around `value`, as a float: the one further from 0 when `draw`, uniform in [0, 1),
// falls below the share of the gap already covered. fp16 values are kept, so is NaN; beyond +-65504 is clamped.
inline float round_to_half(float value, float draw) noexcept {
  const float magnitude = clamp_to_half_range(std::abs(value));
  // Half values are 2^-10 of their power of two apart, below the smallest normal one 2^-24. Exact from here on.
  const float floor_power = std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) & 0x7f800000U);
  const float spacing = (floor_power < kHalfMinNormal ? kHalfMinNormal : floor_power) * 0x1p-10F;
  const float position = magnitude / spacing;
  const float below = std::floor(position);
  const float rounded = (draw < position - below ? below + 1.0F : below) * spacing;
  return std::copysign(rounded, value);
}

// The same for many values; bytes have any alignment. Throws as kernel_level() does.
void encode_halves(const float* values, std::byte* out, std::size_t count);
void decode_halves(const std::byte* in, float* values, std::size_t count);

}  // namespace engine
