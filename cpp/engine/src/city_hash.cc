// city_hash.cc: our own rendering of the published CityHash64 v1.1 algorithm (Pike and Alakuijala, 2011).
#include "engine/city_hash.h"

#include <bit>
#include <cstring>
#include <utility>

namespace engine {
namespace {

constexpr std::uint64_t kPrime0 = 0xc3a5c85c97cb3127ULL;
constexpr std::uint64_t kPrime1 = 0xb492b66fbe98f273ULL;
constexpr std::uint64_t kPrime2 = 0x9ae16a3b2f90404fULL;
constexpr std::uint64_t kPairPrime = 0x9ddfea08eb382d69ULL;

using Pair = std::pair<std::uint64_t, std::uint64_t>;

inline std::uint64_t word64(const char* bytes) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

inline std::uint32_t word32(const char* bytes) noexcept {
  std::uint32_t word = 0;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

inline std::uint64_t rotate(std::uint64_t value, int bits) noexcept { return std::rotr(value, bits); }
inline std::uint64_t fold(std::uint64_t value) noexcept { return value ^ (value >> 47); }
inline std::uint64_t swap_bytes(std::uint64_t value) noexcept { return __builtin_bswap64(value); }

inline std::uint64_t combine(std::uint64_t low, std::uint64_t high, std::uint64_t factor = kPairPrime) noexcept {
  const std::uint64_t a = fold((low ^ high) * factor);
  return fold((high ^ a) * factor) * factor;
}

std::uint64_t up_to_16(const char* bytes, std::size_t size) noexcept {
  const std::uint64_t factor = kPrime2 + size * 2;
  if (size >= 8) {
    const std::uint64_t a = word64(bytes) + kPrime2;
    const std::uint64_t b = word64(bytes + size - 8);
    return combine(rotate(b, 37) * factor + a, (rotate(a, 25) + b) * factor, factor);
  }
  if (size >= 4) {
    return combine(size + (std::uint64_t{word32(bytes)} << 3), word32(bytes + size - 4), factor);
  }
  if (size == 0) return kPrime2;
  const auto byte = [bytes](std::size_t i) { return std::uint32_t{static_cast<unsigned char>(bytes[i])}; };
  const std::uint32_t front = byte(0) + (byte(size >> 1) << 8);
  const std::uint32_t back = static_cast<std::uint32_t>(size) + (byte(size - 1) << 2);
  return fold(front * kPrime2 ^ back * kPrime0) * kPrime2;
}

std::uint64_t up_to_32(const char* bytes, std::size_t size) noexcept {
  const std::uint64_t factor = kPrime2 + size * 2;
  const std::uint64_t a = word64(bytes) * kPrime1;
  const std::uint64_t b = word64(bytes + 8);
  const std::uint64_t c = word64(bytes + size - 8) * factor;
  const std::uint64_t d = word64(bytes + size - 16) * kPrime2;
  return combine(rotate(a + b, 43) + rotate(c, 30) + d, a + rotate(b + kPrime2, 18) + c, factor);
}

std::uint64_t up_to_64(const char* bytes, std::size_t size) noexcept {
  const std::uint64_t factor = kPrime2 + size * 2;
  const std::uint64_t a = word64(bytes) * kPrime2;
  const std::uint64_t b = word64(bytes + 8);
  const std::uint64_t c = word64(bytes + size - 24);
  const std::uint64_t d = word64(bytes + size - 32);
  const std::uint64_t e = word64(bytes + 16) * kPrime2;
  const std::uint64_t f = word64(bytes + 24) * 9;
  const std::uint64_t g = word64(bytes + size - 8);
  const std::uint64_t h = word64(bytes + size - 16) * factor;
  const std::uint64_t u = rotate(a + g, 43) + (rotate(b, 30) + c) * 9;
  const std::uint64_t v = ((a + g) ^ d) + f + 1;
  const std::uint64_t w = swap_bytes((u + v) * factor) + h;
  const std::uint64_t x = rotate(e + f, 42) + c;
  const std::uint64_t y = (swap_bytes((v + w) * factor) + g) * factor;
  const std::uint64_t z = e + f + c;
  const std::uint64_t mixed = swap_bytes((x + z) * factor + y) + b;
  return fold((z + mixed) * factor + d + h) * factor + x;
}

// 32 bytes and two seeds to 16 bytes; cheap, and only good enough inside the main loop.
inline Pair weak_32(const char* bytes, std::uint64_t a, std::uint64_t b) noexcept {
  const std::uint64_t last = word64(bytes + 24);
  a += word64(bytes);
  b = rotate(b + a + last, 21);
  const std::uint64_t before = a;
  a += word64(bytes + 8) + word64(bytes + 16);
  b += rotate(a, 44);
  return {a + last, b + before};
}

std::uint64_t above_64(const char* bytes, std::size_t size) noexcept {
  const char* end = bytes + size;
  std::uint64_t x = word64(end - 40);
  std::uint64_t y = word64(end - 16) + word64(end - 56);
  std::uint64_t z = combine(word64(end - 48) + size, word64(end - 24));
  Pair v = weak_32(end - 64, size, z);
  Pair w = weak_32(end - 32, y + kPrime1, x);
  x = x * kPrime1 + word64(bytes);
  // Whole blocks of 64; the last 64 bytes, which may overlap them, went into v, w, x, y and z above.
  for (std::size_t blocks = (size - 1) / 64; blocks > 0; --blocks, bytes += 64) {
    x = rotate(x + y + v.first + word64(bytes + 8), 37) * kPrime1;
    y = rotate(y + v.second + word64(bytes + 48), 42) * kPrime1;
    x ^= w.second;
    y += v.first + word64(bytes + 40);
    z = rotate(z + w.first, 33) * kPrime1;
    v = weak_32(bytes, v.second * kPrime1, x + w.first);
    w = weak_32(bytes + 32, z + w.second, y + word64(bytes + 16));
    std::swap(z, x);
  }
  return combine(combine(v.first, w.first) + fold(y) * kPrime1 + z, combine(v.second, w.second) + x);
}

}  // namespace

std::uint64_t city_hash64(const void* data, std::size_t size) noexcept {
  const char* bytes = static_cast<const char*>(data);
  if (size <= 16) return up_to_16(bytes, size);
  if (size <= 32) return up_to_32(bytes, size);
  if (size <= 64) return up_to_64(bytes, size);
  return above_64(bytes, size);
}

}  // namespace engine
