// negatives.h: operations that add negative rows: the side of a positive row that is not the item, with another item.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/data/row_op.h"
#include "engine/data/transforms/features.h"

namespace engine::data {

// The positive rows, the features of an item, and the label of a negative row.
struct NegativeRows {
  std::vector<FeatureRef> item_features;
  std::optional<FeatureRef> index_feature;     // its first id names the item; nothing: LineId.item_id
  std::vector<std::int64_t> positive_actions;  // empty: a row is positive by its label
  std::vector<std::int64_t> action_priority;
  std::uint32_t label_index = 0;
  float positive_label = 1.0F;
  float negative_label = -1.0F;
  std::optional<std::int64_t> negative_action;  // replaces the actions of negative rows
  bool exclude_own_item = true;                 // the positive's own item is not a negative
};

struct NegativeGenConfig {
  NegativeRows rows;
  std::uint32_t count = 1;  // negatives per positive
  bool per_channel = false;
  FeatureRef channel_feature;
  std::size_t start_count = 500;  // a channel must hold more items than this
  std::size_t max_items = 100'000;
  bool throw_origin = false;
  bool throw_origin_negative = false;
  bool cache_only_positive = false;
  std::vector<std::int64_t> cache_negative_actions;
  double real_negative_weight = 1.0;
  double sampled_negative_weight = -1.0;
  bool unbiases = true;
  double origin_negative_share = 1.0;  // probability that a real negative enters the pool
  double decay = 1.0;
  double easy_share = 0.0;
};

// Negatives out of the pool come before the positive that they belong to. The operation's state is the pool.
[[nodiscard]] std::unique_ptr<RowOp> make_negative_gen(const NegativeGenConfig& config, std::uint64_t seed);

// Negatives out of the other rows of the same lot, `count` per positive, with the given weight. They follow the
// positive that they belong to.
[[nodiscard]] std::unique_ptr<RowOp> make_in_batch_negatives(const NegativeRows& rows, std::uint32_t count,
                                                             float weight, std::uint64_t seed);

}  // namespace engine::data
