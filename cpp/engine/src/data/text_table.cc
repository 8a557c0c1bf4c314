// text_table.cc: names of the types of columns.
#include "engine/data/text_table.h"

#include <algorithm>
#include <array>

namespace engine::data {

namespace {

constexpr std::array<std::string_view, 7> kNames{"null", "bool", "int64", "uint64", "double", "text", "nested"};

}  // namespace

std::string_view name_of(TextType type) noexcept { return kNames[static_cast<std::size_t>(type)]; }

std::optional<TextType> text_type(std::string_view name) noexcept {
  const auto at = std::find(kNames.begin(), kNames.end(), name);
  if (at == kNames.end()) return std::nullopt;
  return static_cast<TextType>(at - kNames.begin());
}

}  // namespace engine::data
