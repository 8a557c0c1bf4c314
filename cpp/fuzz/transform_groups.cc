#include "transform_groups.h"

#include <memory>
#include <vector>

#include "engine/data/transforms/features.h"
#include "engine/data/transforms/filters.h"
#include "engine/data/transforms/labels.h"
#include "engine/data/transforms/negatives.h"
#include "engine/data/transforms/sampling.h"
#include "engine/data/transforms/values.h"
#include "target.h"

namespace fuzz {

namespace {

using namespace engine::data;
using Ops = std::vector<std::shared_ptr<RowOp>>;

constexpr std::uint64_t kSeed = 11;
// A cross makes ids by the product; rows that share their features make it many times.
constexpr std::size_t kMostCrossedRows = 64;

const LineField& field(const char* name) { return find_field(standard_line_fields(), name); }

void add_filters(Ops& ops) {
  FidFilter filter;
  filter.filter_fids = {1, -1};
  filter.req_time_min = -5;
  std::vector<RulePtr> rules{make_filter_by_fids(filter), make_set_source({1, 2, 3}, {256, 512, 768}, 1024)};
  std::vector<RulePtr> any{make_filter_by_action({1, 2}), make_filter_by_label({0, -1}, true),
                           make_filter_by_source({256, 1024})};
  rules.push_back(make_any_rule(any));
  ops.push_back(make_rule_op(rules));
}

void add_labels(Ops& ops) {
  MultiLabel multi;
  multi.head_field = field("chnid");
  multi.int_heads = {0, 1, 2};
  multi.places = {0, 1, 2};
  multi.task_count = 3;
  multi.positive_actions = {1};
  multi.action_priority = {2, 1};
  std::vector<RulePtr> rules{
      make_add_label({{{1}, {2}, 0.5}, {{3}, {}, 0.25}}, 0, 0.5, kSeed),
      make_use_field_as_label(field("sample_rate"), true, 3),
      make_label_upper_bound({0.5F, 2}),
      make_label_normalization({Normalization::kLog, Normalization::kScale, Normalization::kScaleInt,
                                Normalization::kPow, Normalization::kRepow, Normalization::kScaleLog},
                               {1, 2, 3, 0.5, 2, 1}),
      make_fill_rank(RankSource::kDraw, 0),
      make_fill_rank(RankSource::kChnid, 0),
      make_fill_rank(RankSource::kRank, 8),
      make_scatter_label({0, 1}, {0, 4}),
      make_multi_label(multi),
  };
  ops.push_back(make_rule_op(rules));
}

void add_features(Ops& ops, const Columns& columns, std::size_t rows) {
  const FeatureRef a{"a", columns.find("a"), 7};
  const FeatureRef b{"b", columns.find("b"), 3};
  const std::uint32_t made = columns.find("made");
  std::vector<RulePtr> rules{make_switch_slot({{a, a.column, 12}, {b, made, 2000}})};
  if (rows <= kMostCrossedRows) rules.push_back(make_feature_combine(a, b, 5, made));
  ops.push_back(make_rule_op(rules));
  const std::uint32_t d = columns.find("d");
  const std::uint32_t i = columns.find("i");
  const std::uint32_t t = columns.find("t");
  ops.push_back(make_rule_op({make_extract_fid("t", t, made, 6, Extraction::kHash, 1)}));
  ops.push_back(make_rule_op({make_extract_fid("i", i, made, 6, Extraction::kInt, 1)}));
  ops.push_back(make_rule_op({make_extract_fid("i", i, made, 6, Extraction::kInt64Hash, 1)}));
  ops.push_back(make_rule_op({make_extract_fid("d", d, made, 6, Extraction::kLog2, 1)}));
  ops.push_back(make_rule_op({make_extract_fid("d", d, made, 6, Extraction::kLn, 1000)}));
  ops.push_back(make_rule_op({make_extract_fid("d", d, made, 6, Extraction::kRatio, 1e9)}));
}

void add_values(Ops& ops, const Columns& columns) {
  std::vector<RulePtr> rules;
  Operands ints;
  ints.ints = {1, 2, 1'700'000'000};
  Operands one;
  one.ints = {3};
  Operands real;
  real.reals = {0.5};
  Operands texts;
  texts.texts = {"a", "ab", ""};
  rules.push_back(make_filter_by_value(field("uid"), "not-in", ints, true));
  rules.push_back(make_filter_by_value(field("sample_rate"), "ge", real, true));
  rules.push_back(make_filter_by_value(field("actions"), "any", ints, true));
  rules.push_back(make_filter_by_value(field("device_type"), "in", texts, true));
  rules.push_back(make_filter_by_feature_value("i", columns.find("i"), FeatureKind::kInt64, "gt", one, true));
  rules.push_back(make_filter_by_feature_value("a", columns.find("a"), FeatureKind::kFid, "diff", ints, true));
  rules.push_back(make_filter_by_feature_value("d", columns.find("d"), FeatureKind::kFloat, "lt", real, true));
  rules.push_back(make_filter_by_feature_value("t", columns.find("t"), FeatureKind::kBytes, "all", texts, true));
  // All rules run, whichever keeps the row.
  ops.push_back(make_rule_op({make_any_rule(rules), make_add_action(field("chnid"), "eq", one, 9)}));
}

void add_sampling(Ops& ops) {
  NegativeSampling sampling;
  sampling.drop_rate = 0.5;
  sampling.threshold = 0.5F;
  sampling.action_priority = {1, 2};
  sampling.actions = {2};
  sampling.rates = {0.25};
  sampling.correct_sample_rate = true;
  std::vector<RulePtr> rules{make_special_strategy({{1, 0.9, 1.0F}, {2, 1.0, {}}}, true, kSeed),
                             make_negative_sample(sampling, kSeed)};
  ops.push_back(make_rule_op(rules));
  ops.push_back(make_reweight({{1, 2, 3}, {{1, 2, 1.0F}, {2, 0, {}}, {3, 3, {}}}, true}, kSeed));
}

void add_negatives(Ops& ops, const Columns& columns) {
  NegativeRows rows;
  rows.item_features = {
      {"a", columns.find("a"), 7}, {"t", columns.find("t"), -1}, {"slot_3", columns.find("slot_3"), 3}};
  rows.positive_actions = {1};
  rows.action_priority = {1, 2};
  rows.negative_action = -1;
  NegativeGenConfig config;
  config.rows = rows;
  config.count = 2;
  config.per_channel = true;
  config.channel_feature = {"b", columns.find("b"), 9};
  config.start_count = 0;
  config.max_items = 3;
  config.real_negative_weight = 0.5;
  config.easy_share = 0.5;
  ops.push_back(make_negative_gen(config, kSeed));
  rows.index_feature = rows.item_features.front();
  ops.push_back(make_in_batch_negatives(rows, 2, 0.5F, kSeed));
}

}  // namespace

bool run_transforms(std::uint8_t groups, const Columns& columns, Rows& rows) {
  Ops ops;
  if ((groups & 1) != 0) add_filters(ops);
  if ((groups & 2) != 0) add_labels(ops);
  if ((groups & 4) != 0) add_features(ops, columns, rows.size());
  if ((groups & 8) != 0) add_values(ops, columns);
  if ((groups & 16) != 0) add_sampling(ops);
  if ((groups & 32) != 0) add_negatives(ops, columns);
  bool is_good = true;
  for (const auto& op : ops) is_good = accepts([&] { op->run(rows); }) && is_good;
  const std::unique_ptr<RowOp> all = make_sequence_op(ops);
  const std::vector<std::byte> state = all->state();
  expect(accepts([&] { all->restore(state); }), "a state that was written is refused");
  expect(all->state() == state, "another state comes back");
  return is_good;
}

}  // namespace fuzz
