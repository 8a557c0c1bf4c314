// text_columns.h: grows columns of parsed text. Private to the data engine.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/data/text_table.h"

namespace engine::data::text {

inline constexpr std::size_t kMostShown = 80;  // characters of a value in a problem

inline std::string shorten(std::string_view value) { return std::string(value.substr(0, kMostShown)); }

// Marks place `count` of a bitmap, which becomes one with the first missing value.
inline void add_bit(std::vector<std::uint8_t>& bits, std::uint64_t place, bool is_set) {
  if (bits.size() <= place / 8) bits.resize(place / 8 + 1);
  if (is_set) bits[place / 8] = static_cast<std::uint8_t>(bits[place / 8] | 1U << (place % 8));
}

inline void add_valid(std::vector<std::uint8_t>& bits, std::uint64_t place, bool is_valid) {
  if (bits.empty()) {
    if (is_valid) return;
    bits.assign(place / 8 + 1, 0xff);
    bits[place / 8] = static_cast<std::uint8_t>((1U << (place % 8)) - 1);
    return;
  }
  add_bit(bits, place, is_valid);
}

inline TextColumn make_column(const TextField& field) {
  TextColumn column;
  column.type = field.type;
  column.is_list = field.is_list;
  if (field.type == TextType::kText) column.text_ends.push_back(0);
  if (field.is_list) column.list_ends.push_back(0);
  return column;
}

inline void add_word(TextColumn& column, std::uint64_t word) {
  if (!column.valid.empty()) add_bit(column.valid, column.value_count, true);
  column.words.push_back(word);
  ++column.value_count;
}

inline void add_double(TextColumn& column, double value) { add_word(column, std::bit_cast<std::uint64_t>(value)); }

inline void add_bool(TextColumn& column, bool value) {
  if (!column.valid.empty()) add_bit(column.valid, column.value_count, true);
  add_bit(column.bits, column.value_count, value);
  ++column.value_count;
}

// Ends a text whose characters were appended.
inline void end_text(TextColumn& column) {
  if (!column.valid.empty()) add_bit(column.valid, column.value_count, true);
  column.text_ends.push_back(static_cast<std::int64_t>(column.characters.size()));
  ++column.value_count;
}

inline void add_text(TextColumn& column, std::string_view text) {
  column.characters.insert(column.characters.end(), text.begin(), text.end());
  end_text(column);
}

// A missing value.
inline void add_null(TextColumn& column) {
  if (column.type == TextType::kNull || column.type == TextType::kNested) return;
  add_valid(column.valid, column.value_count, false);
  switch (column.type) {
    case TextType::kBool:
      add_bit(column.bits, column.value_count, false);
      break;
    case TextType::kText:
      column.text_ends.push_back(static_cast<std::int64_t>(column.characters.size()));
      break;
    default:
      column.words.push_back(0);
  }
  ++column.value_count;
}

// Ends a list of values; `is_valid` is false for a row without one.
inline void end_list(TextColumn& column, bool is_valid) {
  add_valid(column.list_valid, column.list_ends.size() - 1, is_valid);
  column.list_ends.push_back(static_cast<std::int64_t>(column.value_count));
}

}  // namespace engine::data::text
