// Rules on rows that no parser made: values that records cannot spell, and values that must not change.
#include <gtest/gtest.h>

#include <algorithm>

#include "data/transforms/int_map.h"
#include "engine/data/row_op.h"
#include "engine/data/transforms/features.h"
#include "engine/data/transforms/filters.h"
#include "engine/data/transforms/labels.h"
#include "engine/data/transforms/sampling.h"
#include "engine/data/transforms/values.h"
#include "engine/error.h"
#include "engine/fid.h"
#include "made_rows.h"

namespace engine::data {
namespace {

TEST(IntMapTest, finds_few_and_many_keys) {
  for (const std::size_t count : {0U, 1U, 8U, 9U, 1000U}) {
    std::vector<std::int64_t> keys;
    for (std::size_t i = 0; i < count; ++i) keys.push_back(static_cast<std::int64_t>(i * 0x9e3779b97f4a7c15ULL));
    auto twice = keys;
    twice.insert(twice.end(), keys.begin(), keys.end());
    const IntMap map(twice);
    ASSERT_EQ(map.size(), count);
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(map.find(keys[i]), static_cast<std::int32_t>(i));
    EXPECT_FALSE(map.has(1));
  }
}

TEST(RuleOpTest, asks_rules_in_order_and_counts) {
  MadeRows made(6);
  for (std::uint32_t row = 0; row < 6; ++row) made.line(row, "actions", row % 3);
  const auto op = make_rule_op({make_filter_by_action({0, 1}), make_filter_by_action({1, 2})});
  op->run(made.rows);
  ASSERT_EQ(made.rows.size(), 2U);
  EXPECT_EQ(made.rows.refs[0].row, 1U);
  EXPECT_EQ(made.rows.refs[1].row, 4U);
  EXPECT_EQ(op->rows_in, 6U);
  EXPECT_EQ(op->rows_out, 2U);
  EXPECT_FALSE(op->has_state());
}

TEST(RuleOpTest, a_filter_by_columns_keeps_the_rows_that_a_filter_by_rows_keeps) {
  FidFilter filter;
  for (std::int64_t id = 0; id < 40; ++id) filter.filter_fids.push_back(id * 37);
  filter.req_time_min = 5;
  const RulePtr rule = make_filter_by_fids(filter);
  MadeRows made(400, 4);
  std::uint64_t draw = 7;
  const auto next = [&draw] { return static_cast<std::int64_t>((draw = mix(1, draw)) % 1500); };
  std::vector<std::int64_t> flat(2 * 400);
  for (std::uint32_t row = 0; row < 400; ++row) {
    made.line(row, "req_time", next() % 50);
    for (std::uint32_t column = 0; column < 3; ++column) {
      made.ids(row, column, {next(), next(), next()}, column == 0 ? Arm::kFidV1 : Arm::kFidV2);
    }
    made.bytes(row, 3, "no ids", Arm::kBytes, 1);
    flat[2 * row] = next();
    flat[2 * row + 1] = next();
    made.at(row).info().flat_fids = std::as_bytes(std::span(flat).subspan(2 * row, 2));
  }
  std::reverse(made.rows.refs.begin(), made.rows.refs.end());
  std::vector<std::uint32_t> expected;
  for (const Rows::Ref ref : made.rows.refs) {
    if (rule->apply(made.at(ref.row))) expected.push_back(ref.row);
  }
  ASSERT_GT(expected.size(), 20U);
  ASSERT_LT(expected.size(), 380U);
  make_rule_op({rule})->run(made.rows);
  std::vector<std::uint32_t> kept;
  for (const Rows::Ref ref : made.rows.refs) kept.push_back(ref.row);
  EXPECT_EQ(kept, expected);
}

TEST(RuleOpTest, a_filter_by_columns_names_the_row_that_cannot_be_read) {
  MadeRows made(3);
  made.bytes(2, 1, "1234567", Arm::kFidV2, 0);
  FidFilter filter;
  filter.filter_fids = {5};
  try {
    make_rule_op({make_filter_by_fids(filter)})->run(made.rows);
    FAIL();
  } catch (const RecordCorrupt& error) {
    EXPECT_NE(std::string(error.what()).find("row 2 of the lot cannot be read"), std::string::npos) << error.what();
  }
}

TEST(RuleOpTest, names_the_row_that_cannot_be_read) {
  MadeRows made(2);
  const auto bad = std::byte{0x32};
  made.at(1).info().line = {&bad, 1};
  const auto op = make_rule_op({make_filter_by_label({0.0F}, false), make_filter_by_action({1})});
  made.labels(0, {1});
  made.labels(1, {1});
  try {
    op->run(made.rows);
    FAIL();
  } catch (const RecordCorrupt& error) {
    EXPECT_NE(std::string(error.what()).find("row 1 of the lot cannot be read at byte 1 of its LineId"),
              std::string::npos)
        << error.what();
  }
}

TEST(LabelRuleTest, labels_shared_by_rows_are_not_written_to) {
  MadeRows made(2);
  made.labels(0, {3, 4});
  made.at(1).info().labels = made.at(0).info().labels;
  made.at(1).info().label_count = 2;
  EXPECT_TRUE(make_label_upper_bound({1.0F, 1.0F})->apply(made.at(0)));
  EXPECT_EQ(made.at(0).info().labels[0], 1);
  EXPECT_EQ(made.at(1).info().labels[0], 3);
}

TEST(SwitchSlotTest, cells_shared_by_rows_are_not_written_to) {
  MadeRows made(2);
  made.ids(0, 0, {make_fid_v2(3, 9)});
  made.rows.blocks[0]->set_cell(1, 0, made.at(0).cell(0));
  EXPECT_TRUE(make_switch_slot({{{"a", 0, -1}, 0, 4}})->apply(made.at(0)));
  EXPECT_EQ(ids_of(made.at(0).cell(0)), (std::vector<std::int64_t>{make_fid_v2(4, 9)}));
  EXPECT_EQ(ids_of(made.at(1).cell(0)), (std::vector<std::int64_t>{make_fid_v2(3, 9)}));
}

TEST(FilterByFidsTest, sees_lists_under_any_field_number_and_unpacked_ids) {
  MadeRows made(1);
  // Field 7: {1: packed [5]}; field 7: {1: fixed64 6}; field 3 is something else.
  const std::string lists(
      "\x3a\x0a\x0a\x08\x05\0\0\0\0\0\0\0"
      "\x1a\x01\x61"
      "\x3a\x09\x09\x06\0\0\0\0\0\0\0",
      26);
  made.bytes(0, 1, lists, Arm::kFidV2Lists, 7);
  FidFilter filter;
  filter.select_fids = {6, 5};
  EXPECT_TRUE(make_filter_by_fids(filter)->apply(made.at(0)));
  filter.filter_fids = {6};
  EXPECT_FALSE(make_filter_by_fids(filter)->apply(made.at(0)));
}

TEST(FilterByFidsTest, a_cell_of_a_broken_size_is_an_error) {
  MadeRows made(1);
  made.bytes(0, 0, "1234567", Arm::kFidV2, 0);
  FidFilter filter;
  filter.has_fids = {6};
  EXPECT_THROW(make_rule_op({make_filter_by_fids(filter)})->run(made.rows), RecordCorrupt);
}

TEST(ValueTestTest, in_and_not_in_take_unsorted_operands) {
  Operands operands;
  operands.ints = {9, -3, 5, 5};
  const ValueTest in("x", FieldKind::kInt, false, "in", operands);
  const ValueTest out("x", FieldKind::kInt, false, "not-in", operands);
  for (const std::int64_t value : {9, -3, 5, 0}) {
    EXPECT_EQ(in.holds(value), value != 0);
    EXPECT_EQ(out.holds(value), value == 0);
  }
}

TEST(ReweightTest, copies_live_in_a_block_of_their_own_and_outlive_the_source) {
  Rows rows;
  {
    MadeRows made(2);
    for (std::uint32_t row = 0; row < 2; ++row) {
      made.labels(row, {0});
      made.line(row, "actions", 1);
      made.ids(row, 1, {row + 50});
    }
    Reweighting config;
    config.action_priority = {1};
    config.weights = {{1, 3, 1.0F}};
    make_reweight(config, 1)->run(made.rows);
    rows = made.rows.slice(1, 6);
  }
  ASSERT_EQ(rows.size(), 5U);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(ids_of(rows.cell(i, 1)), (std::vector<std::int64_t>{i < 2 ? 50 : 51}));
    EXPECT_EQ(rows.info(i).labels[0], 1);
  }
  EXPECT_NE(rows.info(0).key, rows.info(1).key);
}

}  // namespace
}  // namespace engine::data
