// value_ids.h: the rule from a value of a sparse feature to its id. `core/fid.py` mirrors it; docs/reference/ids.md has
// the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/city_hash.h"
#include "engine/fid.h"

namespace engine::data {

// The values that a feature has, which decide their ids.
enum class ValueKind : std::uint8_t {
  kUnknown,  // the first value decides
  kInteger,  // an integer is its own id, all 64 bits
  kText,     // the id is the CityHash64 of the bytes, all 64 bits
  kFid,      // ids come ready-made; slot and plain value share the 64 bits of an id
  kBucket,   // a real number falls into its power of two
  kSlot48,   // models of earlier releases: slot, and the low 48 bits of the value
};

// Name of a kind, as in the schema; empty for kUnknown.
[[nodiscard]] std::string_view name_of(ValueKind kind) noexcept;
// Kind of a name; nothing where the name is unknown.
[[nodiscard]] std::optional<ValueKind> value_kind(std::string_view name) noexcept;

[[nodiscard]] inline bool fits_slot(std::int64_t value) noexcept {
  return static_cast<std::uint64_t>(value) <= kFidV2SignatureMask;
}

// The id of an integer beside a slot. `value` fits, or is hashed.
[[nodiscard]] inline std::int64_t slot_id(std::uint32_t slot, std::int64_t value) noexcept {
  return make_fid_v2(slot, fits_slot(value) ? static_cast<std::uint64_t>(value) : city_hash64(&value, sizeof value));
}

[[nodiscard]] inline std::uint64_t hash_of(std::string_view text) noexcept {
  return city_hash64(text.data(), text.size());
}

// The hash of the decimal text of an integer.
[[nodiscard]] std::uint64_t hash_of_decimal(std::int64_t value) noexcept;

// The integer of a canonical decimal text, signed or unsigned 64 bits; nothing for any other text, such as "07".
[[nodiscard]] std::optional<std::int64_t> parse_decimal(std::string_view text) noexcept;

// The integer of a whole number of at most `kMost`; nothing for any other. Larger floats may have lost digits.
inline constexpr double kMostDouble = 0x1p53;
inline constexpr double kMostFloat = 0x1p24;
[[nodiscard]] std::optional<std::int64_t> parse_whole(double value, double most) noexcept;

// The power of two that a number lies in; the sign is lost, as in the original.
[[nodiscard]] std::uint64_t log2_bucket(double value) noexcept;

}  // namespace engine::data
