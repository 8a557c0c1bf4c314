// row_op.h: what a transform is. Rules look at one row at a time; operations turn rows into rows.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/row.h"

namespace engine::data {

// One row of a block, as rules see it.
struct RowView {
  Block& block;
  std::uint32_t row;

  [[nodiscard]] RowInfo& info() const noexcept { return block.info(row); }
  [[nodiscard]] Cell cell(std::uint32_t column) const noexcept { return block.cell(row, column); }
};

// Decides whether a row stays, and may edit it (its info, or cells by Block::set_cell). Exclusive.
// A random choice is a pure function of (the rule's seed, RowInfo::key), so it repeats after a resume.
class RowRule {
 public:
  virtual ~RowRule() = default;
  [[nodiscard]] virtual bool apply(RowView row) = 0;
};

// Turns rows into rows: drops, copies, generates. Exclusive. New rows live in blocks of their own.
class RowOp {
 public:
  virtual ~RowOp() = default;
  virtual void run(Rows& rows) = 0;

  std::uint64_t rows_in = 0;
  std::uint64_t rows_out = 0;
};

// The operation that keeps the rows which every rule keeps, asked in order; a row that one drops is not shown to the
// next.
[[nodiscard]] std::unique_ptr<RowOp> make_rule_op(std::vector<std::unique_ptr<RowRule>> rules);

// A well-mixed number of (seed, key): the source of every random choice here. Concurrent.
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t seed, std::uint64_t key) noexcept {
  std::uint64_t x = seed * 0x9e3779b97f4a7c15ULL + key + 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Uniform in [0, 1).
[[nodiscard]] constexpr double unit(std::uint64_t bits) noexcept { return static_cast<double>(bits >> 11) * 0x1.0p-53; }

}  // namespace engine::data
