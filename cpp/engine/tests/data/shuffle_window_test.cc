// A window returns the content of its rows in an order that depends on seed and number alone.
#include "engine/data/shuffle_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "engine/error.h"
#include "transforms/made_rows.h"

namespace engine::data {
namespace {

struct Seen {
  std::vector<std::uint64_t> keys;
  std::vector<std::vector<std::byte>> cells;  // arm, field and bytes of each, row by row
  std::vector<std::byte> infos;

  bool operator==(const Seen&) const = default;
};

void see(Seen& seen, const Rows& rows, std::uint32_t columns) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const RowInfo& info = rows.info(i);
    seen.keys.push_back(info.key);
    const Bytes labels = std::as_bytes(std::span(info.labels, info.label_count));
    for (const Bytes bytes : {info.line, info.flat_fids, labels}) {
      seen.infos.insert(seen.infos.end(), bytes.begin(), bytes.end());
      seen.infos.push_back(static_cast<std::byte>(bytes.size()));
    }
    for (std::uint32_t column = 0; column < columns; ++column) {
      const Cell cell = rows.cell(i, column);
      auto& bytes = seen.cells.emplace_back(cell.bytes().begin(), cell.bytes().end());
      bytes.push_back(static_cast<std::byte>(cell.arm));
      bytes.push_back(static_cast<std::byte>(cell.field));
    }
  }
}

Seen see_all(ShuffleWindow& window, std::uint32_t columns) {
  Seen seen;
  while (window.left() != 0) see(seen, window.read(), columns);
  return seen;
}

std::vector<std::uint64_t> order(std::size_t count, std::uint64_t seed) {
  std::vector<std::uint64_t> order(count);
  std::iota(order.begin(), order.end(), 0U);
  for (std::size_t left = count; left > 1; --left) {
    std::swap(order[left - 1], order[static_cast<std::size_t>(unit(mix(seed, left)) * static_cast<double>(left))]);
  }
  return order;
}

// Rows with cells of every form: short, long, absent, of several arms, shared by all rows, and in one block only.
MadeRows make_rows(std::uint32_t count, std::uint64_t first_key, bool has_last) {
  MadeRows made(count, has_last ? 7 : 6);
  made.ids(0, 4, {77, 78});
  const Cell shared = made.at(0).cell(4);
  for (std::uint32_t row = 0; row < count; ++row) {
    const auto number = static_cast<std::int64_t>(first_key + row);
    made.at(row).info().key = first_key + row;
    made.ids(row, 0, {number});
    if (number % 7 != 0) made.ids(row, 1, std::vector<std::int64_t>(static_cast<std::size_t>(number % 7), number));
    if (row % 5 != 0) made.bytes(row, 2, std::string(static_cast<std::size_t>(1 + number % 300), 'a'), Arm::kBytes, 6);
    if (row % 3 == 0) made.bytes(row, 3, "abc", Arm::kBytes, 1);
    if (row % 3 == 1) made.ids(row, 3, {number}, Arm::kFidV1);
    made.rows.blocks[0]->set_cell(row, 4, shared);
    if (has_last) made.ids(row, 6, {number, number + 1, number + 2});
    made.labels(row, {static_cast<float>(row)});
    if (row % 2 == 0) made.line(row, "req_time", number);
  }
  return made;
}

TEST(ShuffleWindowTest, a_window_returns_the_content_of_its_rows_in_the_order_of_the_seed) {
  for (const std::size_t room : {0U, 1U, 5000U}) {  // rows that the window misses
    Seen expected;
    Seen seen;
    {
      MadeRows one = make_rows(1500, 0, false);
      MadeRows other = make_rows(1300, 1500, true);
      Rows all = one.rows;
      all.append(other.rows);
      Rows sorted;
      sorted.blocks = all.blocks;
      for (const std::uint64_t row : order(all.size(), 9)) sorted.refs.push_back(all.refs[row]);
      see(expected, sorted, 7);

      ShuffleWindow window(all.size() + room, 9);
      window.add(all.slice(0, 700));
      window.add(all.slice(700, 1600));
      window.add(all.slice(1600, all.size()));
      EXPECT_EQ(window.missing(), room);
      one.rows = other.rows = all = sorted = {};
      seen = see_all(window, 7);
    }
    EXPECT_TRUE(seen == expected) << "window with room for " << room << " more rows";
  }
}

TEST(ShuffleWindowTest, rows_live_longer_than_the_window) {
  Rows rows;
  {
    ShuffleWindow window(10, 1);
    window.add(make_rows(10, 0, true).rows);
    rows = window.read();
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(ids_of(rows.cell(i, 0))[0], static_cast<std::int64_t>(rows.info(i).key));
  }
}

TEST(ShuffleWindowTest, a_block_is_free_when_its_values_are_copied) {
  ShuffleWindow window(6, 1);
  std::weak_ptr<Block> blocks[2];
  {
    MadeRows one(3);
    MadeRows other(3);
    one.ids(2, 0, {7});
    other.ids(2, 0, {8}, Arm::kFidV1);  // cells of several arms are copied one by one
    blocks[0] = one.rows.blocks[0];
    blocks[1] = other.rows.blocks[0];
    Rows all = one.rows;
    all.append(other.rows);
    window.add(all);
  }
  for (const auto& block : blocks) EXPECT_TRUE(block.expired());
}

TEST(ShuffleWindowTest, a_value_that_rows_share_stays_one) {
  ShuffleWindow window(40, 2);
  window.add(make_rows(40, 0, false).rows);
  const Rows rows = window.read();
  for (std::size_t i = 1; i < rows.size(); ++i) EXPECT_EQ(rows.cell(i, 4).data, rows.cell(0, 4).data);
}

TEST(ShuffleWindowTest, a_window_of_many_pieces_returns_every_row_once) {
  constexpr std::uint32_t kRows = 70'000;
  MadeRows made(kRows, 1);
  for (std::uint32_t row = 0; row < kRows; ++row) {
    made.at(row).info().key = row;
    made.ids(row, 0, {row});
  }
  ShuffleWindow window(kRows, 5);
  window.add(made.rows);
  std::vector<std::uint64_t> keys;
  while (window.left() != 0) {
    const Rows rows = window.read();
    EXPECT_LE(rows.size(), ShuffleWindow::kPieceRows);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      ASSERT_EQ(ids_of(rows.cell(i, 0)), std::vector<std::int64_t>{static_cast<std::int64_t>(rows.info(i).key)});
      keys.push_back(rows.info(i).key);
    }
  }
  EXPECT_EQ(keys, order(kRows, 5));
}

TEST(ShuffleWindowTest, a_window_without_rows_returns_none) {
  ShuffleWindow window(100, 3);
  EXPECT_EQ(window.left(), 0U);
  EXPECT_EQ(window.read().size(), 0U);
  ShuffleWindow empty(0, 3);
  EXPECT_EQ(empty.read().size(), 0U);
}

TEST(ShuffleWindowTest, a_window_refuses_rows_that_it_has_no_room_for) {
  MadeRows made(3, 1);
  ShuffleWindow window(2, 3);
  EXPECT_THROW(window.add(made.rows), ConfigError);
  window.add(made.rows.slice(0, 1));
  (void)window.read();
  EXPECT_THROW(window.add(made.rows.slice(1, 2)), ConfigError);
}

}  // namespace
}  // namespace engine::data
