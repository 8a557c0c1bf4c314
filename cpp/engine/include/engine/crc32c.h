// crc32c.h: CRC-32C (Castagnoli), the checksum of TFRecords and of our own files.
#pragma once

#include <cstddef>
#include <cstdint>

namespace engine {

// Extends a checksum by more bytes: crc32c(crc32c(0, a), b) == crc32c(0, a + b). Concurrent.
// Uses the processor's CRC instructions where it has them, found out once at run time.
[[nodiscard]] std::uint32_t crc32c(std::uint32_t seed_crc, const void* data, std::size_t size) noexcept;

// The portable path of crc32c, kept visible so that a test can hold both against each other. Concurrent.
[[nodiscard]] std::uint32_t crc32c_portable(std::uint32_t seed_crc, const void* data, std::size_t size) noexcept;

// TFRecord stores checksums rotated and offset, because a CRC of bytes that hold their own CRC is weak.
[[nodiscard]] constexpr std::uint32_t mask_crc32c(std::uint32_t crc) noexcept {
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

[[nodiscard]] inline std::uint32_t masked_crc32c(const void* data, std::size_t size) noexcept {
  return mask_crc32c(crc32c(0, data, size));
}

}  // namespace engine
