// row_test.cc: the columns of a block, which exist from their first cell on.
#include "engine/data/row.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

namespace engine::data {
namespace {

constexpr std::byte kValues[4]{};
constexpr Cell kCell{kValues, sizeof kValues, Arm::kFloat, 0};

TEST(Block, AColumnWithoutCellsIsAbsentAndReadsAsNothing) {
  const Block block(3, 2);
  EXPECT_EQ(block.columns(), 2U);
  for (const std::uint32_t column : {0U, 1U, 2U, 1000U}) {
    EXPECT_EQ(block.find_column(column), nullptr);
    EXPECT_EQ(block.cell(2, column).arm, Arm::kNone);
  }
}

TEST(Block, TheFirstCellMakesAColumnWhoseOtherCellsHoldNothing) {
  Block block(3, 2);
  for (const std::uint32_t column : {1U, 5U}) {  // within and beyond the columns that the block was made with
    block.set_cell(1, column, kCell);
    const Cell* const cells = block.find_column(column);
    ASSERT_NE(cells, nullptr);
    EXPECT_EQ(cells[1].data, kValues);
    for (const std::uint32_t row : {0U, 2U}) {
      EXPECT_EQ(cells[row].data, nullptr);
      EXPECT_EQ(cells[row].size, 0U);
      EXPECT_EQ(cells[row].arm, Arm::kNone);
    }
    EXPECT_EQ(block.column(column), cells);
  }
  EXPECT_EQ(block.columns(), 6U);
  EXPECT_EQ(block.find_column(0), nullptr);
  EXPECT_EQ(block.find_column(4), nullptr);
}

TEST(Block, ColumnsStayWhereTheyAreWhenOthersCome) {
  Block block(2, 1);
  block.set_cell(0, 0, kCell);
  const Cell* const first = block.find_column(0);
  for (std::uint32_t column = 1; column < 50; ++column) block.set_cell(1, column, kCell);
  EXPECT_EQ(block.find_column(0), first);
  for (std::uint32_t column = 1; column < 50; ++column) EXPECT_EQ(block.cell(1, column).data, kValues);
}

TEST(Block, AColumnThatACallerWritesKeepsTheCellsThatItHas) {
  Block block(2, 1);
  Cell* const cells = block.unwritten_column(3);
  cells[0] = kCell;
  cells[1] = {};
  EXPECT_EQ(block.unwritten_column(3), cells);
  EXPECT_EQ(block.cell(0, 3).data, kValues);
  EXPECT_EQ(block.cell(1, 3).arm, Arm::kNone);
}

TEST(Block, ABlockWithoutRowsTakesColumns) {
  Block block(0, 0);
  EXPECT_NE(block.column(2), nullptr);
  EXPECT_EQ(block.columns(), 3U);
}

}  // namespace
}  // namespace engine::data
