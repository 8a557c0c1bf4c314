// text_numbers.h: numbers in text. Private to the data engine.
#pragma once

#include <bit>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>
#include <system_error>

namespace engine::data::text {

inline bool is_digit(char c) noexcept { return static_cast<unsigned char>(c - '0') < 10; }

// A decimal number as it was scanned: mantissa x 10^exponent.
struct Decimal {
  std::uint64_t mantissa = 0;  // the first 19 digits
  std::int32_t exponent = 0;
  std::int32_t digits = 0;  // significant ones
  bool is_negative = false;
  bool is_integer = true;  // neither a point nor an exponent
  const char* end = nullptr;

  [[nodiscard]] bool is_whole_mantissa() const noexcept { return digits <= 19; }
};

inline constexpr std::int32_t kMostExponent = 100'000;

// Scans digits into the decimal; returns where they end.
inline const char* scan_digits(const char* at, const char* end, Decimal& number, std::int32_t step) noexcept {
  // Few digits behind a digit that counts: neither leading zeros nor too many digits are possible.
  if (end - at <= 18 && number.digits == 0 && at != end && *at != '0') {
    const char* const begin = at;
    std::uint64_t mantissa = 0;
    for (; at != end && is_digit(*at); ++at) mantissa = mantissa * 10 + static_cast<std::uint64_t>(*at - '0');
    number.mantissa = mantissa;
    number.digits = static_cast<std::int32_t>(at - begin);
    number.exponent += step * number.digits;
    return at;
  }
  for (; at != end && is_digit(*at); ++at) {
    const auto digit = static_cast<std::uint64_t>(*at - '0');
    if (number.digits == 0 && digit == 0) {  // a leading zero
      if (number.exponent > -kMostExponent) number.exponent += step;
      continue;
    }
    if (number.digits < 19) {
      number.mantissa = number.mantissa * 10 + digit;
      number.exponent += step;
    } else if (number.exponent < kMostExponent) {
      number.exponent += step + 1;
    }
    if (number.digits < kMostExponent) ++number.digits;
  }
  return at;
}

// Scans a number. JSON: no leading plus or zero, a digit on both sides of a point. Otherwise one digit is enough. False
// when there is no number at the beginning.
template <bool kJson>
bool scan_decimal(const char* at, const char* end, Decimal& number) noexcept {
  number = {};
  if (at != end && *at == '-') {
    number.is_negative = true;
    ++at;
  } else if (!kJson && at != end && *at == '+') {
    ++at;
  }
  const char* const whole = at;
  at = scan_digits(at, end, number, 0);
  const auto whole_digits = at - whole;
  if (kJson && (whole_digits == 0 || (whole_digits > 1 && *whole == '0'))) return false;
  std::ptrdiff_t part_digits = 0;
  if (at != end && *at == '.') {
    const char* const part = at + 1;
    at = scan_digits(part, end, number, -1);
    part_digits = at - part;
    if (kJson && part_digits == 0) return false;
    number.is_integer = false;
  }
  if (whole_digits + part_digits == 0) return false;
  if (at != end && (*at | 0x20) == 'e') {
    const char* mark = at + 1;
    const bool is_below = mark != end && *mark == '-';
    if (mark != end && (*mark == '-' || *mark == '+')) ++mark;
    if (mark == end || !is_digit(*mark)) return false;
    std::int32_t power = 0;
    for (; mark != end && is_digit(*mark); ++mark) {
      if (power < kMostExponent) power = power * 10 + (*mark - '0');
    }
    number.exponent += is_below ? -power : power;
    number.is_integer = false;
    at = mark;
  }
  number.end = at;
  return true;
}

// Powers that a double holds exactly.
inline constexpr double kPowers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                     1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

// A number of few digits without an exponent, which most are; false for any other text.
inline bool parse_short_real(std::string_view text, double& value) noexcept {
  constexpr std::size_t kMost = 17;
  const std::size_t sign = text.starts_with('-') ? 1 : 0;
  if (text.size() > kMost) return false;
  std::uint64_t mantissa = 0;
  std::size_t behind_point = 0;  // of the first digit of the fraction; 0 = no point
  for (std::size_t at = sign; at < text.size(); ++at) {
    const auto digit = static_cast<unsigned char>(text[at] - '0');
    if (digit < 10) {
      mantissa = mantissa * 10 + digit;
    } else if (text[at] == '.' && behind_point == 0) {
      behind_point = at + 1;
    } else {
      return false;
    }
  }
  const std::size_t digits = text.size() - sign - (behind_point == 0 ? 0 : 1);
  if (digits == 0 || mantissa > std::uint64_t{1} << 53) return false;
  const auto whole = static_cast<double>(mantissa);
  const double size = behind_point == 0 ? whole : whole / kPowers[text.size() - behind_point];
  value = sign == 0 ? size : -size;
  return true;
}

// The double nearest to a scanned number; `text` is where it was scanned.
inline double to_double(const Decimal& number, std::string_view text) noexcept {
  // Both factors are exact, so that one rounding is the right one.
  if (number.mantissa <= std::uint64_t{1} << 53 && number.is_whole_mantissa() && number.exponent >= -22 &&
      number.exponent <= 22) [[likely]] {
    const auto whole = static_cast<double>(number.mantissa);
    const double value = number.exponent < 0 ? whole / kPowers[-number.exponent] : whole * kPowers[number.exponent];
    return number.is_negative ? -value : value;
  }
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  static_cast<void>(at);
  if (error == std::errc::result_out_of_range) {
    value = number.exponent + number.digits > 0 ? std::numeric_limits<double>::infinity() : 0;
    return number.is_negative ? -value : value;
  }
  return value;
}

// Unsigned digits, all of them; false for other text, and beyond 64 bits.
inline bool parse_digits(std::string_view text, std::uint64_t& value) noexcept {
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && at == text.data() + text.size() && !text.empty();
}

inline constexpr std::uint64_t kZeroDigits = 0x3030303030303030;

// One to eight characters at `at`, behind zeros that fill the eight. Eight bytes may be read there.
inline std::uint64_t load_short(const char* at, std::size_t size) noexcept {
  std::uint64_t word;
  std::memcpy(&word, at, 8);
  return size < 8 ? word << (64 - 8 * size) | kZeroDigits >> (8 * size) : word;
}

// The number that eight digits spell; false for other characters.
inline bool join_digits(std::uint64_t word, std::uint64_t& value) noexcept {
  const std::uint64_t digits = word ^ kZeroDigits;
  if (((digits | (digits + 0x0606060606060606)) & 0xf0f0f0f0f0f0f0f0) != 0) return false;
  // Neighbours are joined: two digits in each pair of bytes, then four, then eight.
  const std::uint64_t twos = (digits * 10 + (digits >> 8)) & 0x00ff00ff00ff00ff;
  const std::uint64_t fours = (twos * 100 + (twos >> 16)) & 0x0000ffff0000ffff;
  value = (fours * 10'000 + (fours >> 32)) & 0xffffffff;
  return true;
}

// One to eight digits at `at`, where eight bytes may be read.
inline bool parse_short_digits(const char* at, std::size_t size, std::uint64_t& value) noexcept {
  return join_digits(load_short(at, size), value);
}

// One to eight digits with at most one point among them, at `at`, where eight bytes may be read.
inline bool parse_short_decimal(const char* at, std::size_t size, double& value) noexcept {
  constexpr std::uint64_t kOnes = 0x0101010101010101;
  std::uint64_t word = load_short(at, size);
  const std::uint64_t others = word ^ kOnes * '.';
  const std::uint64_t points = (others - kOnes) & ~others & kOnes << 7;  // the lowest bit is right
  std::size_t behind = 0;                                                // digits behind the point
  if (points != 0) {
    if (size == 1) return false;
    // Digits before the point move over it.
    const auto shift = static_cast<unsigned>(std::countr_zero(points)) - 7;
    const std::uint64_t before = (std::uint64_t{1} << shift) - 1;
    word = (word & ~(before << 8 | 0xff)) | (word & before) << 8 | '0';
    behind = 7 - shift / 8;
  }
  std::uint64_t mantissa = 0;
  if (!join_digits(word, mantissa)) return false;
  value = static_cast<double>(mantissa) / kPowers[behind];  // both are exact: one rounding
  return true;
}

}  // namespace engine::data::text
