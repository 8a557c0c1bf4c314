#include "engine/data/transforms/item_pool.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <utility>

#include "engine/data/transforms/negatives.h"
#include "engine/error.h"
#include "made_rows.h"

namespace engine::data {
namespace {

std::shared_ptr<const ItemFeatures> features(std::int64_t id) {
  const std::vector<Cell> cells = {
      {reinterpret_cast<const std::byte*>(&id), sizeof id, Arm::kFidV2, 0},
  };
  return ItemFeatures::copy(cells, {id});
}

void see(ItemPool& pool, std::int64_t channel, std::int64_t item) {
  if (!pool.count(channel, item)) pool.insert(channel, item, features(item));
}

TEST(ItemPoolTest, is_a_queue_per_channel) {
  ItemPool pool({"a"}, 3);
  for (const std::int64_t item : {1, 2, 1, 3, 4, 1}) see(pool, 7, item);
  see(pool, 8, 5);
  EXPECT_EQ(pool.size(), 4U);
  std::vector<std::int64_t> ids;
  for (const auto& item : pool.items(7)) ids.push_back(item.id);
  EXPECT_EQ(ids, (std::vector<std::int64_t>{3, 4, 1}));  // 1 left when 4 came, and came again: 2 left
  EXPECT_EQ(pool.items(7).back().seen_count, 1);
  EXPECT_EQ(pool.channel_at(2), 7);
  EXPECT_EQ(pool.channel_at(3), 8);
  EXPECT_EQ(pool.sample(7, 1).sample_count, 1);
  EXPECT_EQ(pool.sample(7, 1).sample_count, 2);
  EXPECT_EQ(pool.channel_size(9), 0U);
}

TEST(ItemPoolTest, tells_its_state_at_every_live_mark) {
  std::mt19937 random(11);
  ItemPool pool({"a"}, 5);
  std::deque<std::pair<std::uint64_t, std::vector<std::byte>>> live;
  for (int round = 0; round < 4000; ++round) {
    const std::int64_t channel = 1 + static_cast<std::int64_t>(random() % 3);
    switch (random() % 8) {
      case 0:
        live.emplace_back(pool.mark(), pool.state());
        break;
      case 1:
        if (!live.empty()) {
          const std::size_t which = random() % live.size();  // not always the oldest
          pool.release(live[which].first);
          live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
        }
        break;
      case 2:
      case 3:
        if (const auto size = pool.channel_size(channel); size > 0) pool.sample(channel, random() % size);
        break;
      default:
        see(pool, channel, 1 + static_cast<std::int64_t>(random() % 12));
    }
    if (round % 50 != 0) continue;
    for (const auto& [mark, state] : live) ASSERT_EQ(pool.state_at(mark), state) << "round " << round;
  }
  for (const auto& [mark, state] : live) pool.release(mark);
  see(pool, 1, 1);
  EXPECT_EQ(pool.log_size(), 0U);
}

TEST(ItemPoolTest, a_restored_pool_goes_on_as_the_saved_one) {
  ItemPool pool({"a"}, 4);
  for (std::int64_t item = 1; item < 9; ++item) see(pool, item % 2, item);
  pool.sample(1, 0);
  ItemPool other({"a"}, 4);
  const auto state = pool.state();
  other.restore({state}, "test");
  for (ItemPool* each : {&pool, &other}) {
    see(*each, 1, 77);
    see(*each, 1, 3);
    see(*each, 1, 78);
    each->sample(1, 2);
  }
  EXPECT_EQ(other.state(), pool.state());
  EXPECT_EQ(other.size(), pool.size());
}

TEST(ItemPoolTest, garbage_is_refused_and_changes_nothing) {
  ItemPool pool({"a"}, 4);
  for (std::int64_t item = 1; item < 5; ++item) see(pool, 3, item);
  const auto state = pool.state();
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    auto damaged = state;
    damaged[random() % damaged.size()] ^= static_cast<std::byte>(1 + random() % 255);
    EXPECT_THROW(pool.restore({damaged}, "test"), RecordCorrupt);
  }
  EXPECT_EQ(pool.state(), state);
}

TEST(NegativeGenTest, generated_rows_outlive_pool_and_source) {
  Rows rows;
  {
    MadeRows made(30);
    for (std::uint32_t row = 0; row < 30; ++row) {
      made.labels(row, {1});
      made.line(row, "item_id", row + 1);
      made.ids(row, 0, {-std::int64_t{row}});
      made.ids(row, 1, {std::int64_t{row} + 1});
    }
    NegativeGenConfig config;
    config.rows.item_features = {{"item", 1, -1}};
    config.count = 2;
    config.start_count = 2;
    config.max_items = 5;
    const auto op = make_negative_gen(config, 9);
    op->run(made.rows);
    EXPECT_EQ(op->rows_out, made.rows.size());
    rows = std::move(made.rows);
  }
  ASSERT_EQ(rows.size(), 30 + 28 * 2U);
  std::int64_t user = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(ids_of(rows.cell(i, 1)), (std::vector<std::int64_t>{item_of(rows.info(i))}));
    EXPECT_EQ(ids_of(rows.cell(i, 0)), (std::vector<std::int64_t>{user}));
    const bool is_negative = rows.info(i).labels[0] == -1;
    EXPECT_EQ(is_negative, item_of(rows.info(i)) != 1 - user);
    if (!is_negative) --user;
  }
}

}  // namespace
}  // namespace engine::data
