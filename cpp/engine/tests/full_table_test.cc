// full_table_test.cc: a table at its budget evicts its least recently updated rows, also while others read and save.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <numeric>
#include <thread>
#include <vector>

#include "engine/error.h"
#include "engine/table.h"

namespace engine {
namespace {

constexpr std::uint64_t kBudget = 2'000'000;

TableConfig config_of(std::uint64_t budget) {
  SliceConfig slice;
  slice.dim = 8;
  slice.optimizer = {"sgd", {}};
  slice.initializer = {"zeros", {}};
  slice.compressor = {"fp32", {}};
  TableConfig config;
  config.name = "t";
  config.slices = {slice};
  config.max_bytes = budget;
  config.evicts_when_full = true;
  return config;
}

std::vector<std::int64_t> range(std::int64_t count, std::int64_t first) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

void assign(Table& table, const std::vector<std::int64_t>& ids, float value, std::uint32_t time_s) {
  const std::vector<float> rows(ids.size() * table.schema().dim(), value);
  table.assign(ids, rows.data(), time_s);
}

TEST(FullTable, MemoryStaysWithinTheBudgetAndTheNewestRowsStay) {
  Table table(config_of(kBudget), std::make_shared<Pool>(2));
  for (std::uint32_t step = 0; step < 200; ++step) {
    assign(table, range(500, std::int64_t{step} * 500), 1.0F, 1000 + step);
    ASSERT_LE(table.memory_bytes(), kBudget);
  }
  const std::vector<std::int64_t> newest = range(1000, 199 * 500 - 500);
  std::vector<std::uint8_t> found(newest.size());
  table.contains(newest, found.data());
  EXPECT_EQ(std::count(found.begin(), found.end(), 1), 1000);
  EXPECT_EQ(table.stats().rows_evicted_full, 200 * 500 - table.size());
  EXPECT_NE(table.explain(0).find("evicted because the table was full"), std::string::npos);
}

TEST(FullTable, ACallThatNoEvictionCanFitChangesNothing) {
  Table table(config_of(kBudget), std::make_shared<Pool>(2));
  assign(table, range(1000, 0), 1.0F, 1);
  EXPECT_THROW(assign(table, range(100'000, 0), 2.0F, 2), CapacityExceeded);
  EXPECT_EQ(table.size(), 1000U);
  EXPECT_EQ(table.stats().rows_evicted_full, 0U);
}

TEST(FullTable, ACutHoldsTheRowsThatAreEvictedWhileItIsWritten) {
  Table table(config_of(kBudget), std::make_shared<Pool>(2));
  assign(table, range(5000, 0), 3.0F, 1);
  const Table::Cut cut = table.begin_cut();
  table.set_budget(table.memory_bytes());
  for (std::uint32_t step = 0; step < 40; ++step) {
    assign(table, range(500, 10'000 + std::int64_t{step} * 500), 4.0F, 2 + step);
  }
  std::vector<std::uint8_t> found(5000);
  table.contains(range(5000, 0), found.data());
  EXPECT_LT(std::count(found.begin(), found.end(), 1), 5000);
  std::size_t rows = 0;
  float sum = 0.0F;
  for (std::size_t part = 0; part < kParts; ++part) {
    table.visit_cut(
        cut, part, 256,
        [&](const Table::CutRows& piece) {
          rows += piece.ids.size();
          for (const RowView& row : piece.rows) sum += *reinterpret_cast<const float*>(row.values);
        },
        [] {});
  }
  table.end_cut();
  EXPECT_EQ(rows, 5000U);
  EXPECT_EQ(sum, 15'000.0F);
}

TEST(FullTable, CallsThatNameFullTablesInDifferentOrderNeverBlockEachOther) {
  const auto pool = std::make_shared<Pool>(2);
  Table one(config_of(kBudget), pool);
  Table other(config_of(kBudget), pool);
  const auto train = [&](Table& first, Table& second, std::int64_t from) {
    const std::vector<float> grads(500 * 8, 1.0F);
    const std::vector<float> rates = {0.1F};
    for (std::uint32_t step = 0; step < 300; ++step) {
      const std::vector<std::int64_t> ids = range(500, from + std::int64_t{step} * 500);
      std::vector<GradientJob> jobs;
      for (Table* table : {&first, &second}) {
        jobs.push_back(
            {.table = table, .bags = {.ids = ids}, .grads = grads.data(), .learning_rates = rates, .time_s = 1 + step});
      }
      Table::apply_all(jobs, *pool);
    }
  };
  const auto forth = std::async(std::launch::async, [&] { train(one, other, 0); });
  const auto back = std::async(std::launch::async, [&] { train(other, one, std::int64_t{1} << 40); });
  for (const auto* call : {&forth, &back}) {
    if (call->wait_for(std::chrono::seconds(120)) == std::future_status::ready) continue;
    std::fputs("the calls wait for each other\n", stderr);
    std::_Exit(1);  // the threads never end
  }
  EXPECT_GT(one.stats().rows_evicted_full, 0U);
}

TEST(FullTable, WritersAndReadersOfAFullTableNeverSeeHalfARow) {
  Table table(config_of(kBudget), std::make_shared<Pool>(2));
  std::atomic<bool> is_done{false};
  std::atomic<bool> is_torn{false};
  std::thread reader([&] {
    const std::vector<std::int64_t> ids = range(2000, 0);
    std::vector<float> rows(ids.size() * 8);
    while (!is_done) {
      table.lookup(ids, rows.data(), nullptr);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (rows[i * 8] != rows[i * 8 + 7]) is_torn = true;
      }
    }
  });
  std::vector<std::thread> writers;
  for (std::int64_t writer = 0; writer < 2; ++writer) {
    writers.emplace_back([&, writer] {
      for (std::uint32_t step = 0; step < 60; ++step) {
        const std::int64_t first = (step % 45) * 1000 + writer * 500;
        assign(table, range(500, first), static_cast<float>(step), 1 + step);
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  is_done = true;
  reader.join();
  EXPECT_FALSE(is_torn);
  EXPECT_LE(table.memory_bytes(), kBudget);
  EXPECT_GT(table.stats().rows_evicted_full, 0U);
}

}  // namespace
}  // namespace engine
