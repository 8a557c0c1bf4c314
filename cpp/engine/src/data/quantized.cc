// quantized.cc: reads the packed vectors; docs/reference/records.md has the layout.
#include "engine/data/quantized.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

#include "engine/half.h"

namespace engine::data {

namespace {

constexpr std::string_view kMark = "UE_QTZ";
constexpr std::size_t kShort = 4;  // vectors of up to so many values are plain half floats

std::uint16_t load_half(const std::byte* at) noexcept {
  std::uint16_t half = 0;
  std::memcpy(&half, at, sizeof half);
  return half;
}

// The encoder cut the low bits off; half of the last bit restores the average loss.
float decode_cut_half(std::uint16_t half) noexcept {
  if ((half & 0x7fffU) == 0) return 0.0F;
  const float value = std::clamp(float_from_half(half), -kHalfMax, kHalfMax);
  const int exponent = (half >> 10) & 0x1f;
  if (exponent == 0x1f) return value;
  return value + std::copysign(std::ldexp(1.0F, exponent - 26), value);
}

}  // namespace

bool has_quantized_prefix(Bytes text) noexcept {
  return text.size() >= kMark.size() && std::memcmp(text.data(), kMark.data(), kMark.size()) == 0;
}

bool decode_quantized(Bytes text, std::span<float> values) noexcept {
  const Bytes body = text.subspan(kMark.size());
  const std::size_t count = values.size();
  if (count <= kShort) {
    if (body.size() != 2 * count) return false;
    for (std::size_t i = 0; i < count; ++i) values[i] = decode_cut_half(load_half(body.data() + 2 * i));
    return true;
  }
  if (body.size() != 4 + count) return false;
  const float least = float_from_half(load_half(body.data()));
  const float greatest = float_from_half(load_half(body.data() + 2));
  const float step = (greatest - least) / 255.0F;
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = least + static_cast<float>(std::to_integer<unsigned>(body[4 + i])) * step;
  }
  return true;
}

}  // namespace engine::data
