// row_op.h: the two forms of a transform. Rules look at one row at a time; operations turn rows into rows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/data/row.h"

namespace engine::data {

class ItemPool;

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
  // Clears keeps[i] of every row that goes. A row that went before is not looked at. Rules that read many columns of a
  // row do it column by column. Throws RecordCorrupt when the bytes of a row cannot be read.
  virtual void apply_all(const Rows& rows, std::span<std::uint8_t> keeps);
};

// Turns rows into rows: drops, copies, generates. Exclusive. New rows live in blocks of their own.
//
// Most operations remember nothing between runs. Those that do (an item pool) give their state as bytes. A reader that
// runs ahead of training needs the state of an earlier moment: it takes a mark after each lot, asks for the state at
// the mark of the oldest row still in flight, and releases marks that it no longer needs. A mark is cheap; the changes
// after the oldest live mark is kept in an undo log.
class RowOp {
 public:
  virtual ~RowOp() = default;
  virtual void run(Rows& rows) = 0;

  [[nodiscard]] virtual bool has_state() const { return false; }
  [[nodiscard]] virtual std::vector<std::byte> state() const { return {}; }
  // Replaces the state; live marks are void afterwards. Throws RecordCorrupt, and then nothing has changed.
  virtual void restore(Bytes state);
  [[nodiscard]] virtual std::uint64_t mark() { return 0; }
  // Throws ConfigError when the mark was released.
  [[nodiscard]] virtual std::vector<std::byte> state_at(std::uint64_t) const { return {}; }
  // Concurrent: any thread may release a mark, also while the operation runs.
  virtual void release(std::uint64_t) {}
  // The item pools inside, to be saved with checkpoints. They live as long as the operation.
  [[nodiscard]] virtual std::vector<ItemPool*> pools() { return {}; }

  std::uint64_t rows_in = 0;
  std::uint64_t rows_out = 0;
};

// Rules may be shared by operations; they keep nothing from one row to the next.
using RulePtr = std::shared_ptr<RowRule>;

// The operation that keeps the rows which every rule keeps, asked in order; a row that one drops is not shown to the
// next. Throws RecordCorrupt when a row's bytes cannot be read.
[[nodiscard]] std::unique_ptr<RowOp> make_rule_op(std::vector<RulePtr> rules);
// One operation after the other. Its state is that of all of them.
[[nodiscard]] std::unique_ptr<RowOp> make_sequence_op(std::vector<std::shared_ptr<RowOp>> ops);
// The rule that keeps rows that every rule keeps: the inside of a logical expression.
[[nodiscard]] RulePtr make_all_rule(std::vector<RulePtr> rules);
// The rule that keeps rows that any rule keeps. It asks all rules, so all edits happen whichever rule keeps the row.
[[nodiscard]] RulePtr make_any_rule(std::vector<RulePtr> rules);

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
