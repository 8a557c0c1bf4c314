// negatives.cc: generated negative rows.
#include "engine/data/transforms/negatives.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "data/cell_values.h"
#include "data/line_scan.h"
#include "data/transforms/best_action.h"
#include "data/transforms/int_map.h"
#include "data/transforms/labels_in_rows.h"
#include "data/transforms/new_rows.h"
#include "data/transforms/row_fault.h"
#include "engine/data/transforms/item_pool.h"
#include "engine/fid.h"

namespace engine::data {

namespace {

constexpr std::int64_t kOneChannel = 3;  // where all items are when channels are not told apart
constexpr double kLeastWeight = 1e-5;    // a weight below is "not given"
constexpr int kTries = 8;                // to draw another item than the positive's own

// The first id of a feature, 0 when it has none.
std::int64_t first_fid(RowView row, const FeatureRef& feature) {
  std::int64_t first = 0;
  const Cell cell = row.cell(feature.column);
  if (is_fid(cell.arm)) {
    each_fid(cell, [&](std::int64_t id) { return first = id, false; });
  } else if (cell.arm == Arm::kNone && feature.flat_slot >= 0) {
    const auto slot = static_cast<std::uint32_t>(feature.flat_slot);
    each_packed<std::int64_t>(row.info().flat_fids, [&](std::int64_t id) {
      if (slot_v1(id) != slot) return true;
      first = id;
      return false;
    });
  }
  return first;
}

std::size_t place_in(std::uint64_t random, std::size_t size) noexcept {
  return std::min(static_cast<std::size_t>(unit(random) * static_cast<double>(size)), size - 1);
}

// Shared by the two operations: telling positives, and writing the item side of a negative row.
class Negatives {
 public:
  explicit Negatives(const NegativeRows& config)
      : config_(config), positive_(config.positive_actions), priority_(config.action_priority) {
    for (const auto& feature : config.item_features) {
      least_columns_ = std::max(least_columns_, feature.column + 1);
      if (feature.flat_slot >= 0) item_slots_.push_back(static_cast<std::uint32_t>(feature.flat_slot));
    }
  }

  struct Facts {
    std::int64_t item = 0;  // 0: not known
    bool is_positive = false;
  };

  // One scan of the LineId. `actions()` is of this row until the next call.
  Facts facts(RowView row) {
    Facts facts;
    const RowInfo& info = row.info();
    actions_.clear();
    scan_line(info.line, [&](const wire::Tag& tag, wire::Reader& reader) {
      if (tag.field == line_number::kItemId) {
        take_ints(FieldKind::kFixed64, tag, reader, [&](std::int64_t id) { facts.item = id; });
        return true;
      }
      if (tag.field != line_number::kActions) return false;
      take_ints(FieldKind::kInt, tag, reader, [&](std::int64_t action) { actions_.push_back(action); });
      return true;
    });
    if (config_.index_feature) facts.item = first_fid(row, *config_.index_feature);
    facts.is_positive = is_positive(info);
    return facts;
  }

  [[nodiscard]] const std::vector<std::int64_t>& actions() const noexcept { return actions_; }
  [[nodiscard]] std::uint32_t least_columns() const noexcept { return least_columns_; }
  [[nodiscard]] const NegativeRows& config() const noexcept { return config_; }

  void read_cells(RowView row, std::vector<Cell>& cells) const {
    cells.clear();
    for (const auto& feature : config_.item_features) cells.push_back(row.cell(feature.column));
  }

  // Flat ids of the item's slots.
  void read_flat(RowView row, std::vector<std::int64_t>& fids) const {
    fids.clear();
    if (item_slots_.empty()) return;
    each_packed<std::int64_t>(row.info().flat_fids, [&](std::int64_t id) {
      if (is_item_slot(slot_v1(id))) fids.push_back(id);
      return true;
    });
  }

  // Turns a copy of the positive row into a negative one.
  void write(RowView row, std::int64_t item, float weight, const std::vector<Cell>& cells,
             const std::vector<std::int64_t>& flat_fids) const {
    RowInfo& info = row.info();
    for (std::size_t i = 0; i < cells.size(); ++i) {
      row.block.set_cell(row.row, config_.item_features[i].column, cells[i]);
    }
    write_flat(row, flat_fids);
    own_labels(row, std::max(info.label_count, config_.label_index + 1))[config_.label_index] = config_.negative_label;
    info.weight = weight;
    write_line(row, item);
  }

 private:
  [[nodiscard]] bool is_positive(const RowInfo& info) const noexcept {
    if (positive_.empty()) {
      return info.label_count > config_.label_index && info.labels[config_.label_index] == config_.positive_label;
    }
    if (const auto best = priority_.best(actions_); best.rank != Priority::kUnlisted) return positive_.has(best.action);
    return std::any_of(actions_.begin(), actions_.end(), [&](std::int64_t action) { return positive_.has(action); });
  }

  [[nodiscard]] bool is_item_slot(std::uint32_t slot) const noexcept {
    return std::find(item_slots_.begin(), item_slots_.end(), slot) != item_slots_.end();
  }

  void write_flat(RowView row, const std::vector<std::int64_t>& item_fids) const {
    RowInfo& info = row.info();
    if (item_slots_.empty() || (info.flat_fids.empty() && item_fids.empty())) return;
    auto* fids = row.block.arena().take_array<std::int64_t>(info.flat_fids.size() / 8 + item_fids.size());
    std::size_t count = 0;
    each_packed<std::int64_t>(info.flat_fids, [&](std::int64_t id) {
      if (!is_item_slot(slot_v1(id))) fids[count++] = id;
      return true;
    });
    count = static_cast<std::size_t>(std::copy(item_fids.begin(), item_fids.end(), fids + count) - fids);
    info.flat_fids = {reinterpret_cast<const std::byte*>(fids), count * 8};
  }

  void write_line(RowView row, std::int64_t item) const {
    RowInfo& info = row.info();
    const bool replaces_actions = config_.negative_action.has_value();
    std::byte* begin = row.block.arena().take(info.line.size() + 9 + 12, 1);
    wire::Writer writer(copy_line_without(
        info.line,
        [&](std::uint32_t field) {
          return field == line_number::kItemId || (replaces_actions && field == line_number::kActions);
        },
        begin));
    writer.tag(line_number::kItemId, wire::kFixed64);
    writer.fixed(item);
    if (replaces_actions) {
      const auto action = static_cast<std::uint64_t>(*config_.negative_action);
      writer.tag(line_number::kActions, wire::kBlock);
      writer.varint(wire::varint_bytes(action));
      writer.varint(action);
    }
    info.line = {begin, writer.at()};
  }

  NegativeRows config_;
  IntMap positive_;
  Priority priority_;
  std::vector<std::uint32_t> item_slots_;
  std::uint32_t least_columns_ = 0;
  std::vector<std::int64_t> actions_;
};

class PoolNegatives : public RowOp {
 public:
  PoolNegatives(const NegativeGenConfig& config, std::uint64_t seed)
      : config_(config),
        negatives_(config.rows),
        cached_actions_(config.cache_negative_actions),
        seed_(seed),
        pool_(names_of(config.rows.item_features), config.max_items) {}

  std::vector<ItemPool*> pools() override { return {&pool_}; }
  bool has_state() const override { return true; }
  std::vector<std::byte> state() const override { return pool_.state(); }
  void restore(Bytes state) override { pool_.restore({state}, "item pool"); }
  std::uint64_t mark() override { return pool_.mark(); }
  std::vector<std::byte> state_at(std::uint64_t mark) const override { return pool_.state_at(mark); }
  void release(std::uint64_t mark) override { pool_.release(mark); }

  void run(Rows& rows) override {
    rows_in += rows.size();
    drafts_.clear();
    std::vector<Rows::Ref> refs;
    refs.reserve(rows.size());
    NewRows made(rows);
    for (std::size_t index = 0; index < rows.size(); ++index) {
      const Rows::Ref ref = rows.refs[index];
      const RowView row{*rows.blocks[ref.block], ref.row};
      try {
        handle(row, ref, made, refs);
      } catch (const wire::Malformed& fault) {
        throw_row_fault(row, index, fault);
      }
    }
    rows.refs = std::move(refs);
    if (Block* block = made.finish(rows, negatives_.least_columns())) fill(*block);
    rows_out += rows.size();
  }

 private:
  struct Draft {
    std::shared_ptr<const ItemFeatures> features;
    std::int64_t item;
    float weight;
  };

  static std::vector<std::string> names_of(const std::vector<FeatureRef>& features) {
    std::vector<std::string> names;
    for (const auto& feature : features) names.push_back(feature.name);
    return names;
  }

  void handle(RowView row, Rows::Ref ref, NewRows& made, std::vector<Rows::Ref>& refs) {
    RowInfo& info = row.info();
    const auto facts = negatives_.facts(row);
    const std::int64_t channel = config_.per_channel ? first_fid(row, config_.channel_feature) : kOneChannel;
    const std::uint64_t random = mix(seed_, info.key);
    if (channel != 0 && facts.item != 0 && enters(facts.is_positive, mix(random, 0))) {
      if (!pool_.count(channel, facts.item)) add(row, channel, facts.item);
    }
    if (facts.is_positive && channel != 0) {
      for (std::uint32_t i = 0; i < config_.count; ++i) {
        if (!draw(channel, facts.item, mix(random, i + 1))) break;
        refs.push_back(made.add(ref, mix(random, i + 1)));
      }
    }
    if (config_.throw_origin || (config_.throw_origin_negative && !facts.is_positive)) return;
    const bool has_weight = !facts.is_positive && config_.real_negative_weight > kLeastWeight;
    info.weight = has_weight ? static_cast<float>(config_.real_negative_weight) : 1.0F;
    refs.push_back(ref);
  }

  bool enters(bool is_positive, std::uint64_t random) const noexcept {
    const auto& actions = negatives_.actions();
    const bool may =
        is_positive || !config_.cache_only_positive ||
        std::any_of(actions.begin(), actions.end(), [&](std::int64_t action) { return cached_actions_.has(action); });
    return may && (is_positive || unit(random) < config_.origin_negative_share);
  }

  void add(RowView row, std::int64_t channel, std::int64_t item) {
    std::vector<std::int64_t> fids;
    negatives_.read_cells(row, cells_);
    negatives_.read_flat(row, fids);
    pool_.insert(channel, item, ItemFeatures::copy(cells_, std::move(fids)));
  }

  // Puts one item into the drafts, or returns false.
  bool draw(std::int64_t channel, std::int64_t own_item, std::uint64_t random) {
    if (config_.per_channel && pool_.channel_count() >= 2 && unit(mix(random, 1)) < config_.easy_share) {
      channel = pool_.channel_at(place_in(mix(random, 2), pool_.size()));
    }
    const std::size_t size = pool_.channel_size(channel);
    if (size == 0 || size <= config_.start_count) return false;
    for (int attempt = 0; attempt < kTries; ++attempt) {
      const std::size_t place = place_in(mix(random, 3 + static_cast<std::uint64_t>(attempt)), size);
      if (config_.rows.exclude_own_item && pool_.id_at(channel, place) == own_item) continue;
      const PooledItem& item = pool_.sample(channel, place);
      drafts_.push_back({item.features, item.id, weight_of(item, place, size)});
      return true;
    }
    return false;
  }

  float weight_of(const PooledItem& item, std::size_t place, std::size_t size) const noexcept {
    if (config_.sampled_negative_weight > kLeastWeight) return static_cast<float>(config_.sampled_negative_weight);
    if (!config_.unbiases) return 1.0F;
    const double time_factor = static_cast<double>(place + 1) / static_cast<double>(size);
    const double frequency_factor = 1.0 / static_cast<double>(item.sample_count);
    return static_cast<float>(1.0 + config_.count * std::pow(time_factor, config_.decay) * frequency_factor);
  }

  void fill(Block& block) {
    for (std::uint32_t row = 0; row < block.rows(); ++row) {
      const Draft& draft = drafts_[row];
      negatives_.write({block, row}, draft.item, draft.weight, draft.features->cells, draft.features->flat_fids);
      block.keep(draft.features);
    }
    drafts_.clear();
  }

  NegativeGenConfig config_;
  Negatives negatives_;
  IntMap cached_actions_;
  std::uint64_t seed_;
  ItemPool pool_;
  std::vector<Draft> drafts_;
  std::vector<Cell> cells_;
};

class InBatchNegatives : public RowOp {
 public:
  InBatchNegatives(const NegativeRows& rows, std::uint32_t count, float weight, std::uint64_t seed)
      : negatives_(rows), count_(count), weight_(weight), seed_(seed) {}

  void run(Rows& rows) override {
    rows_in += rows.size();
    read_facts(rows);
    drafts_.clear();
    std::vector<Rows::Ref> refs;
    NewRows made(rows);
    for (std::size_t index = 0; index < facts_.size(); ++index) {
      const Rows::Ref ref = rows.refs[index];
      refs.push_back(ref);
      if (!facts_[index].is_positive) continue;
      const std::uint64_t random = mix(seed_, rows.info(index).key);
      for (std::uint32_t i = 0; i < count_; ++i) {
        if (!draw(index, mix(random, i))) break;
        refs.push_back(made.add(ref, mix(random, i)));
      }
    }
    const Rows before{rows.blocks, rows.refs};
    rows.refs = std::move(refs);
    if (Block* block = made.finish(rows, negatives_.least_columns())) fill(*block, before);
    rows_out += rows.size();
  }

 private:
  void read_facts(Rows& rows) {
    facts_.clear();
    for (std::size_t index = 0; index < rows.size(); ++index) {
      const RowView row{rows.block_of(index), rows.refs[index].row};
      try {
        facts_.push_back(negatives_.facts(row));
      } catch (const wire::Malformed& fault) {
        throw_row_fault(row, index, fault);
      }
    }
  }

  // Chooses the row that lends its item, or returns false. Rows whose item is not known are told apart by themselves.
  bool draw(std::size_t index, std::uint64_t random) {
    for (int attempt = 0; attempt < kTries; ++attempt) {
      const std::size_t other = place_in(mix(random, static_cast<std::uint64_t>(attempt)), facts_.size());
      if (other == index) continue;
      const std::int64_t own = facts_[index].item;
      if (negatives_.config().exclude_own_item && own != 0 && facts_[other].item == own) continue;
      drafts_.push_back(other);
      return true;
    }
    return false;
  }

  void fill(Block& block, const Rows& rows) {
    std::vector<std::int64_t> fids;
    std::vector<bool> is_kept(rows.blocks.size(), false);
    for (std::uint32_t row = 0; row < block.rows(); ++row) {
      const Rows::Ref other = rows.refs[drafts_[row]];
      const RowView lender{*rows.blocks[other.block], other.row};
      negatives_.read_cells(lender, cells_);
      negatives_.read_flat(lender, fids);
      negatives_.write({block, row}, facts_[drafts_[row]].item, weight_, cells_, fids);
      if (!is_kept[other.block]) block.keep(rows.blocks[other.block]);
      is_kept[other.block] = true;
    }
  }

  Negatives negatives_;
  std::uint32_t count_;
  float weight_;
  std::uint64_t seed_;
  std::vector<Negatives::Facts> facts_;
  std::vector<std::size_t> drafts_;  // the lender of each new row
  std::vector<Cell> cells_;
};

}  // namespace

std::unique_ptr<RowOp> make_negative_gen(const NegativeGenConfig& config, std::uint64_t seed) {
  return std::make_unique<PoolNegatives>(config, seed);
}

std::unique_ptr<RowOp> make_in_batch_negatives(const NegativeRows& rows, std::uint32_t count, float weight,
                                               std::uint64_t seed) {
  return std::make_unique<InBatchNegatives>(rows, count, weight, seed);
}

}  // namespace engine::data
