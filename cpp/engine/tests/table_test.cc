// table_test.cc: clocks and expiry, and races: torn rows, lost updates, cuts that mix two moments.
#include "engine/table.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <new>
#include <numeric>
#include <thread>
#include <vector>

#include "engine/error.h"

namespace engine {
namespace {

TableConfig config_of(std::uint32_t dim, const std::string& optimizer = "sgd") {
  SliceConfig slice;
  slice.dim = dim;
  slice.optimizer = {optimizer, {}};
  if (optimizer == "adagrad")
    slice.optimizer.settings = {{"initial_accumulator_value", 0.1}, {"weight_decay_factor", 0.0}};
  slice.initializer = {"zeros", {}};
  slice.compressor = {"fp32", {}};
  TableConfig config;
  config.name = "t";
  config.slices = {slice};
  return config;
}

std::vector<std::int64_t> range(std::int64_t count, std::int64_t first = 0) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

void apply(Table& table, const std::vector<std::int64_t>& ids, float gradient, std::uint32_t time_s = 0) {
  const std::vector<float> grads(ids.size() * table.schema().dim(), gradient);
  const std::vector<float> rates = {1.0F};
  const GradientJob job{.table = &table,
                        .bags = {.ids = ids, .offsets = {}},
                        .grads = grads.data(),
                        .counts = {},
                        .latest = nullptr,
                        .learning_rates = rates,
                        .time_s = time_s,
                        .step = 1,
                        .dedup = true};
  Table::apply_all({&job, 1}, table.pool());
}

TEST(Table, ARowIsNeverReadHalfWritten) {
  Table table(config_of(37), std::make_shared<Pool>(2));
  const auto ids = range(3000);
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (int i = 0; i < 60; ++i) apply(table, ids, -1.0F);
    done = true;
  });
  std::vector<float> rows(ids.size() * 37);
  while (!done) {
    table.lookup(ids, rows.data(), nullptr);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      for (std::size_t d = 1; d < 37; ++d) ASSERT_EQ(rows[i * 37 + d], rows[i * 37]);
    }
  }
  writer.join();
}

TEST(Table, NoUpdateOfConcurrentWritersIsLost) {
  Table table(config_of(2), std::make_shared<Pool>(2));
  std::vector<std::thread> writers;
  for (int w = 0; w < 4; ++w) {
    writers.emplace_back([&, w] {
      for (int i = 0; i < 25; ++i) apply(table, range(500, w * 100), -1.0F);
    });
  }
  for (auto& writer : writers) writer.join();
  const auto ids = range(800);
  std::vector<float> rows(ids.size() * 2);
  table.lookup(ids, rows.data(), nullptr);
  for (std::int64_t id = 0; id < 800; ++id) {
    int writers_of_id = 0;
    for (int w = 0; w < 4; ++w) writers_of_id += id >= w * 100 && id < w * 100 + 500;
    ASSERT_EQ(rows[static_cast<std::size_t>(id) * 2], 25.0F * static_cast<float>(writers_of_id)) << id;
  }
}

// Rows of a cut, by id: first value and time.
std::map<std::int64_t, std::pair<float, std::uint32_t>> read_cut(Table& table, const Table::Cut& cut) {
  std::map<std::int64_t, std::pair<float, std::uint32_t>> rows;
  for (std::size_t part = 0; part < kParts; ++part) {
    table.visit_cut(
        cut, part, 7,
        [&](const Table::CutRows& piece) {
          for (std::size_t i = 0; i < piece.ids.size(); ++i) {
            float value = 0;
            std::memcpy(&value, piece.rows[i].values, sizeof value);
            const bool is_first = rows.emplace(piece.ids[i], std::pair(value, piece.times[i])).second;
            EXPECT_TRUE(is_first) << "id " << piece.ids[i] << " came twice";
          }
        },
        [] {});
  }
  table.end_cut(cut.use);
  return rows;
}

TEST(Table, ACutIsOneMomentWhateverHappensAfterIt) {
  Table table(config_of(3, "adagrad"), std::make_shared<Pool>(2));
  const auto ids = range(5000);
  std::vector<float> values(ids.size() * 3, 2.0F);
  table.assign(ids, values.data(), 50);
  const Table::Cut cut = table.begin_cut();
  apply(table, range(2500), 1.0F, 60);        // changed
  table.erase(range(1000, 2000));             // removed, some of them changed before
  apply(table, range(3000, 4500), 1.0F, 70);  // changed and new, in rows that were freed
  std::vector<std::int8_t> existed(500);
  table.reinitialize(range(500, 7000), existed.data());
  const auto rows = read_cut(table, cut);
  ASSERT_EQ(rows.size(), ids.size());
  for (const auto& [id, row] : rows) {
    ASSERT_LT(id, 5000);
    ASSERT_EQ(row, std::pair(2.0F, 50U)) << id;
  }
}

TEST(Table, ImportedRowsReplaceOthersTheLastOccurrenceWinsAndACutKeepsTheOldOnes) {
  Table table(config_of(1), std::make_shared<Pool>(2));
  const auto ids = range(20'000);
  const std::vector<float> old_values(ids.size(), 1.0F);
  table.assign(ids, old_values.data(), 10);
  const Table::Cut cut = table.begin_cut();
  // The second half of them is new; every id comes twice.
  auto imported = range(20'000, 10'000);
  imported.insert(imported.end(), imported.begin(), imported.begin() + 20'000);
  std::vector<float> values(imported.size(), 2.0F);
  std::vector<std::uint32_t> times(imported.size(), 20);
  std::fill(values.begin() + 20'000, values.end(), 3.0F);
  std::fill(times.begin() + 20'000, times.end(), 30U);
  table.import_rows(imported, times, reinterpret_cast<const std::byte*>(values.data()), false);
  EXPECT_EQ(table.size(), 30'000U);
  const auto before = read_cut(table, cut);
  ASSERT_EQ(before.size(), 20'000U);
  for (const auto& [id, row] : before) ASSERT_EQ(row, std::pair(1.0F, 10U)) << id;
  const auto after = read_cut(table, table.begin_cut());
  ASSERT_EQ(after.size(), 30'000U);
  for (const auto& [id, row] : after) {
    ASSERT_EQ(row, id < 10'000 ? std::pair(1.0F, 10U) : std::pair(3.0F, 30U)) << id;
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they reserve terabytes
TEST(Table, AnImportWithoutMemoryLeavesWholeRows) {
  Table table(config_of(64), std::make_shared<Pool>(2));
  constexpr std::int64_t kIds = 50'000;
  const std::vector<float> values(kIds * 64, 5.0F);
  const std::vector<std::uint32_t> times(kIds, 7);
  const auto import = [&](std::int64_t first) {
    table.import_rows(range(kIds, first), times, reinterpret_cast<const std::byte*>(values.data()), false);
  };
  import(0);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlimit small{.rlim_cur = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (rlim_t{96} << 20),
                     .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &small), 0);
  rlimit now{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &now), 0);
  if (now.rlim_cur != small.rlim_cur) GTEST_SKIP() << "this system does not limit memory; QEMU does not";
  bool is_full = false;
  for (std::int64_t first = kIds; first < 100 * kIds && !is_full; first += kIds) {
    try {
      import(first);
    } catch (const std::bad_alloc&) {
      is_full = true;
    }
  }
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  ASSERT_TRUE(is_full);
  EXPECT_NE(table.size() % kIds, 0U) << "the last import had not begun";
  const auto rows = read_cut(table, table.begin_cut());
  EXPECT_EQ(rows.size(), table.size());
  for (const auto& [id, row] : rows) ASSERT_EQ(row, std::pair(5.0F, 7U)) << id;
}
#endif

TEST(Table, CutsTakenWhileTrainingRunsNeverMixSteps) {
  Table table(config_of(4), std::make_shared<Pool>(2));
  const auto ids = range(4000);
  std::atomic<int> steps{0};
  std::thread trainer([&] {
    for (int i = 0; i < 40; ++i) {
      apply(table, ids, -1.0F);
      ++steps;
    }
  });
  // Each part of a table may be a step ahead of another: one call is not one transaction. Within the cut each row
  // must be whole, and all rows must lie between the steps done before and after it was taken.
  for (int i = 0; i < 10; ++i) {
    const int before = steps;
    const Table::Cut cut = table.begin_cut();
    const int after = steps + 1;
    const auto rows = read_cut(table, cut);
    if (before > 0) {
      ASSERT_EQ(rows.size(), ids.size());
    }
    for (const auto& [id, row] : rows) {
      ASSERT_GE(row.first, static_cast<float>(before)) << id;
      ASSERT_LE(row.first, static_cast<float>(after)) << id;
    }
  }
  trainer.join();
}

TEST(Table, TheNumberOfThreadsDoesNotChangeABit) {
  std::vector<std::vector<float>> results;
  for (const unsigned threads : {1U, 2U, 3U, 7U}) {
    Table table(config_of(5, "adagrad"), std::make_shared<Pool>(threads));
    std::uint64_t random = 1;
    for (int step = 0; step < 5; ++step) {
      std::vector<std::int64_t> ids(20'000);
      std::vector<float> grads(2000 * 5);
      std::vector<std::int64_t> offsets(2001);
      for (auto& id : ids) id = static_cast<std::int64_t>((random = scramble(random)) % 3000);
      for (auto& grad : grads) grad = unit_float(random = scramble(random)) - 0.5F;
      for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<std::int64_t>(i * 10);
      const std::vector<float> rates = {0.1F};
      const GradientJob job{.table = &table,
                            .bags = {.ids = ids, .offsets = offsets, .pooling = Pooling::kMean},
                            .grads = grads.data(),
                            .counts = {},
                            .latest = nullptr,
                            .learning_rates = rates,
                            .time_s = 1,
                            .step = step,
                            .dedup = true};
      Table::apply_all({&job, 1}, table.pool());
    }
    const auto ids = range(3000);
    std::vector<std::int64_t> offsets(301);
    for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<std::int64_t>(i * 10);
    std::vector<float> pooled(300 * 5);
    const LookupJob job{.table = &table,
                        .bags = {.ids = ids, .offsets = offsets, .pooling = Pooling::kSum},
                        .out = pooled.data(),
                        .found = nullptr};
    Table::lookup_all({&job, 1}, table.pool());
    results.push_back(pooled);
  }
  for (const auto& result : results) {
    EXPECT_EQ(std::memcmp(result.data(), results[0].data(), result.size() * sizeof(float)), 0);
  }
}

TEST(Table, EvictedRowsMemoryIsUsedAgain) {
  TableConfig config = config_of(16, "adagrad");
  config.expire_days = 1;
  Table table(config, std::make_shared<Pool>(2));
  apply(table, range(50'000), 1.0F, 100);
  std::size_t before = 0;
  for (int round = 1; round <= 6; ++round) {
    if (round == 2) before = table.memory_bytes();  // now with the memory of removals, for explain()
    const std::int64_t now = 100 + 86'400 * round;
    EXPECT_EQ(table.evict(now, true), 50'000U);
    apply(table, range(50'000, round * 1'000'000), 1.0F, static_cast<std::uint32_t>(now));
  }
  EXPECT_EQ(table.size(), 50'000U);
  EXPECT_LE(table.memory_bytes(), before + before / 10);
}

constexpr std::uint32_t kNow = 1'700'000'000;
constexpr std::uint32_t kDay = 86400;

TEST(Table, OnePushMovesTheClockByAtMostADay) {
  Table table(config_of(1), std::make_shared<Pool>(2));
  apply(table, {1}, 1.0F, kNow);
  EXPECT_EQ(table.max_time_s(), kNow);  // an empty clock takes any time
  apply(table, {2}, 1.0F, kNow + 40 * kDay);
  EXPECT_EQ(table.max_time_s(), kNow + kDay);
  const float value = 1;
  const std::int64_t id = 3;
  table.assign({&id, 1}, &value, kNow);
  EXPECT_EQ(table.max_time_s(), kNow + kDay);
  table.assign({&id, 1}, &value, kNow + 40 * kDay);  // the caller's own time, not that of an event
  EXPECT_EQ(table.max_time_s(), kNow + 40 * kDay);
  table.force_clock(kNow + 50 * kDay);
  EXPECT_EQ(table.max_time_s(), kNow + 50 * kDay);
}

TEST(Table, ACopyHasTheClockOfTheTableAndNotOfItsNewestRow) {
  TableConfig config = config_of(1);
  Table table(config, std::make_shared<Pool>(2));
  config.is_serving = true;
  Table served(config, std::make_shared<Pool>(2));
  apply(table, {1}, 1.0F, kNow);
  apply(table, {2}, 1.0F, kNow + 40 * kDay);
  table.copy_to(served);
  EXPECT_EQ(served.size(), 2U);
  EXPECT_EQ(served.max_time_s(), table.max_time_s());
}

TEST(Table, AnEvictionOfMostRowsMustBeForced) {
  TableConfig config = config_of(1);
  config.expire_days = 30;
  Table table(config, std::make_shared<Pool>(2));
  apply(table, range(10'000), 1.0F, kNow);
  table.force_clock(kNow + 40 * kDay);
  EXPECT_THROW(table.check_expiry(table.max_time_s()), ExpiryRefused);
  EXPECT_THROW(table.evict(table.max_time_s()), ExpiryRefused);
  EXPECT_EQ(table.size(), 10'000U);
  EXPECT_EQ(table.evict(table.max_time_s(), true), 10'000U);
  EXPECT_EQ(table.size(), 0U);
}

TEST(Table, RowsThatExpireBitByBitAreNeverRefused) {
  TableConfig config = config_of(1);
  config.expire_days = 30;
  Table table(config, std::make_shared<Pool>(2));
  // A tenth of the rows each day; nothing is evicted, so nearly all of them have expired in the end.
  for (std::uint32_t day = 0; day < 300; ++day) {
    apply(table, range(200, day * 200), 1.0F, kNow + day * kDay);
    EXPECT_NO_THROW(table.check_expiry(table.max_time_s())) << day;
  }
  EXPECT_EQ(table.size(), 60'000U);
  EXPECT_EQ(table.evict(table.max_time_s()), 60'000U - 30 * 200);
}

TEST(Table, SmallTablesAndForcedTablesAreNotGuarded) {
  TableConfig config = config_of(1);
  config.expire_days = 30;
  Table small(config, std::make_shared<Pool>(2));
  apply(small, range(999), 1.0F, kNow);
  EXPECT_EQ(small.evict(kNow + 40 * kDay), 999U);
  Table forced(config, std::make_shared<Pool>(2));
  forced.set_forces_expiry(true);
  apply(forced, range(5000), 1.0F, kNow);
  EXPECT_EQ(forced.evict(kNow + 40 * kDay), 5000U);
}

TEST(Table, SightingsOfOneIdThatExceed32BitsAdmitIt) {
  TableConfig config = config_of(1);
  config.admission = {"sliding_hash_filter", {{"capacity", 1000.0}, {"split_num", 7.0}}};
  config.occurrence_threshold = 3;
  Table table(config, std::make_shared<Pool>(1));
  const std::vector<std::int64_t> ids = {7, 7};
  const std::vector<std::uint32_t> counts = {0x80000000, 0x80000000};
  const std::vector<float> grads = {1.0F, 1.0F};
  const std::vector<float> rates = {1.0F};
  const GradientJob job{
      .table = &table, .bags = {.ids = ids}, .grads = grads.data(), .counts = counts, .learning_rates = rates};
  Table::apply_all({&job, 1}, table.pool());
  EXPECT_EQ(table.size(), 0U);  // the sightings before the call decide
  Table::apply_all({&job, 1}, table.pool());
  EXPECT_EQ(table.size(), 1U);
}

TEST(Table, ARefusedFilterLeavesTurnClockAndScales) {
  const auto make = [](double capacity) {
    TableConfig config = config_of(1);
    config.admission = {"sliding_hash_filter", {{"capacity", capacity}, {"split_num", 7.0}}};
    config.occurrence_threshold = 3;
    return config;
  };
  Table table(make(1000), std::make_shared<Pool>(1));
  Table other(make(2000), std::make_shared<Pool>(1));
  apply(other, range(10), 1.0F, 50);
  Table::Cut cut = other.begin_cut();
  other.end_cut();
  cut.scales = {2.0F};
  EXPECT_THROW(table.restore_extras(cut), ConfigError);
  EXPECT_EQ(table.turn(), 0U);
  EXPECT_EQ(table.max_time_s(), 0);
  EXPECT_EQ(table.scales(), std::vector<float>{1.0F});
}

TEST(Table, LearningRatesMustBeFiniteAndNotNegative) {
  Table table(config_of(1), std::make_shared<Pool>(2));
  const std::vector<std::int64_t> ids = {1};
  const float gradient = 1;
  for (const float rate : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -1.0F}) {
    const GradientJob job{
        .table = &table, .bags = {.ids = ids, .offsets = {}}, .grads = &gradient, .learning_rates = {&rate, 1}};
    EXPECT_THROW(Table::apply_all({&job, 1}, table.pool()), ConfigError) << rate;
  }
  EXPECT_EQ(table.size(), 0U);
}

TEST(Table, AThreadCanGiveItsScratchMemoryBack) {
  Table table(config_of(8), std::make_shared<Pool>(1));
  std::thread([&] {
    EXPECT_EQ(Table::thread_scratch_bytes(), 0U);
    apply(table, range(200'000), 1.0F);
    EXPECT_GT(Table::thread_scratch_bytes(), std::size_t{1} << 20);
    Table::release_thread_scratch();
    EXPECT_EQ(Table::thread_scratch_bytes(), 0U);
    apply(table, range(10), 1.0F);
  }).join();
}

TEST(Table, ASnapshotAndASegmentHaveACutEach) {
  Table table(config_of(1), std::make_shared<Pool>(2));
  apply(table, range(300), -1.0F, 1);
  const Table::Cut segment = table.begin_cut(CutUse::kDelta);
  apply(table, range(300), -1.0F, 2);
  const Table::Cut snapshot = table.begin_cut(CutUse::kSnapshot);
  apply(table, range(400), -1.0F, 3);
  table.erase(range(100));
  const auto first = read_cut(table, segment);
  const auto second = read_cut(table, snapshot);
  ASSERT_EQ(first.size(), 300U);
  ASSERT_EQ(second.size(), 300U);
  for (std::int64_t id = 0; id < 300; ++id) {
    EXPECT_EQ(first.at(id), (std::pair{1.0F, std::uint32_t{1}})) << id;
    EXPECT_EQ(second.at(id), (std::pair{2.0F, std::uint32_t{2}})) << id;
  }
  table.clear();  // waits for both
  EXPECT_EQ(table.size(), 0U);
}

}  // namespace
}  // namespace engine
