// table_view_test.cc: a view of several tables returns the rows that lookups return, also past full buckets.
#include "engine/table_view.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

namespace engine {
namespace {

std::unique_ptr<Table> make_table(const char* name, std::uint32_t dim, const char* format, bool is_serving = true,
                                  bool miss_is_initial = false) {
  TableConfig config;
  config.name = name;
  config.slices = {{.dim = dim,
                    .optimizer = {.kind = "sgd", .settings = {}},
                    .initializer = {.kind = "ones", .settings = {}},
                    .compressor = {.kind = format, .settings = {}}}};
  config.is_serving = is_serving;
  config.miss_is_initial = miss_is_initial;
  return std::make_unique<Table>(config, std::make_shared<Pool>(1));
}

void fill(Table& table, std::int64_t count) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), 1);
  std::vector<float> rows(ids.size() * table.schema().dim());
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i % 1999) / 8;
  table.assign(ids, rows.data(), 1);
}

std::vector<float> look_up(const Table& table, const std::vector<std::int64_t>& ids) {
  std::vector<float> rows(ids.size() * table.schema().dim(), -1.0F);
  table.lookup(ids, rows.data(), nullptr);
  return rows;
}

TEST(TableView, RowsOfSeveralTablesAreThoseOfTheirLookups) {
  // Parts of one slab, of many slabs, of none; a plain format, two that are decoded; more ids than a block.
  std::vector<std::unique_ptr<Table>> tables;
  tables.push_back(make_table("small", 17, "fp16"));
  tables.push_back(make_table("empty", 4, "fp32"));
  tables.push_back(make_table("large", 128, "fp32"));
  tables.push_back(make_table("training", 8, "fp32", false, true));
  fill(*tables[0], 5000);
  fill(*tables[2], 60'000);
  fill(*tables[3], 100);
  std::vector<TableView> views;
  for (const auto& table : tables) views.emplace_back(*table);
  std::vector<std::vector<std::int64_t>> ids(tables.size());
  for (std::int64_t i = 0; i < 700; ++i) {
    ids[0].push_back(i * 9 - 50);  // some are absent
    ids[1].push_back(i);
    ids[2].push_back(i * 91);
  }
  ids[3] = {1, 100, 101};
  std::vector<std::vector<float>> rows;
  std::vector<TableView::Gather> gathers;
  for (std::size_t i = 0; i < tables.size(); ++i) rows.emplace_back(ids[i].size() * views[i].dim(), -1.0F);
  for (std::size_t i = 0; i < tables.size(); ++i) gathers.push_back({&views[i], ids[i], rows[i].data()});
  TableView::gather_all(gathers);
  for (std::size_t i = 0; i < tables.size(); ++i) EXPECT_EQ(rows[i], look_up(*tables[i], ids[i])) << i;
}

TEST(TableView, EveryRowOfAFullIndexIsFound) {
  const auto table = make_table("t", 2, "fp32");
  fill(*table, 200'000);  // thousands of ids stand beyond their home bucket
  const TableView view(*table);
  std::vector<std::int64_t> ids(200'100);
  std::iota(ids.begin(), ids.end(), -50);
  std::vector<float> rows(ids.size() * 2, -1.0F);
  const TableView::Gather gather{&view, ids, rows.data()};
  TableView::gather_all({&gather, 1});
  EXPECT_EQ(rows, look_up(*table, ids));
}

TEST(TableView, NoGatherAndNoIdsAreNoWork) {
  const auto table = make_table("t", 2, "fp32");
  const TableView view(*table);
  TableView::gather_all({});
  const TableView::Gather gather{&view, {}, nullptr};
  TableView::gather_all({&gather, 1});
}

}  // namespace
}  // namespace engine
