// filters.h: rules that keep or drop a row by its ids, actions, labels, data source, or a value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/line_id.h"
#include "engine/data/row_op.h"

namespace engine::data {

// An empty list asks nothing. Ids are compared by their bits as the record spells them: a v1 id with v1 ids. They are
// looked for in the flat ids and in every cell that holds ids, so the block must have all features of the row.
struct FidFilter {
  std::vector<std::int64_t> filter_fids;    // drop when any is there
  std::vector<std::int64_t> has_fids;       // keep needs any
  std::vector<std::int64_t> select_fids;    // keep needs all
  std::vector<std::int64_t> has_actions;    // keep needs any
  std::int64_t req_time_min = 0;            // drop when LineId.req_time (0 when absent) is smaller
  std::vector<std::uint32_t> select_slots;  // keep needs an id in each; the slot is that of the id's own version
};

[[nodiscard]] RulePtr make_filter_by_fids(const FidFilter& filter);
[[nodiscard]] RulePtr make_filter_by_action(const std::vector<std::int64_t>& has_actions);
// Keeps when for any i label[i] > thresholds[i], or equal unless `filter_equal`. Missing labels never pass; a row with
// fewer labels than thresholds is dropped.
[[nodiscard]] RulePtr make_filter_by_label(std::vector<float> thresholds, bool filter_equal);
// Keeps rows whose data source is one of `keys`.
[[nodiscard]] RulePtr make_filter_by_source(const std::vector<std::uint32_t>& keys);
// Sets the data source of every row: by LineId.chnid where `chnids` has it (to the key at the same place), else to
// `default_key`.
[[nodiscard]] RulePtr make_set_source(const std::vector<std::int64_t>& chnids, std::vector<std::uint32_t> keys,
                                      std::uint32_t default_key);

}  // namespace engine::data
