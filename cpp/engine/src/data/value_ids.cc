// value_ids.cc: conversions between kinds of values.
#include "engine/data/value_ids.h"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace engine::data {

namespace {

constexpr std::array<std::pair<std::string_view, ValueKind>, 6> kKinds{{
    {"", ValueKind::kUnknown},
    {"integer", ValueKind::kInteger},
    {"text", ValueKind::kText},
    {"fid", ValueKind::kFid},
    {"bucket", ValueKind::kBucket},
    {"slot48", ValueKind::kSlot48},
}};

template <typename Value>
std::optional<std::int64_t> parse_as(std::string_view text) noexcept {
  Value value{};
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || at != end) return std::nullopt;
  return static_cast<std::int64_t>(value);
}

}  // namespace

std::string_view name_of(ValueKind kind) noexcept { return kKinds[static_cast<std::size_t>(kind)].first; }

std::optional<ValueKind> value_kind(std::string_view name) noexcept {
  for (const auto& [known, kind] : kKinds) {
    if (known == name) return kind;
  }
  return std::nullopt;
}

std::uint64_t hash_of_decimal(std::int64_t value) noexcept {
  char text[24];
  const char* const end = std::to_chars(text, text + sizeof text, value).ptr;
  return city_hash64(text, static_cast<std::size_t>(end - text));
}

std::optional<std::int64_t> parse_decimal(std::string_view text) noexcept {
  const bool is_negative = text.starts_with('-');
  const std::string_view digits = is_negative ? text.substr(1) : text;
  if (digits.empty() || (digits.front() == '0' && (digits.size() > 1 || is_negative))) return std::nullopt;
  return is_negative ? parse_as<std::int64_t>(text) : parse_as<std::uint64_t>(text);
}

std::optional<std::int64_t> parse_whole(double value, double most) noexcept {
  if (!(std::fabs(value) <= most) || value != std::trunc(value)) return std::nullopt;
  return static_cast<std::int64_t>(value);
}

std::uint64_t log2_bucket(double value) noexcept {
  const double bucket = std::trunc(std::log2(std::fabs(value) + 1.0));
  return std::isfinite(bucket) ? static_cast<std::uint64_t>(bucket) : 0;
}

}  // namespace engine::data
