// text_target.h: checks of columns that were parsed from text.
#pragma once

#include <algorithm>
#include <string_view>

#include "engine/data/text_table.h"
#include "target.h"

namespace fuzz {

inline std::string_view text_of(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

inline void check_bitmap(const std::vector<std::uint8_t>& bits, std::uint64_t count) {
  expect(bits.empty() || bits.size() >= (count + 7) / 8, "a bitmap is too short");
}

template <typename Value>
void check_ends(const std::vector<Value>& ends, std::uint64_t count, std::uint64_t most) {
  expect(ends.size() == count + 1 && ends.front() == 0, "offsets do not fit the values");
  expect(std::is_sorted(ends.begin(), ends.end()), "offsets shrink");
  expect(static_cast<std::uint64_t>(ends.back()) == most, "offsets do not end with the values");
}

inline void check_problem(const engine::data::TextProblem& problem, std::string_view block) {
  expect(problem.byte <= block.size(), "an error lies outside of the block");
  expect(!problem.reason.empty(), "an error has no reason");
}

inline void check_table(const engine::data::TextTable& table, std::string_view block) {
  using engine::data::TextType;
  if (table.problem) return check_problem(*table.problem, block);
  for (const auto& column : table.columns) {
    const std::uint64_t count = column.value_count;
    if (column.type == TextType::kNull || column.type == TextType::kNested) continue;
    check_bitmap(column.valid, count);
    if (column.is_list) {
      check_ends(column.list_ends, table.rows, count);
      check_bitmap(column.list_valid, table.rows);
    } else {
      expect(count == table.rows, "a column has another number of rows");
    }
    if (column.type == TextType::kText) {
      check_ends(column.text_ends, count, column.characters.size());
    } else if (column.type == TextType::kBool) {
      check_bitmap(column.bits, count);
    } else {
      expect(column.words.size() == count, "a column has another number of values");
    }
  }
}

}  // namespace fuzz
