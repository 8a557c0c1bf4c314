// sampling.h: rules and operations that drop or repeat rows by lot or by weight.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/data/row_op.h"

namespace engine::data {

// Treatment of rows with a strategy. Rules without a rate keep the row.
struct Strategy {
  std::int64_t strategy = 0;
  double rate = 1.0;           // probability to stay
  std::optional<float> label;  // the new label[0]
};

// The first of `strategies` that the row has decides. Rows with other strategies only are dropped; `keep_empty` decides
// about rows with none.
[[nodiscard]] RulePtr make_special_strategy(std::vector<Strategy> strategies, bool keep_empty, std::uint64_t seed);

struct NegativeSampling {
  double drop_rate = 0.0;
  std::uint32_t label_index = 0;
  float threshold = 0.0F;
  std::vector<std::int64_t> action_priority;
  std::vector<std::int64_t> actions;  // with a rate of their own
  std::vector<double> rates;
  bool correct_sample_rate = false;  // multiply LineId.sample_rate of every row that stays by 1 - drop_rate
};

// Drops rows with label < threshold by lot; rows that lack the label stay. The rate is that of the row's best action,
// `drop_rate` when it has no rate.
[[nodiscard]] RulePtr make_negative_sample(const NegativeSampling& config, std::uint64_t seed);

struct Reweighting {
  std::vector<std::int64_t> action_priority;  // best first
  struct Weight {
    std::int64_t action = 0;
    std::int64_t weight = 1;
    std::optional<float> label;
  };
  std::vector<Weight> weights;
  bool adds = false;  // weights of several actions are added, not multiplied
};

// Repeats, drops and relabels rows by their actions and by those that were emitted before (pre_actions).
[[nodiscard]] std::unique_ptr<RowOp> make_reweight(const Reweighting& config, std::uint64_t seed);

}  // namespace engine::data
