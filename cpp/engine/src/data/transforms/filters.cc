// filters.cc: rules by ids, actions, labels and data source.
#include "engine/data/transforms/filters.h"

#include <cmath>
#include <utility>

#include "data/cell_values.h"
#include "data/line_scan.h"
#include "data/transforms/int_map.h"
#include "data/transforms/labels_in_rows.h"
#include "data/transforms/row_fault.h"
#include "engine/error.h"
#include "engine/fid.h"

namespace engine::data {

namespace {

class FilterByFids : public RowRule {
 public:
  explicit FilterByFids(const FidFilter& filter)
      : filter_(filter.filter_fids),
        has_(filter.has_fids),
        select_(filter.select_fids),
        actions_(filter.has_actions),
        req_time_min_(filter.req_time_min),
        selected_(select_.size()) {
    std::vector<std::int64_t> slots;
    for (const std::uint32_t slot : filter.select_slots) {
      if (slot >= kFidV2Slots) {
        throw ConfigError("select_slots has the slot " + std::to_string(slot) + "; slots are 0 to " +
                          std::to_string(kFidV2Slots - 1));
      }
      slots.push_back(slot);
    }
    const IntMap distinct(slots);
    slot_place_.assign(slots.empty() ? 0 : kFidV2Slots, kNoPlace);
    for (const std::int64_t slot : slots) {
      slot_place_[static_cast<std::size_t>(slot)] = static_cast<std::uint16_t>(distinct.find(slot));
    }
    slots_ = SeenOnce(distinct.size());
    looks_at_line_ = !actions_.empty() || req_time_min_ > 0;
    looks_at_fids_ = !filter_.empty() || !has_.empty() || !select_.empty() || !slots.empty();
    only_forbids_ = !filter_.empty() && has_.empty() && select_.empty() && slots.empty();
  }

  bool apply(RowView row) override {
    const RowInfo& info = row.info();
    if (looks_at_line_ && !line_passes(info.line)) return false;
    if (!looks_at_fids_) return true;
    has_hit_ = has_.empty();
    selected_.begin();
    slots_.begin();
    if (!each_packed<std::int64_t>(info.flat_fids, [&](std::int64_t id) { return see(id, slot_v1(id)); })) return false;
    for (std::uint32_t column = 0; column < row.block.columns(); ++column) {
      const Cell cell = row.cell(column);
      if (!is_fid(cell.arm)) continue;
      const bool passes = is_fid_v1(cell.arm) ? each_fid(cell, [&](std::int64_t id) { return see(id, slot_v1(id)); })
                                              : each_fid(cell, [&](std::int64_t id) { return see(id, slot_v2(id)); });
      if (!passes) return false;
    }
    return has_hit_ && selected_.all() && slots_.all();
  }

  void apply_all(const Rows& rows, std::span<std::uint8_t> keeps) override {
    if (!only_forbids_) return RowRule::apply_all(rows, keeps);
    for (std::size_t i = 0; i < keeps.size(); ++i) {
      if (keeps[i] != 0) at_row(rows, i, [&](const RowView& row) { keeps[i] = line_and_flat_pass(row) ? 1 : 0; });
    }
    for (std::size_t begin = 0; begin < keeps.size();) {
      std::size_t end = begin + 1;
      while (end < keeps.size() && rows.refs[end].block == rows.refs[begin].block) ++end;
      Block& block = rows.block_of(begin);
      for (std::uint32_t column = 0; column < block.columns(); ++column) {
        const Cell* const cells = block.find_column(column);
        if (cells == nullptr) continue;
        for (std::size_t i = begin; i < end; ++i) {
          const Cell& cell = cells[rows.refs[i].row];
          if (keeps[i] == 0 || !is_fid(cell.arm)) continue;
          // A list with a broken id is read by `each_fid`, which reports it.
          const bool is_list = (cell.arm == Arm::kFidV1 || cell.arm == Arm::kFidV2) && cell.size % 8 == 0;
          if (is_list && !filter_.may_have_any(cell.data, cell.size / 8)) [[likely]]
            continue;
          at_row(rows, i, [&](const RowView&) {
            keeps[i] = each_fid(cell, [&](std::int64_t id) { return !filter_.has(id); }) ? 1 : 0;
          });
        }
      }
      begin = end;
    }
  }

 private:
  static constexpr std::uint16_t kNoPlace = 0xffff;

  template <typename Use>
  static void at_row(const Rows& rows, std::size_t index, Use&& use) {
    const RowView row{rows.block_of(index), rows.refs[index].row};
    try {
      use(row);
    } catch (const wire::Malformed& fault) {
      throw_row_fault(row, index, fault);
    }
  }

  bool line_and_flat_pass(const RowView& row) const {
    const RowInfo& info = row.info();
    if (looks_at_line_ && !line_passes(info.line)) return false;
    return each_packed<std::int64_t>(info.flat_fids, [&](std::int64_t id) { return !filter_.has(id); });
  }

  // False when the id forbids the row.
  bool see(std::int64_t id, std::uint32_t slot) noexcept {
    if (!filter_.empty() && filter_.has(id)) return false;
    if (!has_hit_) has_hit_ = has_.has(id);
    if (!select_.empty()) {
      if (const auto place = select_.find(id); place >= 0) selected_.see(static_cast<std::size_t>(place));
    }
    if (!slot_place_.empty() && slot_place_[slot] != kNoPlace) slots_.see(slot_place_[slot]);
    return true;
  }

  bool line_passes(Bytes line) const {
    std::int64_t req_time = 0;
    bool has_action = actions_.empty();
    scan_line(line, [&](const wire::Tag& tag, wire::Reader& reader) {
      if (tag.field == line_number::kReqTime) {
        take_ints(FieldKind::kInt, tag, reader, [&](std::int64_t value) { req_time = value; });
        return true;
      }
      if (tag.field == line_number::kActions) {
        take_ints(FieldKind::kInt, tag, reader,
                  [&](std::int64_t action) { has_action = has_action || actions_.has(action); });
        return true;
      }
      return false;
    });
    return has_action && req_time >= req_time_min_;
  }

  IntMap filter_;
  IntMap has_;
  IntMap select_;
  IntMap actions_;
  std::int64_t req_time_min_;
  SeenOnce selected_;
  SeenOnce slots_;
  std::vector<std::uint16_t> slot_place_;  // slot -> its place among the slots asked for
  bool looks_at_line_ = false;
  bool looks_at_fids_ = false;
  bool only_forbids_ = false;
  bool has_hit_ = false;
};

class FilterByLabel : public RowRule {
 public:
  FilterByLabel(std::vector<float> thresholds, bool filter_equal)
      : thresholds_(std::move(thresholds)), filter_equal_(filter_equal) {}

  bool apply(RowView row) override {
    const RowInfo& info = row.info();
    if (info.label_count < thresholds_.size()) return false;
    for (std::size_t i = 0; i < thresholds_.size(); ++i) {
      const float label = info.labels[i];
      if (is_missing(label)) continue;
      if (label > thresholds_[i] || (label == thresholds_[i] && !filter_equal_)) return true;
    }
    return false;
  }

 private:
  std::vector<float> thresholds_;
  bool filter_equal_;
};

class FilterBySource : public RowRule {
 public:
  explicit FilterBySource(const std::vector<std::uint32_t>& keys)
      : keys_(std::vector<std::int64_t>(keys.begin(), keys.end())) {}

  bool apply(RowView row) override { return keys_.has(row.info().source_key); }

 private:
  IntMap keys_;
};

class SetSource : public RowRule {
 public:
  SetSource(const std::vector<std::int64_t>& chnids, std::vector<std::uint32_t> keys, std::uint32_t default_key)
      : chnids_(chnids), keys_(std::move(keys)), default_key_(default_key) {
    if (chnids_.size() != keys_.size()) throw ConfigError("set_source: chnids must be distinct, one key for each");
  }

  bool apply(RowView row) override {
    std::uint32_t key = default_key_;
    if (!chnids_.empty()) {
      static const LineField& field = find_field(standard_line_fields(), "chnid");
      std::int64_t chnid = 0;
      if (line_int(row.info().line, field, chnid)) {
        if (const auto place = chnids_.find(chnid); place >= 0) key = keys_[static_cast<std::size_t>(place)];
      }
    }
    row.info().source_key = key;
    return true;
  }

 private:
  IntMap chnids_;
  std::vector<std::uint32_t> keys_;
  std::uint32_t default_key_;
};

}  // namespace

RulePtr make_filter_by_fids(const FidFilter& filter) { return std::make_shared<FilterByFids>(filter); }

RulePtr make_filter_by_action(const std::vector<std::int64_t>& has_actions) {
  if (has_actions.empty()) throw ConfigError("has_actions is empty; give at least one action");
  FidFilter filter;
  filter.has_actions = has_actions;
  return std::make_shared<FilterByFids>(filter);
}

RulePtr make_filter_by_label(std::vector<float> thresholds, bool filter_equal) {
  if (thresholds.empty()) throw ConfigError("thresholds is empty; give one per label");
  return std::make_shared<FilterByLabel>(std::move(thresholds), filter_equal);
}

RulePtr make_filter_by_source(const std::vector<std::uint32_t>& keys) { return std::make_shared<FilterBySource>(keys); }

RulePtr make_set_source(const std::vector<std::int64_t>& chnids, std::vector<std::uint32_t> keys,
                        std::uint32_t default_key) {
  return std::make_shared<SetSource>(chnids, std::move(keys), default_key);
}

}  // namespace engine::data
