// row_plan_test.cc: a step with a plan leaves the same bits as a step without one, also when rows change in between.
#include "engine/row_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <unordered_set>
#include <vector>

#include "engine/error.h"
#include "engine/table.h"

namespace engine {
namespace {

constexpr std::uint32_t kDim = 5;

SliceConfig slice_of(std::uint32_t dim, const std::string& optimizer = "adagrad") {
  SliceConfig slice;
  slice.dim = dim;
  slice.optimizer = {optimizer, {}};
  if (optimizer == "adagrad") {
    slice.optimizer.settings = {{"initial_accumulator_value", 0.1}, {"weight_decay_factor", 0.01}};
  }
  slice.initializer = {"random_uniform", {{"minval", -1.0}, {"maxval", 1.0}}};
  slice.compressor = {"fp32", {}};
  return slice;
}

TableConfig config_of(std::vector<SliceConfig> slices) {
  TableConfig config;
  config.name = "t";
  config.slices = std::move(slices);
  config.expire_days = 3;
  return config;
}

// One batch: ids in ragged bags, with a gradient per target.
struct Batch {
  std::vector<std::int64_t> ids;
  std::vector<std::int64_t> offsets;
  std::vector<float> grads;
  std::vector<std::uint32_t> counts;
  Pooling pooling = Pooling::kNone;

  [[nodiscard]] Bags bags() const {
    Bags bags{.ids = ids, .offsets = {}, .pooling = pooling, .first_n = 2};
    if (pooling != Pooling::kNone) bags.offsets = offsets;
    return bags;
  }
};

class Batches {
 public:
  explicit Batches(std::uint64_t seed) : random_(seed) {}

  Batch draw(std::size_t count, std::int64_t universe, bool is_skewed, Pooling pooling, std::size_t dim) {
    Batch batch;
    batch.pooling = pooling;
    for (std::size_t i = 0; i < count; ++i) {
      const double point = static_cast<double>(random_() >> 11) * 0x1p-53;
      const double rank =
          is_skewed ? std::pow(static_cast<double>(universe), point) - 1.0 : point * static_cast<double>(universe);
      batch.ids.push_back(static_cast<std::int64_t>(rank) * 7919 - 100);
      batch.counts.push_back(static_cast<std::uint32_t>(1 + random_() % 3));
    }
    batch.offsets = {0};
    while (batch.offsets.back() < static_cast<std::int64_t>(count)) {
      // Empty bags, and bags longer than a block of the lookup.
      const std::int64_t length = random_() % 50 == 0 ? 700 : static_cast<std::int64_t>(random_() % 6);
      batch.offsets.push_back(std::min<std::int64_t>(batch.offsets.back() + length, static_cast<std::int64_t>(count)));
    }
    batch.grads.resize(batch.bags().targets() * dim);
    // Four gradients of each number: drawing is most of the time of these tests.
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < batch.grads.size(); ++i) {
      bits = i % 4 == 0 ? random_() : bits >> 16;
      batch.grads[i] = static_cast<float>((bits & 0xffff) % 2001) * 1e-3F - 1.0F;
    }
    return batch;
  }
  std::uint64_t next() { return random_(); }

 private:
  std::mt19937_64 random_;
};

// Everything that a table shows: rows with state and times, touched ids, counters.
struct Picture {
  std::vector<std::int64_t> ids;
  std::vector<std::uint32_t> times;
  std::vector<std::byte> rows;
  std::vector<std::int64_t> touched;
  std::uint64_t refused = 0;
  std::uint64_t filtered = 0;
  std::size_t memory = 0;
  std::int64_t clock = 0;

  bool operator==(const Picture&) const = default;
};

Picture picture_of(Table& table) {
  Picture picture;
  for (std::size_t part = 0; part < kParts; ++part) {
    const auto ids = table.part_ids(part);
    const RawRows raw = table.raw_rows(ids);
    picture.ids.insert(picture.ids.end(), raw.ids.begin(), raw.ids.end());
    picture.times.insert(picture.times.end(), raw.times.begin(), raw.times.end());
    picture.rows.insert(picture.rows.end(), raw.rows.begin(), raw.rows.end());
  }
  picture.touched = table.drain_touched();
  picture.refused = table.stats().nan_rows_skipped;
  picture.filtered = table.stats().ids_filtered;
  picture.memory = table.memory_bytes();
  picture.clock = table.max_time_s();
  return picture;
}

// The rows of a cut, in the order in which it hands them out.
std::vector<std::byte> read_cut(Table& table, const Table::Cut& cut) {
  std::vector<std::byte> all;
  for (std::size_t part = 0; part < kParts; ++part) {
    std::vector<std::pair<std::int64_t, std::vector<std::byte>>> rows;
    table.visit_cut(
        cut, part, 100,
        [&](const Table::CutRows& some) {
          for (std::size_t i = 0; i < some.ids.size(); ++i) {
            std::vector<std::byte> row;
            table.schema().append_packed(some.rows[i], row);
            const auto* time = reinterpret_cast<const std::byte*>(&some.times[i]);
            row.insert(row.end(), time, time + sizeof some.times[i]);
            rows.emplace_back(some.ids[i], std::move(row));
          }
        },
        [] {});
    std::sort(rows.begin(), rows.end());
    for (const auto& [id, row] : rows) all.insert(all.end(), row.begin(), row.end());
  }
  table.end_cut();
  return all;
}

// A table that is trained with plans, and one that is not.
class Pair {
 public:
  // With `is_distinct` the plan gets batches without a second occurrence of an id, and numbers none.
  Pair(const TableConfig& config, unsigned threads, bool is_distinct)
      : pool_(std::make_shared<Pool>(threads)),
        planned_(config, pool_),
        plain_(config, pool_),
        is_distinct_(is_distinct) {
    for (Table* table : both()) (void)table->drain_touched();  // starts the tracking
  }

  std::array<Table*, 2> both() { return {&planned_, &plain_}; }

  // A lookup, then `between` on each table, then the update.
  void step(const Batch& batch, std::uint32_t time_s, const std::function<void(Table&)>& between = {}) {
    std::array<std::vector<float>, 2> outs;
    std::array<std::vector<std::uint8_t>, 2> founds;
    for (std::size_t k = 0; k < 2; ++k) {
      Table& table = *both()[k];
      RowPlan* plan = k == 0 ? &plan_ : nullptr;
      const std::size_t dim = table.schema().dim();
      outs[k].assign(batch.bags().targets() * dim, 99.0F);
      founds[k].assign(batch.pooling == Pooling::kNone ? batch.ids.size() : 0, 9);
      const LookupJob lookup{.table = &table,
                             .bags = batch.bags(),
                             .out = outs[k].data(),
                             .found = founds[k].empty() ? nullptr : founds[k].data(),
                             .plan = plan,
                             .is_distinct = plan != nullptr && is_distinct_ && batch.pooling == Pooling::kNone};
      Table::lookup_all({&lookup, 1}, *pool_);
      if (between) between(table);
      const std::vector<float> rates(table.schema().slices().size(), 0.1F);
      GradientJob job{.table = &table,
                      .bags = plan == nullptr ? batch.bags() : Bags{},
                      .grads = batch.grads.data(),
                      .counts = {},
                      .latest = nullptr,
                      .learning_rates = rates,
                      .time_s = time_s,
                      .step = 1,
                      .dedup = dedup_,
                      .plan = plan};
      if (batch.pooling == Pooling::kNone) job.counts = batch.counts;
      Table::apply_all({&job, 1}, *pool_);
    }
    const std::size_t size = outs[0].size() * sizeof(float);
    ASSERT_TRUE(size == 0 || std::memcmp(outs[0].data(), outs[1].data(), size) == 0);
    ASSERT_EQ(founds[0], founds[1]);
  }

  void expect_same() { EXPECT_TRUE(picture_of(planned_) == picture_of(plain_)); }
  void set_dedup(bool dedup) { dedup_ = dedup; }
  [[nodiscard]] bool is_distinct() const { return is_distinct_; }

 private:
  std::shared_ptr<Pool> pool_;
  Table planned_;
  Table plain_;
  RowPlan plan_;
  bool is_distinct_;
  bool dedup_ = true;
};

// Leaves the first occurrence of each id.
void drop_repeats(Batch& batch, std::size_t dim) {
  std::unordered_set<std::int64_t> seen;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < batch.ids.size(); ++i) {
    if (!seen.insert(batch.ids[i]).second) continue;
    batch.ids[kept] = batch.ids[i];
    batch.counts[kept++] = batch.counts[i];
  }
  batch.ids.resize(kept);
  batch.counts.resize(kept);
  batch.grads.resize(kept * dim);
}

constexpr std::uint32_t kDay = 86400;

// Some steps of every kind of bag, with and without skew, small and large.
void train(Pair& pair, std::uint64_t seed, std::size_t dim, const std::function<void(Batch&)>& change = {},
           const std::function<void(Table&, std::uint64_t)>& between = {}) {
  Batches batches(seed);
  std::uint32_t time_s = kDay;
  for (const Pooling pooling : {Pooling::kNone, Pooling::kSum, Pooling::kMean, Pooling::kFirst}) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{40}, std::size_t{6000}}) {
      for (const bool is_skewed : {false, true}) {
        const Pooling drawn = pair.is_distinct() ? Pooling::kNone : pooling;
        Batch batch = batches.draw(count, 9000, is_skewed, drawn, dim);
        if (pair.is_distinct()) drop_repeats(batch, dim);
        if (change) change(batch);
        const std::uint64_t draw = batches.next();
        pair.step(batch, time_s, between ? [&](Table& table) { between(table, draw); } : std::function<void(Table&)>());
        if (testing::Test::HasFatalFailure()) return;
        time_s += kDay / 4;
      }
    }
  }
  pair.expect_same();
}

class RowPlanBits : public testing::TestWithParam<std::tuple<unsigned, std::uint64_t, bool>> {
 protected:
  [[nodiscard]] unsigned threads() const { return std::get<0>(GetParam()); }
  [[nodiscard]] std::uint64_t seed() const { return std::get<1>(GetParam()); }
  [[nodiscard]] bool is_distinct() const { return std::get<2>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(ThreadsAndSeeds, RowPlanBits,
                         testing::Combine(testing::Values(1U, 2U), testing::Values(1U, 2U), testing::Bool()));

TEST_P(RowPlanBits, AStepWithAPlanIsAStepWithout) {
  for (const std::uint32_t dim : {1U, 16U, kDim}) {
    Pair pair(config_of({slice_of(dim)}), threads(), is_distinct());
    train(pair, seed(), dim);
  }
}

TEST_P(RowPlanBits, SlicesAndCompressorsAreTheSame) {
  std::vector<SliceConfig> slices = {slice_of(kDim), slice_of(3, "adagrad"), slice_of(1)};
  slices[1].compressor = {"fp16", {}};
  slices[2].stochastic_rounding = true;
  TableConfig config = config_of(slices);
  config.miss_is_initial = true;
  Pair pair(config, threads(), is_distinct());
  train(pair, seed(), kDim + 4);
}

TEST_P(RowPlanBits, AdmissionAsksTheFilterInTheSameOrder) {
  TableConfig config = config_of({slice_of(kDim)});
  config.admission = {.kind = "sliding_hash_filter", .settings = {{"capacity", 3000}, {"split_num", 5}}};
  config.occurrence_threshold = 3;
  config.is_deterministic = true;
  Pair pair(config, threads(), is_distinct());
  train(pair, seed(), kDim);
}

TEST_P(RowPlanBits, GradientsThatAreNotFiniteLeaveTheirRows) {
  for (const NanPolicy policy : {NanPolicy::kSkip, NanPolicy::kApply}) {
    TableConfig config = config_of({slice_of(kDim)});
    config.nan_policy = policy;
    Pair pair(config, threads(), is_distinct());
    Batches places(seed());
    train(pair, seed(), kDim, [&](Batch& batch) {
      for (std::size_t i = 0; i < batch.grads.size() / 100; ++i) {
        batch.grads[places.next() % batch.grads.size()] = std::numeric_limits<float>::quiet_NaN();
      }
    });
  }
}

TEST_P(RowPlanBits, OneStepPerOccurrenceIsTheSame) {
  Pair pair(config_of({slice_of(kDim)}), threads(), is_distinct());
  pair.set_dedup(false);
  train(pair, seed(), kDim);
}

TEST_P(RowPlanBits, RowsThatComeOrGoBetweenLookupAndUpdateAreSearchedAgain) {
  Pair pair(config_of({slice_of(kDim)}), threads(), is_distinct());
  train(pair, seed(), kDim, {}, [](Table& table, std::uint64_t draw) {
    Batches batches(draw);
    const Batch other = batches.draw(2000, 9000, false, Pooling::kNone, kDim);
    switch (draw % 6) {
      case 0:
        table.erase(other.ids);
        break;
      case 1:
        table.evict(table.max_time_s() + 2 * kDay, true);
        break;
      case 2: {  // many rows: every index grows
        std::vector<std::int64_t> ids(40000);
        for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(draw % 1000000 + i);
        table.assign(ids, std::vector<float>(ids.size() * kDim, 1.0F).data(), kDay);
        break;
      }
      case 3:
        table.clear();
        break;
      case 4:  // few rows, so that no entry moves
        table.assign(std::span(other.ids).first(50), other.grads.data(), kDay);
        break;
      default:
        table.assign(other.ids, other.grads.data(), kDay);
        table.erase(std::span(other.ids).first(1000));
    }
  });
}

TEST_P(RowPlanBits, ASnapshotInFlightHoldsTheRowsBeforeTheUpdate) {
  Pair pair(config_of({slice_of(kDim)}), threads(), is_distinct());
  train(pair, seed(), kDim);
  Batches batches(seed() + 100);
  const Batch batch = batches.draw(5000, 12000, true, Pooling::kSum, kDim);
  std::array<Table::Cut, 2> cuts;
  for (std::size_t k = 0; k < 2; ++k) {
    cuts[k] = pair.both()[k]->begin_cut();
    cuts[k].keeps_expired = true;
  }
  pair.step(batch, 9 * kDay);
  EXPECT_EQ(read_cut(*pair.both()[0], cuts[0]), read_cut(*pair.both()[1], cuts[1]));
  pair.expect_same();
}

TEST(RowPlan, AFullTableEvictsTheSameRowsForDistinctIds) {
  TableConfig config = config_of({slice_of(kDim)});
  config.expire_days = 36500;
  config.max_bytes = 1'500'000;
  config.evicts_when_full = true;
  for (const unsigned threads : {1U, 2U}) {
    Pair pair(config, threads, true);
    std::int64_t shift = 0;  // every batch brings new ids
    train(pair, 1, kDim, [&shift](Batch& batch) {
      shift += 1000003;
      for (std::int64_t& id : batch.ids) id += shift;
    });
    EXPECT_GT(pair.both()[0]->stats().rows_evicted_full, 0U);
    EXPECT_EQ(pair.both()[0]->stats().rows_evicted_full, pair.both()[1]->stats().rows_evicted_full);
  }
}

// A table of the plan's values, for the tests below.
struct Planned {
  std::shared_ptr<Pool> pool = std::make_shared<Pool>(1);
  Table table{config_of({slice_of(kDim)}), pool};
  RowPlan plan;
  std::vector<std::int64_t> ids = {1, 2, 1};
  std::vector<float> grads = std::vector<float>(3 * kDim, 1.0F);
  std::vector<float> rates = {0.1F};
  std::vector<float> out = std::vector<float>(3 * kDim);

  void look_up() {
    const LookupJob job{.table = &table, .bags = {.ids = ids}, .out = out.data(), .found = nullptr, .plan = &plan};
    Table::lookup_all({&job, 1}, *pool);
  }
  GradientJob job_for(Table& other) {
    return {.table = &other,
            .bags = {},
            .grads = grads.data(),
            .counts = {},
            .learning_rates = rates,
            .step = 1,
            .plan = &plan};
  }
};

TEST(RowPlan, AnUpdateRefusesAPlanThatIsNotItsTables) {
  Planned planned;
  EXPECT_FALSE(planned.plan.is_filled());
  const GradientJob empty = planned.job_for(planned.table);
  EXPECT_THROW(Table::apply_all({&empty, 1}, *planned.pool), ConfigError);
  planned.look_up();
  EXPECT_TRUE(planned.plan.is_filled());
  EXPECT_EQ(planned.plan.occurrences(), 3U);
  Table other(config_of({slice_of(kDim)}), planned.pool);
  const GradientJob wrong = planned.job_for(other);
  EXPECT_THROW(Table::apply_all({&wrong, 1}, *planned.pool), ConfigError);
  EXPECT_EQ(other.size(), 0U);
  const GradientJob right = planned.job_for(planned.table);
  Table::apply_all({&right, 1}, *planned.pool);
  EXPECT_EQ(planned.table.size(), 2U);
}

TEST(RowPlan, AnUpdateRefusesGradientsOfAnEarlierLookup) {
  Planned planned;
  planned.look_up();
  GradientJob job = planned.job_for(planned.table);
  job.planned_rows = planned.plan.targets();
  planned.ids.resize(200'000, 5);  // another thread fills the plan: there is no gradient for its last rows
  planned.out.resize(planned.ids.size() * kDim);
  planned.look_up();
  EXPECT_THROW(Table::apply_all({&job, 1}, *planned.pool), ConfigError);
  EXPECT_EQ(planned.table.size(), 0U);
}

TEST(RowPlan, APlanServesSeveralUpdatesAndOneCallAtATime) {
  Planned planned;
  planned.look_up();
  const GradientJob job = planned.job_for(planned.table);
  const std::array<GradientJob, 2> twice = {job, job};
  EXPECT_THROW(Table::apply_all(twice, *planned.pool), ConfigError);
  Table::apply_all({&job, 1}, *planned.pool);
  Table::apply_all({&job, 1}, *planned.pool);

  Table plain(config_of({slice_of(kDim)}), planned.pool);
  const GradientJob same{.table = &plain,
                         .bags = {.ids = planned.ids},
                         .grads = planned.grads.data(),
                         .counts = {},
                         .learning_rates = planned.rates,
                         .step = 1};
  Table::apply_all({&same, 1}, *planned.pool);
  Table::apply_all({&same, 1}, *planned.pool);
  EXPECT_EQ(planned.table.raw_rows(planned.ids).rows, plain.raw_rows(planned.ids).rows);
}

TEST(RowPlan, PlansOfManyThreadsLoseNoUpdate) {
  TableConfig config = config_of({slice_of(1, "sgd")});
  config.slices[0].initializer = {"zeros", {}};
  const auto pool = std::make_shared<Pool>(2);
  Table table(config, pool);
  std::vector<std::int64_t> ids(3000);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i % 2000);
  std::vector<std::thread> threads;
  constexpr int kSteps = 20;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      RowPlan plan;
      std::vector<float> out(ids.size());
      const std::vector<float> grads(ids.size(), -1.0F);
      const std::vector<float> rates = {1.0F};
      for (int step = 0; step < kSteps; ++step) {
        const LookupJob lookup{
            .table = &table, .bags = {.ids = ids}, .out = out.data(), .found = nullptr, .plan = &plan};
        Table::lookup_all({&lookup, 1}, *pool);
        if (thread == 2) table.erase(std::vector<std::int64_t>{5000 + step});
        const GradientJob job{
            .table = &table, .bags = {}, .grads = grads.data(), .counts = {}, .learning_rates = rates, .plan = &plan};
        Table::apply_all({&job, 1}, *pool);
        table.assign(std::vector<std::int64_t>{5000 + step}, grads.data(), 1);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  std::vector<float> out(ids.size());
  table.lookup(ids, out.data(), nullptr);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ASSERT_EQ(out[i], static_cast<float>(3 * kSteps * (ids[i] < 1000 ? 2 : 1))) << i;
  }
}

}  // namespace
}  // namespace engine
