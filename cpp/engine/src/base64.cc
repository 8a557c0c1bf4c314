// base64.cc: four signs at a time, each through a table of the bits it adds to their three bytes.
#include "engine/base64.h"

#include <array>
#include <cstdint>

namespace engine {
namespace {

constexpr std::uint32_t kNone = 1U << 31;  // beyond the three bytes

// Bits that a sign adds, by its place among four.
constexpr std::array<std::uint32_t, 256> make_values(int place) {
  std::array<std::uint32_t, 256> values{};
  values.fill(kNone);
  constexpr std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (std::size_t i = 0; i < alphabet.size(); ++i) {
    values[static_cast<unsigned char>(alphabet[i])] = static_cast<std::uint32_t>(i) << (18 - 6 * place);
  }
  return values;
}

constexpr std::array kValues{make_values(0), make_values(1), make_values(2), make_values(3)};

template <std::size_t kPlace>
std::uint32_t value_of(char sign) {
  return kValues[kPlace][static_cast<unsigned char>(sign)];
}

std::size_t padding(std::string_view text) {
  if (!text.ends_with('=')) return 0;
  return text.ends_with("==") ? 2 : 1;
}

}  // namespace

std::optional<std::size_t> base64_size(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  return text.size() / 4 * 3 - padding(text);
}

bool decode_base64(std::string_view text, std::byte* out) {
  const std::size_t padded = padding(text);
  const std::size_t whole = (text.size() - padded) / 4 * 4;
  std::uint32_t seen = 0;
  for (std::size_t i = 0; i < whole; i += 4) {
    const std::uint32_t bits =
        value_of<0>(text[i]) | value_of<1>(text[i + 1]) | value_of<2>(text[i + 2]) | value_of<3>(text[i + 3]);
    seen |= bits;
    *out++ = static_cast<std::byte>(bits >> 16);
    *out++ = static_cast<std::byte>(bits >> 8);
    *out++ = static_cast<std::byte>(bits);
  }
  if (padded != 0) {
    const std::uint32_t last = padded == 1 ? value_of<2>(text[whole + 2]) : 0;
    const std::uint32_t bits = value_of<0>(text[whole]) | value_of<1>(text[whole + 1]) | last;
    seen |= bits;
    *out++ = static_cast<std::byte>(bits >> 16);
    if (padded == 1) *out++ = static_cast<std::byte>(bits >> 8);
  }
  return (seen & kNone) == 0;
}

}  // namespace engine
