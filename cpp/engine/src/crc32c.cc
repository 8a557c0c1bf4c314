// crc32c.cc: three interleaved hardware streams where possible, slicing-by-8 tables elsewhere.
#include "engine/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#if defined(__clang__)
#define ENGINE_CRC_TARGET __attribute__((target("crc")))
#else
#define ENGINE_CRC_TARGET __attribute__((target("+crc")))
#endif
#elif defined(__x86_64__)
#include <nmmintrin.h>
#define ENGINE_CRC_TARGET __attribute__((target("sse4.2")))
#endif

namespace engine {
namespace {

static_assert(std::endian::native == std::endian::little, "the engine reads files as little-endian words");

constexpr std::uint32_t kPolynomial = 0x82f63b78U;  // reflected

using Table = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Table make_slicing_table() {
  Table table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1U) != 0 ? (crc >> 1) ^ kPolynomial : crc >> 1;
    table[0][byte] = crc;
  }
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    for (std::size_t k = 1; k < 8; ++k)
      table[k][byte] = (table[k - 1][byte] >> 8) ^ table[0][table[k - 1][byte] & 0xffU];
  }
  return table;
}

constexpr Table kSlicing = make_slicing_table();

inline std::uint64_t load64(const unsigned char* bytes) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

// Without the leading and trailing inversion, like every function of the form `raw_*` below.
std::uint32_t raw_portable(std::uint32_t crc, const unsigned char* bytes, std::size_t size) noexcept {
  while (size >= 8) {
    const std::uint64_t word = load64(bytes) ^ crc;
    crc = kSlicing[7][word & 0xff] ^ kSlicing[6][(word >> 8) & 0xff] ^ kSlicing[5][(word >> 16) & 0xff] ^
          kSlicing[4][(word >> 24) & 0xff] ^ kSlicing[3][(word >> 32) & 0xff] ^ kSlicing[2][(word >> 40) & 0xff] ^
          kSlicing[1][(word >> 48) & 0xff] ^ kSlicing[0][word >> 56];
    bytes += 8;
    size -= 8;
  }
  for (; size > 0; --size) crc = (crc >> 8) ^ kSlicing[0][(crc ^ *bytes++) & 0xffU];
  return crc;
}

#if defined(ENGINE_CRC_TARGET)

// a(x) * b(x) modulo the polynomial; bit 31 is the coefficient of x^0.
constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t bit = 1U << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b & 1U) != 0 ? (b >> 1) ^ kPolynomial : b >> 1;
  }
  return product;
}

constexpr std::uint32_t power_of_x(std::uint64_t exponent) {
  std::uint32_t result = 1U << 31;
  for (std::uint32_t base = 1U << 30; exponent != 0; exponent >>= 1, base = multiply(base, base)) {
    if ((exponent & 1U) != 0) result = multiply(result, base);
  }
  return result;
}

// Moves a CRC register past `bytes` zero bytes, one table look-up per register byte.
using ShiftTable = std::array<std::array<std::uint32_t, 256>, 4>;

constexpr ShiftTable make_shift_table(std::uint64_t bytes) {
  ShiftTable table{};
  const std::uint32_t factor = power_of_x(8 * bytes);
  for (std::size_t k = 0; k < 4; ++k) {
    for (std::uint32_t byte = 1; byte < 256; ++byte) {
      const std::uint32_t rest = byte & (byte - 1);  // the map is linear: build each entry from two known ones
      table[k][byte] = rest != 0 ? table[k][rest] ^ table[k][byte ^ rest] : multiply(factor, byte << (8 * k));
    }
  }
  return table;
}

// Each of the three streams is this long. The long one hides the joins, the short one serves mid-sized records.
constexpr std::size_t kLongStream = 4096;
constexpr std::size_t kShortStream = 256;
constexpr ShiftTable kLongShift = make_shift_table(kLongStream);
constexpr ShiftTable kShortShift = make_shift_table(kShortStream);

inline std::uint32_t shift(const ShiftTable& table, std::uint32_t crc) noexcept {
  return table[0][crc & 0xff] ^ table[1][(crc >> 8) & 0xff] ^ table[2][(crc >> 16) & 0xff] ^ table[3][crc >> 24];
}

#if defined(__aarch64__)
ENGINE_CRC_TARGET inline std::uint32_t step8(std::uint32_t crc, std::uint64_t word) noexcept {
  return __crc32cd(crc, word);
}
ENGINE_CRC_TARGET inline std::uint32_t step1(std::uint32_t crc, unsigned char byte) noexcept {
  return __crc32cb(crc, byte);
}
bool has_crc_instructions() noexcept { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#else
ENGINE_CRC_TARGET inline std::uint32_t step8(std::uint32_t crc, std::uint64_t word) noexcept {
  return static_cast<std::uint32_t>(_mm_crc32_u64(crc, word));
}
ENGINE_CRC_TARGET inline std::uint32_t step1(std::uint32_t crc, unsigned char byte) noexcept {
  return _mm_crc32_u8(crc, byte);
}
bool has_crc_instructions() noexcept { return __builtin_cpu_supports("sse4.2") != 0; }
#endif

// One CRC instruction waits for the last; three independent streams keep the unit busy.
template <std::size_t kStream>
ENGINE_CRC_TARGET inline std::uint32_t three_streams(const ShiftTable& table, std::uint32_t crc,
                                                     const unsigned char* bytes) noexcept {
  std::uint32_t second = 0;
  std::uint32_t third = 0;
  for (std::size_t i = 0; i < kStream; i += 8) {
    crc = step8(crc, load64(bytes + i));
    second = step8(second, load64(bytes + kStream + i));
    third = step8(third, load64(bytes + 2 * kStream + i));
  }
  return shift(table, shift(table, crc) ^ second) ^ third;
}

ENGINE_CRC_TARGET std::uint32_t raw_hardware(std::uint32_t crc, const unsigned char* bytes, std::size_t size) noexcept {
  for (; size >= 3 * kLongStream; bytes += 3 * kLongStream, size -= 3 * kLongStream) {
    crc = three_streams<kLongStream>(kLongShift, crc, bytes);
  }
  for (; size >= 3 * kShortStream; bytes += 3 * kShortStream, size -= 3 * kShortStream) {
    crc = three_streams<kShortStream>(kShortShift, crc, bytes);
  }
  for (; size >= 8; bytes += 8, size -= 8) crc = step8(crc, load64(bytes));
  for (; size > 0; --size) crc = step1(crc, *bytes++);
  return crc;
}

#endif  // ENGINE_CRC_TARGET

using RawCrc = std::uint32_t (*)(std::uint32_t, const unsigned char*, std::size_t) noexcept;

RawCrc pick() noexcept {
#if defined(ENGINE_CRC_TARGET)
  if (has_crc_instructions()) return raw_hardware;
#endif
  return raw_portable;
}

}  // namespace

std::uint32_t crc32c(std::uint32_t seed_crc, const void* data, std::size_t size) noexcept {
  static const RawCrc raw = pick();
  return ~raw(~seed_crc, static_cast<const unsigned char*>(data), size);
}

std::uint32_t crc32c_portable(std::uint32_t seed_crc, const void* data, std::size_t size) noexcept {
  return ~raw_portable(~seed_crc, static_cast<const unsigned char*>(data), size);
}

}  // namespace engine
