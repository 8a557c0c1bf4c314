// tiny_segment.h: the worked example of the format: a segment of two batches and three records.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "eventlog/format.h"

namespace eventlog {

inline std::vector<std::byte> from_hex(std::string_view text) {
  std::vector<std::byte> bytes;
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::string digits;
  for (const char c : text) {
    if (c != ' ') digits += c;
  }
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(digit(digits[i]) * 16 + digit(digits[i + 1])));
  }
  return bytes;
}

inline constexpr std::uint64_t kTinyLog = 0x1122334455667788;
inline constexpr std::int64_t kTinyMs = 1'700'000'000'000;

inline std::vector<std::byte> tiny_header() {
  return from_hex(
      "4d4c4f4753454731 0100400000000000 0000000000000000 8877665544332211"
      "0000000001000000 0068e5cf8b010000 0100000000000000 000000000acdf0d2");
}

inline std::vector<std::byte> tiny_first() {
  return from_hex(
      "4d42543117000000 0000000000000000 0100000001000000 0068e5cf8b010000"
      "0a68e5cf8b010000 0000000000000000 0000000000000000 e9309c147f179e07"
      "0200000005000000 0068e5cf8b010000 6b3168656c6c6f");
}

inline std::vector<std::byte> tiny_second() {
  return from_hex(
      "4d42543125000000 0100000000000000 0200000001000000 e86be5cf8b010000"
      "fc6be5cf8b010000 0700000000000000 0100000000000000 771e380f754855c9"
      "0200000001000000 e86be5cf8b010000 6b32610000000002 000000f469e5cf8b"
      "0100006263");
}

inline std::vector<std::byte> tiny_segment() {
  std::vector<std::byte> segment = tiny_header();
  for (const auto& batch : {tiny_first(), tiny_second()}) segment.insert(segment.end(), batch.begin(), batch.end());
  return segment;
}

}  // namespace eventlog
