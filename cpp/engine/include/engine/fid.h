// fid.h: the bit layouts of feature ids. The only place in C++ that knows them; `core/fid.py` mirrors it.
#pragma once

#include <cstdint>

namespace engine {

// v1: slot in bits 63..54, signature in bits 53..0.
// v2: bit 63 is zero, slot in bits 62..48, signature in bits 47..0.
inline constexpr int kFidV1SignatureBits = 54;
inline constexpr int kFidV2SignatureBits = 48;
inline constexpr std::uint64_t kFidV1SignatureMask = (std::uint64_t{1} << kFidV1SignatureBits) - 1;
inline constexpr std::uint64_t kFidV2SignatureMask = (std::uint64_t{1} << kFidV2SignatureBits) - 1;
inline constexpr std::uint32_t kFidV1Slots = 1U << 10;
inline constexpr std::uint32_t kFidV2Slots = 1U << 15;

// Tables hold ids as int64 bit patterns; a v1 id of slot 512 or above is negative there.
[[nodiscard]] constexpr std::uint32_t slot_v1(std::int64_t id) noexcept {
  return static_cast<std::uint32_t>(static_cast<std::uint64_t>(id) >> kFidV1SignatureBits);
}

[[nodiscard]] constexpr std::uint32_t slot_v2(std::int64_t id) noexcept {
  return static_cast<std::uint32_t>(static_cast<std::uint64_t>(id) >> kFidV2SignatureBits) & (kFidV2Slots - 1);
}

// Higher bits of slot and signature than the layout has are cut off; callers that take user input check first.
[[nodiscard]] constexpr std::int64_t make_fid_v1(std::uint32_t slot, std::uint64_t signature) noexcept {
  return static_cast<std::int64_t>((std::uint64_t{slot & (kFidV1Slots - 1)} << kFidV1SignatureBits) |
                                   (signature & kFidV1SignatureMask));
}

[[nodiscard]] constexpr std::int64_t make_fid_v2(std::uint32_t slot, std::uint64_t signature) noexcept {
  return static_cast<std::int64_t>((std::uint64_t{slot & (kFidV2Slots - 1)} << kFidV2SignatureBits) |
                                   (signature & kFidV2SignatureMask));
}

// Drops the top 6 signature bits, so two v1 ids may become one v2 id.
[[nodiscard]] constexpr std::int64_t fid_v1_to_v2(std::int64_t id) noexcept {
  return make_fid_v2(slot_v1(id), static_cast<std::uint64_t>(id));
}

}  // namespace engine
