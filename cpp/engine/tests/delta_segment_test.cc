// delta_segment_test.cc: rows that change while they are collected are not lost; damaged segments are refused.
#include "engine/delta_segment.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <numeric>
#include <thread>
#include <vector>

#include "delta_format.h"
#include "engine/delta_collector.h"
#include "engine/error.h"

namespace engine {
namespace {

std::shared_ptr<Table> make_table(bool is_serving = false, const std::string& name = "t") {
  SliceConfig slice;
  slice.dim = 3;
  slice.optimizer = {"adagrad", {{"initial_accumulator_value", 0.1}, {"weight_decay_factor", 0.0}}};
  slice.initializer = {"zeros", {}};
  slice.compressor = {"fp16", {}};
  TableConfig config;
  config.name = name;
  config.slices = {slice};
  config.is_serving = is_serving;
  return std::make_shared<Table>(config, std::make_shared<Pool>(2));
}

void apply(Table& table, const std::vector<std::int64_t>& ids, float gradient) {
  const std::vector<float> grads(ids.size() * table.schema().dim(), gradient);
  const std::vector<float> rates = {1.0F};
  const GradientJob job{.table = &table,
                        .bags = {.ids = ids, .offsets = {}},
                        .grads = grads.data(),
                        .counts = {},
                        .latest = nullptr,
                        .learning_rates = rates,
                        .time_s = 1,
                        .step = 1,
                        .dedup = true};
  Table::apply_all({&job, 1}, table.pool());
}

class DeltaSegment : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/delta_segment_test.XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    for (const std::string& path : paths_) ::unlink(path.c_str());
    ::rmdir(folder_.c_str());
  }

  // Writes the collected changes as the next segment.
  const std::string& write(DeltaCollector& collector) {
    const std::uint64_t sequence = paths_.size() + 1;
    paths_.push_back(folder_ + "/" + std::to_string(sequence));
    collector.write(paths_.back(), {.log = 1, .sequence = sequence, .previous = sequence - 1, .wall_time_us = 0}, {});
    return paths_.back();
  }

  std::string folder_;
  std::vector<std::string> paths_;
};

void expect_same(const Table& one, const Table& other) {
  ASSERT_EQ(one.size(), other.size());
  for (std::size_t part = 0; part < kParts; ++part) {
    std::vector<std::int64_t> ids = one.part_ids(part);
    const RawRows left = one.raw_rows(ids);
    const RawRows right = other.raw_rows(ids);
    EXPECT_EQ(left.ids, right.ids);
    EXPECT_EQ(left.times, right.times);
    EXPECT_EQ(left.rows, right.rows);
  }
}

TEST_F(DeltaSegment, ChangesMadeWhileRowsAreCollectedComeWithALaterSegment) {
  const auto table = make_table();
  DeltaCollector collector({table}, DeltaFlavour::kDurable, {}, false);
  std::atomic<bool> done{false};
  std::thread trainer([&] {
    for (std::int64_t round = 0; round < 60; ++round) {
      std::vector<std::int64_t> ids(500);
      std::iota(ids.begin(), ids.end(), round * 100);
      apply(*table, ids, 0.5F);
      ids.resize(50);
      table->erase(ids);
    }
    done = true;
  });
  while (!done) {
    if (collector.collect()) write(collector);
  }
  trainer.join();
  if (collector.collect()) write(collector);
  EXPECT_FALSE(collector.collect());
  const auto copy = make_table();
  Table* const target[] = {copy.get()};
  for (const std::string& path : paths_) replay_delta(path, target, {});
  expect_same(*table, *copy);
}

TEST_F(DeltaSegment, ASegmentIsRefusedWholeWhenOneByteIsWrong) {
  const auto table = make_table();
  DeltaCollector collector({table}, DeltaFlavour::kDurable, {}, false);
  apply(*table, {1, 2, 3}, 1.0F);
  ASSERT_TRUE(collector.collect());
  const std::string path = write(collector);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-6, std::ios::end);
  file.put('\x55');
  file.close();
  const auto copy = make_table();
  Table* const target[] = {copy.get()};
  EXPECT_THROW(replay_delta(path, target, {}), SnapshotCorrupt);
  EXPECT_EQ(copy->size(), 0U);
  EXPECT_THROW(verify_delta(path, table->pool()), SnapshotCorrupt);
  EXPECT_EQ(read_delta_header(path).tables.at(0).upserts, 3U);
}

TEST_F(DeltaSegment, AHeaderIsRefusedWhenAnyOfItsBytesIsWrong) {
  const auto table = make_table();
  DeltaCollector collector({table}, DeltaFlavour::kDurable, {}, false);
  apply(*table, {1, 2, 3}, 1.0F);
  ASSERT_TRUE(collector.collect());
  const std::string path = write(collector);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  for (const int at : {12, 20, 28, 36, 44}) {
    file.seekg(at);
    const auto byte = static_cast<char>(file.peek());
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 1));
    file.flush();
    EXPECT_THROW((void)read_delta_header(path), SnapshotCorrupt) << at;
    file.seekp(at);
    file.put(byte);
    file.flush();
  }
  EXPECT_EQ(read_delta_header(path).sequence, 1U);
}

TEST_F(DeltaSegment, TablesOfTheJobItselfAreLeftOutWhereTheyAreNotWanted) {
  const auto own = make_table(false, "monolith.workers");
  const auto table = make_table();
  DeltaCollector collector({own, table}, DeltaFlavour::kDurable, {}, false);
  apply(*own, {7}, 1.0F);
  apply(*table, {1, 2, 3}, 1.0F);
  ASSERT_TRUE(collector.collect());
  const std::string path = write(collector);
  const auto copy = make_table();
  const auto own_copy = make_table(false, "monolith.workers");
  Table* const model[] = {copy.get()};
  Table* const all[] = {own_copy.get(), copy.get()};
  replay_delta(path, model, {});
  expect_same(*table, *copy);
  replay_delta(path, all, {});
  expect_same(*own, *own_copy);
  const auto other = make_table(false, "u");
  Table* const wrong[] = {other.get()};
  EXPECT_THROW(replay_delta(path, wrong, {}), SchemaMismatch);
}

TEST_F(DeltaSegment, TheIdsThatASegmentTouchesAreThoseItUpsertsAndThoseItRemoves) {
  const auto table = make_table();
  DeltaCollector collector({table}, DeltaFlavour::kDurable, {}, false);
  apply(*table, {1, 2, 3}, 1.0F);
  ASSERT_TRUE(collector.collect());
  write(collector);
  apply(*table, {3, 4, -5}, 1.0F);
  const std::vector<std::int64_t> removed = {1};
  table->erase(removed);
  ASSERT_TRUE(collector.collect());
  const std::string path = write(collector);
  std::vector<std::int64_t> ids = read_delta_ids(path, {}).at(0);
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(ids, (std::vector<std::int64_t>{-5, 1, 3, 4}));
  EXPECT_EQ(read_delta_ids(path, {.index = 0, .count = 2}).at(0), (std::vector<std::int64_t>{4}));
}

TEST_F(DeltaSegment, AServingTableReadsADurableSegment) {
  const auto table = make_table();
  DeltaCollector collector({table}, DeltaFlavour::kDurable, {}, false);
  apply(*table, {1, 2, 3}, 1.0F);
  ASSERT_TRUE(collector.collect());
  const auto served = make_table(true);
  const auto expected = make_table(true);
  table->copy_to(*expected);
  Table* const target[] = {served.get()};
  replay_delta(write(collector), target, {});
  expect_same(*expected, *served);
}

TEST_F(DeltaSegment, WhatCouldNotBeWrittenIsCollectedAgain) {
  const auto table = make_table();
  DeltaCollector collector({table}, DeltaFlavour::kDurable, {}, true);
  EXPECT_FALSE(collector.collect());
  apply(*table, {1}, 1.0F);
  ASSERT_TRUE(collector.collect());
  EXPECT_THROW(collector.write(folder_ + "/no/such/folder", {}, {}), IoError);
  EXPECT_TRUE(collector.collect());
  EXPECT_EQ(read_delta_header(write(collector)).tables.at(0).upserts, 1U);
  EXPECT_FALSE(collector.collect());
}

TEST_F(DeltaSegment, ACompleteSegmentHoldsTheRowsAsOfCollectAndCopiesOnlyThoseThatChange) {
  const auto table = make_table();
  std::vector<std::int64_t> ids(100'000);
  std::iota(ids.begin(), ids.end(), 0);
  apply(*table, ids, 1.0F);
  const auto before = make_table();
  {
    DeltaCollector first({table}, DeltaFlavour::kDurable, {}, false);
    ASSERT_TRUE(first.collect());
    Table* const target[] = {before.get()};
    replay_delta(write(first), target, {});
    expect_same(*table, *before);
  }
  DeltaCollector collector({table}, DeltaFlavour::kDurable, {}, false);
  const std::size_t used = table->memory_bytes();
  ASSERT_TRUE(collector.collect());
  EXPECT_LT(table->memory_bytes() - used, std::size_t{100} << 10);  // a bit per row, not a row per row
  apply(*table, {1, 2, 3, 100'001}, 1.0F);
  const std::vector<std::int64_t> removed = {4};
  table->erase(removed);
  const auto copy = make_table();
  Table* const target[] = {copy.get()};
  const DeltaHeader header = replay_delta(write(collector), target, {});
  EXPECT_EQ(header.tables.at(0).blocks, 7U);  // full ones, except the last
  expect_same(*before, *copy);
  ASSERT_TRUE(collector.collect());
  replay_delta(write(collector), target, {});
  expect_same(*table, *copy);
}

TEST_F(DeltaSegment, ExpiredRowsAreInACompleteSegment) {
  const auto table = make_table();
  apply(*table, {1, 2, 3}, 1.0F);
  table->force_clock(std::int64_t{40'000} * 86400);
  DeltaCollector collector({table}, DeltaFlavour::kDurable, {}, false);
  ASSERT_TRUE(collector.collect());
  EXPECT_EQ(read_delta_header(write(collector)).tables.at(0).upserts, 3U);
}

TEST_F(DeltaSegment, ATableCanBeClearedAfterACollectThatWasNotWritten) {
  const auto table = make_table();
  apply(*table, {1}, 1.0F);
  DeltaCollector collector({table}, DeltaFlavour::kDurable, {}, false);
  ASSERT_TRUE(collector.collect());
  collector.abandon();
  table->clear();  // would wait for ever for a cut
  apply(*table, {2}, 1.0F);
  ASSERT_TRUE(collector.collect());
  EXPECT_EQ(read_delta_ids(write(collector), {}).at(0), (std::vector<std::int64_t>{2}));
  ASSERT_FALSE(collector.collect());
}

TEST_F(DeltaSegment, WidthsThatOverflow64BitsAreRefused) {
  DeltaHeader header;
  header.sequence = 1;
  DeltaTable table;
  table.name = "t";
  table.blocks = 1;
  table.upserts = 16384;
  // 2^18 slices of 2^32 - 1 bytes, times the rows of a block, is more than 2^64.
  table.slices.assign(1 << 18,
                      {.dim = 1, .value_bytes = 0xFFFFFFFF, .state_bytes = 0xFFFFFFFF, .kind = "", .scale = 1});
  header.tables = {table};
  const std::vector<std::byte> body = encode_delta_header(header);
  const auto refuse = [](std::size_t, const std::string& reason) { throw SnapshotCorrupt(reason); };
  EXPECT_THROW(decode_delta_header(body, refuse), SnapshotCorrupt);
}

TEST_F(DeltaSegment, AnErrorOfTheSystemHasItsNumberAndTheFile) {
  try {
    read_delta_header(folder_ + "/absent");
    FAIL();
  } catch (const IoError& error) {
    EXPECT_EQ(error.code(), ENOENT);
    EXPECT_EQ(error.path(), folder_ + "/absent");
    EXPECT_EQ(error.reason(), "cannot open: No such file or directory");
  }
}

}  // namespace
}  // namespace engine
