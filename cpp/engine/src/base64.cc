// base64.cc: four signs at a time through one table.
#include "engine/base64.h"

#include <array>
#include <cstdint>

namespace engine {
namespace {

constexpr std::uint32_t kNone = 0x80;  // beyond the six bits of a sign

constexpr std::array<std::uint8_t, 256> make_values() {
  std::array<std::uint8_t, 256> values{};
  values.fill(kNone);
  constexpr std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (std::size_t i = 0; i < alphabet.size(); ++i) {
    values[static_cast<unsigned char>(alphabet[i])] = static_cast<std::uint8_t>(i);
  }
  return values;
}

constexpr auto kValues = make_values();

std::uint32_t value_of(char sign) { return kValues[static_cast<unsigned char>(sign)]; }

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
    const std::uint32_t a = value_of(text[i]), b = value_of(text[i + 1]), c = value_of(text[i + 2]),
                        d = value_of(text[i + 3]);
    seen |= a | b | c | d;
    const std::uint32_t bits = a << 18 | b << 12 | c << 6 | d;
    *out++ = static_cast<std::byte>(bits >> 16);
    *out++ = static_cast<std::byte>(bits >> 8);
    *out++ = static_cast<std::byte>(bits);
  }
  if (padded != 0) {
    const std::uint32_t a = value_of(text[whole]), b = value_of(text[whole + 1]);
    const std::uint32_t c = padded == 1 ? value_of(text[whole + 2]) : 0;
    seen |= a | b | c;
    const std::uint32_t bits = a << 18 | b << 12 | c << 6;
    *out++ = static_cast<std::byte>(bits >> 16);
    if (padded == 1) *out++ = static_cast<std::byte>(bits >> 8);
  }
  return (seen & kNone) == 0;
}

}  // namespace engine
