// labels.h: rules that make labels out of actions and fields, or change them. All keep the row.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/data/line_id.h"
#include "engine/data/row_op.h"

namespace engine::data {

// One task of add_label: 1 when the row has a positive action; without one, missing when negative actions are listed
// and the row has none of them; otherwise the negative value with probability `sample_rate`, else missing.
struct TaskLabel {
  std::vector<std::int64_t> positive_actions;
  std::vector<std::int64_t> negative_actions;
  double sample_rate = 1.0;
};

// Appends one label per task, after an existing label[0] <= 0 became missing, and sets LineId.sample_rate.
[[nodiscard]] RulePtr make_add_label(const std::vector<TaskLabel>& tasks, float negative_value, double new_sample_rate,
                                     std::uint64_t seed);

// The first label moves to the place of the row's chnid; all others become missing, and all do when the chnid has no
// place. There are as many labels as the largest place + 1.
[[nodiscard]] RulePtr make_scatter_label(const std::vector<std::int64_t>& chnids,
                                         const std::vector<std::uint32_t>& places);

struct MultiLabel {
  LineField head_field;  // singular; int kinds or text
  std::vector<std::int64_t> int_heads;
  std::vector<std::string> text_heads;
  std::vector<std::uint32_t> places;  // of the heads, in their order
  std::uint32_t task_count = 0;
  bool use_origin_label = false;  // the value is label[0], not derived from the actions
  std::vector<std::int64_t> positive_actions;
  std::vector<std::int64_t> negative_actions;  // empty: whatever is not positive is negative
  std::vector<std::int64_t> action_priority;   // best first; empty: positive actions win
  float positive_label = 1.0F;
  float negative_label = 0.0F;
};

// The same with the head named by any singular field and the value by the row's best action.
[[nodiscard]] RulePtr make_multi_label(const MultiLabel& config);

// label[i] = min(label[i], bounds[i]); a row with fewer labels than bounds is left alone.
[[nodiscard]] RulePtr make_label_upper_bound(std::vector<float> bounds);

enum class Normalization : std::uint8_t {
  kLog,       // ln(max(y + v, 0))
  kScale,     // y / v
  kScaleInt,  // trunc(y / v)
  kPow,       // (y + 1) ^ v
  kRepow,     // y > 0 ? y ^ v : 0
  kScaleLog,  // ln(max(y / v + 1, 0))
};

// Each step in turn, on every label that is not missing.
[[nodiscard]] RulePtr make_label_normalization(std::vector<Normalization> methods, std::vector<double> values);

// label[i] = max(label[i], field); a field value of at least `threshold` counts as 0 when `overwrite_invalid`. A row
// without the field (and without a declared default other than 0) is left alone.
[[nodiscard]] RulePtr make_use_field_as_label(LineField field, bool overwrite_invalid, double threshold);

enum class RankSource : std::uint8_t {
  kDraw,   // is_draw ? 1 : 0
  kChnid,  // chnid when it is 0 or 1, else 2
  kRank,   // min(rank, rank_count - 1)
};

// Appends one label.
[[nodiscard]] RulePtr make_fill_rank(RankSource source, std::int64_t rank_count);

}  // namespace engine::data
