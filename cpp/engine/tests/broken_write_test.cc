// broken_write_test.cc: a write that breaks off for lack of memory, at many of its allocations in turn.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "engine/table.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they have these operators themselves

namespace {

constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();
thread_local std::size_t allocations_left = kUnlimited;

}  // namespace

void* operator new(std::size_t bytes) {
  void* const data = allocations_left == 0 ? nullptr : std::malloc(std::max<std::size_t>(1, bytes));
  if (data == nullptr) throw std::bad_alloc();
  if (allocations_left != kUnlimited) --allocations_left;
  return data;
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t) noexcept { std::free(data); }

namespace engine {
namespace {

constexpr std::size_t kDim = 2;
constexpr std::int64_t kIds = 600;
constexpr std::uint32_t kOld = 10;
constexpr std::uint32_t kNew = 20;

// Values, optimizer state and time of a row.
struct Row {
  std::array<float, 2 * kDim> words;
  std::uint32_t time;

  friend bool operator==(const Row&, const Row&) = default;
};
using Rows = std::map<std::int64_t, Row>;

TableConfig adagrad_config() {
  SliceConfig slice;
  slice.dim = kDim;
  slice.optimizer = {"adagrad", {{"initial_accumulator_value", 0.5}, {"weight_decay_factor", 0.0}}};
  slice.initializer = {"constants", {{"constant", 1.0}}};
  slice.compressor = {"fp32", {}};
  TableConfig config;
  config.name = "t";
  config.slices = {slice};
  return config;
}

std::vector<std::int64_t> ids_from(std::int64_t first) {
  std::vector<std::int64_t> ids(kIds);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

void add(Rows& rows, std::int64_t id, const RowView& row, std::uint32_t time) {
  Row copy{.words = {}, .time = time};
  std::memcpy(copy.words.data(), row.values, kDim * sizeof(float));
  std::memcpy(copy.words.data() + kDim, row.state, kDim * sizeof(float));
  EXPECT_TRUE(rows.emplace(id, copy).second) << "id " << id << " came twice";
}

Rows rows_of(const Table& table) {
  Rows rows;
  for (std::size_t part = 0; part < kParts; ++part) {
    const RawRows raw = table.raw_rows(table.part_ids(part));
    for (std::size_t i = 0; i < raw.ids.size(); ++i) {
      add(rows, raw.ids[i], table.schema().packed(raw.rows.data() + i * table.schema().row_bytes()), raw.times[i]);
    }
  }
  return rows;
}

Rows rows_of(Table& table, const Table::Cut& cut) {
  Rows rows;
  for (std::size_t part = 0; part < kParts; ++part) {
    table.visit_cut(
        cut, part, 100,
        [&](const Table::CutRows& piece) {
          for (std::size_t i = 0; i < piece.ids.size(); ++i) add(rows, piece.ids[i], piece.rows[i], piece.times[i]);
        },
        [] {});
  }
  table.end_cut(cut.use);
  return rows;
}

struct Write {
  std::string name;
  std::function<void(Table&)> call;
  Row made;  // the row of an id that was absent
};

std::vector<Write> writes() {
  const auto ids = ids_from(kIds / 2);  // half of them have rows
  const auto apply = [=](Table& table) {
    const std::vector<float> grads(kIds * kDim, 0.0F);
    const std::vector<float> rates = {0.1F};
    const GradientJob job{
        .table = &table, .bags = {.ids = ids}, .grads = grads.data(), .learning_rates = rates, .time_s = kNew};
    Table::apply_all({&job, 1}, table.pool());
  };
  const auto assign = [=](Table& table) {
    const std::vector<float> values(kIds * kDim, 3.0F);
    table.assign(ids, values.data(), kNew);
  };
  const auto import = [=](Table& table) {
    const std::vector<float> rows(kIds * kDim * 2, 4.0F);
    const std::vector<std::uint32_t> times(kIds, kNew);
    table.import_rows(ids, times, reinterpret_cast<const std::byte*>(rows.data()), false);
  };
  const auto erase = [=](Table& table) { table.erase(ids); };
  const auto evict = [](Table& table) { table.evict(std::int64_t{40'000} * 86'400, true); };
  return {{"apply_all", apply, {{1, 1, 0.5, 0.5}, kNew}},
          {"assign", assign, {{3, 3, 0.5, 0.5}, kNew}},
          {"import_rows", import, {{4, 4, 4, 4}, kNew}},
          {"erase", erase, {}},
          {"evict", evict, {}}};
}

class BrokenWrite : public testing::Test {
 protected:
  // Breaks each write off at many of its allocations; check(table, write, rows before, cut before) follows.
  template <class Check>
  void break_each(Check&& check) {
    for (const Write& write : writes()) {
      std::size_t broken = 0;
      for (std::size_t allocations = 0;; allocations += 1 + allocations / 16) {
        ASSERT_LT(allocations, 20'000U) << write.name;
        SCOPED_TRACE(write.name + " at allocation " + std::to_string(allocations));
        Table table(adagrad_config(), pool_);
        const std::vector<float> values(kIds * kDim, 2.0F);
        table.assign(ids_from(0), values.data(), kOld);
        const auto freed = ids_from(kIds - 50);  // rows that others had
        table.erase(freed);
        (void)table.drain_touched();
        const Rows before = rows_of(table);
        const Table::Cut cut = table.begin_cut();
        allocations_left = allocations;
        bool is_broken = false;
        try {
          write.call(table);
        } catch (const std::bad_alloc&) {
          is_broken = true;
        }
        allocations_left = kUnlimited;
        broken += is_broken ? 1 : 0;
        check(table, write, before, cut);
        if (HasFailure() || !is_broken) break;
      }
      EXPECT_GT(broken, 20U) << write.name;
    }
  }

  std::shared_ptr<Pool> pool_ = std::make_shared<Pool>(1);  // this thread does all the work
};

TEST_F(BrokenWrite, LeavesEveryRowOfACutToTheCut) {
  break_each([](Table& table, const Write&, const Rows& before, const Table::Cut& cut) {
    EXPECT_TRUE(rows_of(table, cut) == before);
  });
}

TEST_F(BrokenWrite, LeavesNoRowWithForeignContent) {
  break_each([](Table& table, const Write& write, const Rows& before, const Table::Cut& cut) {
    (void)rows_of(table, cut);
    const Row fresh{{1, 1, 0.5, 0.5}, 0};
    for (const auto& [id, row] : rows_of(table)) {
      if (before.contains(id)) continue;
      ASSERT_TRUE(row == write.made || row == fresh) << id << ": " << row.words[0] << " at " << row.time;
    }
  });
}

TEST_F(BrokenWrite, NotesItsChangesOrCountsThemAsDropped) {
  break_each([](Table& table, const Write&, const Rows& before, const Table::Cut& cut) {
    (void)rows_of(table, cut);
    const Rows after = rows_of(table);
    const std::vector<std::int64_t> notes = table.drain_touched();
    if (table.stats().touched_dropped > 0) return;
    const auto is_noted = [&](std::int64_t id) { return std::ranges::binary_search(notes, id); };
    for (const auto& [id, row] : after) {
      const auto at = before.find(id);
      ASSERT_TRUE(is_noted(id) || (at != before.end() && at->second == row)) << id;
    }
    for (const auto& [id, row] : before) ASSERT_TRUE(is_noted(id) || after.contains(id)) << id;
  });
}

TEST_F(BrokenWrite, NotesAllItsChangesWhenItIsRepeated) {
  break_each([](Table& table, const Write& write, const Rows& before, const Table::Cut& cut) {
    (void)rows_of(table, cut);
    write.call(table);
    const Rows after = rows_of(table);
    const std::vector<std::int64_t> notes = table.drain_touched();
    const bool is_dropped = table.stats().touched_dropped > 0;
    for (const auto& [id, row] : before) {
      ASSERT_TRUE(is_dropped || after.contains(id) || std::ranges::binary_search(notes, id)) << id;
    }
  });
}

}  // namespace
}  // namespace engine

#endif
