// varints.h: packed varints, eight bytes at a time. Private to the data engine.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/data/records.h"
#include "wire.h"

namespace engine::data::varints {

static_assert(std::endian::native == std::endian::little);

// The continuation bit of each of eight bytes.
inline constexpr std::uint64_t kMore = 0x8080808080808080;

// `size` bytes from 1 to 8 as one word, zero above.
inline std::uint64_t load(const std::byte* at, std::size_t size) noexcept {
  const auto get = [at]<typename Word>(Word word, std::size_t offset) {
    std::memcpy(&word, at + offset, sizeof word);
    return std::uint64_t{word};
  };
  if (size >= 8) return get(std::uint64_t{}, 0);
  if (size >= 4) return get(std::uint32_t{}, 0) | get(std::uint32_t{}, size - 4) << (8 * (size - 4));
  return get(std::uint8_t{}, 0) | get(std::uint8_t{}, size / 2) << (8 * (size / 2)) |
         get(std::uint8_t{}, size - 1) << (8 * (size - 1));
}

// The number below 2^56 as a varint of `size` bytes; bytes above them are zero. The reverse of `for_each`.
inline std::uint64_t spread(std::uint64_t value, std::size_t size) noexcept {
  value = (value & 0x000000000fffffff) | (value & 0x00fffffff0000000) << 4;
  value = (value & 0x00003fff00003fff) | (value & 0x0fffc0000fffc000) << 2;
  value = (value & 0x007f007f007f007f) | (value & 0x3f803f803f803f80) << 1;
  return value | (kMore & ((std::uint64_t{1} << (8 * (size - 1))) - 1));
}

inline std::size_t count(Bytes bytes) noexcept {
  std::size_t numbers = 0;
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    const std::size_t left = bytes.size() - at;
    const std::uint64_t used = left >= 8 ? kMore : kMore >> (64 - 8 * left);
    numbers += static_cast<std::size_t>(std::popcount(~load(bytes.data() + at, left) & used));
  }
  return numbers;
}

// Whether all numbers are whole and none has more than nine bytes; false only means that a closer look is needed.
inline bool are_plain(Bytes bytes) noexcept {
  std::size_t run = 0;  // bytes of a number that has not ended
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    const std::size_t left = bytes.size() - at;
    const std::uint64_t used = left >= 8 ? kMore : kMore >> (64 - 8 * left);
    const std::uint64_t ends = ~load(bytes.data() + at, left) & used;
    if (ends == 0) return false;
    run += static_cast<std::size_t>(std::countr_zero(ends)) / 8;
    if (run > 8) return false;
    run = static_cast<std::size_t>(std::countl_zero(ends) - std::countl_zero(used)) / 8;
  }
  return run == 0;
}

// The only number of at most eight bytes; false for several numbers, none, or a longer one.
inline bool single(Bytes bytes, std::int64_t& number) noexcept {
  if (bytes.empty() || bytes.size() > 8) return false;
  const std::uint64_t word = load(bytes.data(), bytes.size());
  const std::uint64_t ends = ~word & kMore;
  if (static_cast<std::size_t>(std::countr_zero(ends)) + 1 != bytes.size() * 8) return false;
  std::uint64_t value = word & ~kMore;
  value = (value & 0x007f007f007f007f) | (value & 0x7f007f007f007f00) >> 1;
  value = (value & 0x00003fff00003fff) | (value & 0x3fff00003fff0000) >> 2;
  value = (value & 0x000000000fffffff) | (value & 0x0fffffff00000000) >> 4;
  number = static_cast<std::int64_t>(value);
  return true;
}

// Calls `use` with each number; the bytes were checked.
template <typename Use>
void for_each(Bytes bytes, Use&& use) {
  const std::byte* at = bytes.data();
  const std::byte* const end = at + bytes.size();
  while (at != end) {
    const std::uint64_t word = load(at, static_cast<std::size_t>(end - at));
    const std::uint64_t ends = ~word & kMore;
    if (ends == 0) [[unlikely]] {  // nine or ten bytes
      wire::Reader reader({at, end});
      use(reader.varint());
      at = reader.at();
      continue;
    }
    const auto bits = static_cast<unsigned>(std::countr_zero(ends)) + 1;  // 8, 16, ... 64
    std::uint64_t value = word & (~std::uint64_t{0} >> (64 - bits)) & ~kMore;
    // Seven bits of each byte, then 14 of each pair, then 28 of each half, closed up.
    value = (value & 0x007f007f007f007f) | (value & 0x7f007f007f007f00) >> 1;
    value = (value & 0x00003fff00003fff) | (value & 0x3fff00003fff0000) >> 2;
    value = (value & 0x000000000fffffff) | (value & 0x0fffffff00000000) >> 4;
    use(value);
    at += bits / 8;
  }
}

}  // namespace engine::data::varints
