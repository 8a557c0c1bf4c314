// sampling.cc: rows that are dropped or repeated.
#include "engine/data/transforms/sampling.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "data/line_scan.h"
#include "data/transforms/best_action.h"
#include "data/transforms/int_map.h"
#include "data/transforms/labels_in_rows.h"
#include "data/transforms/new_rows.h"
#include "data/transforms/row_fault.h"
#include "data/transforms/sample_rate.h"
#include "engine/error.h"

namespace engine::data {

namespace {

class SpecialStrategy : public RowRule {
 public:
  SpecialStrategy(std::vector<Strategy> strategies, bool keep_empty, std::uint64_t seed)
      : strategies_(std::move(strategies)), keep_empty_(keep_empty), seed_(seed) {}

  bool apply(RowView row) override {
    RowInfo& info = row.info();
    read_line_ints(info.line, line_number::kSpecialStrategies, present_);
    if (present_.empty()) return keep_empty_;
    for (const auto& strategy : strategies_) {
      if (std::find(present_.begin(), present_.end(), strategy.strategy) == present_.end()) continue;
      if (unit(mix(seed_, info.key)) >= strategy.rate) return false;
      if (strategy.label) own_labels(row, std::max(info.label_count, 1U))[0] = *strategy.label;
      return true;
    }
    return false;
  }

 private:
  std::vector<Strategy> strategies_;
  bool keep_empty_;
  std::uint64_t seed_;
  std::vector<std::int64_t> present_;
};

class NegativeSample : public RowRule {
 public:
  NegativeSample(const NegativeSampling& config, std::uint64_t seed)
      : config_(config), priority_(config.action_priority), actions_with_rate_(config.actions), seed_(seed) {
    if (actions_with_rate_.size() != config.rates.size()) {
      throw ConfigError("negative_sample: each action needs one rate");
    }
  }

  bool apply(RowView row) override {
    const RowInfo& info = row.info();
    const bool is_negative = info.label_count > config_.label_index && !is_missing(info.labels[config_.label_index]) &&
                             info.labels[config_.label_index] < config_.threshold;
    if (is_negative && unit(mix(seed_, info.key)) < rate_of(info.line)) return false;
    if (config_.correct_sample_rate && config_.drop_rate > 0) {
      set_sample_rate(row, static_cast<float>(static_cast<double>(sample_rate_of(row)) * (1 - config_.drop_rate)));
    }
    return true;
  }

 private:
  double rate_of(Bytes line) {
    if (config_.rates.empty()) return config_.drop_rate;
    read_line_ints(line, line_number::kActions, actions_);
    const auto best = priority_.best(actions_);
    if (best.rank == Priority::kUnlisted) return config_.drop_rate;
    const auto place = actions_with_rate_.find(best.action);
    return place < 0 ? config_.drop_rate : config_.rates[static_cast<std::size_t>(place)];
  }

  NegativeSampling config_;
  Priority priority_;
  IntMap actions_with_rate_;
  std::uint64_t seed_;
  std::vector<std::int64_t> actions_;
};

class Reweight : public RowOp {
 public:
  Reweight(const Reweighting& config, std::uint64_t seed)
      : priority_(config.action_priority), adds_(config.adds), seed_(seed) {
    std::vector<std::int64_t> actions;
    for (const auto& weight : config.weights) actions.push_back(weight.action);
    places_ = IntMap(actions);
    if (places_.size() != config.weights.size()) throw ConfigError("reweight: an action has two weights");
    weights_ = config.weights;
  }

  void run(Rows& rows) override {
    rows_in += rows.size();
    plan_.clear();
    std::uint64_t total = 0;
    for (std::size_t index = 0; index < rows.size(); ++index) {
      const Rows::Ref ref = rows.refs[index];
      const RowView row{*rows.blocks[ref.block], ref.row};
      std::int64_t copies = 0;
      try {
        copies = copies_of(row);
      } catch (const wire::Malformed& fault) {
        throw_row_fault(row, index, fault);
      }
      if (copies > kMostCopies) {
        throw SchemaMismatch("row " + std::to_string(index) + " of the lot asks for " + std::to_string(copies) +
                             " copies; more than " + std::to_string(kMostCopies) +
                             " are refused, check the weights and the row's actions");
      }
      plan_.push_back(static_cast<std::uint32_t>(copies));
      total += static_cast<std::uint64_t>(copies);
    }
    emit(rows, total);
    rows_out += rows.size();
  }

 private:
  static constexpr std::int64_t kMostCopies = 10'000;
  static constexpr std::int64_t kNoActions = 2000;
  static constexpr std::int64_t kNoneListed = 1000;

  // Of the actions of one row: how good the best is, how many copies they ask for, and the label of the best.
  struct Verdict {
    std::int64_t priority = kNoActions;
    std::int64_t count = 0;
    std::optional<float> label;
  };

  Verdict verdict(const std::vector<std::int64_t>& actions) const {
    Verdict verdict;
    if (actions.empty()) return verdict;
    const auto best = priority_.best(actions);
    const bool is_listed = best.rank != Priority::kUnlisted;
    verdict.priority = is_listed ? best.rank + 1 : kNoneListed;
    bool has_weight = false;
    double count = adds_ ? 0 : 1;
    for (const std::int64_t action : actions) {
      if (priority_.rank(action) != Priority::kUnlisted && action != best.action) continue;
      const auto place = places_.find(action);
      if (place < 0) continue;
      const auto& weight = weights_[static_cast<std::size_t>(place)];
      has_weight = true;
      count = adds_ ? count + static_cast<double>(weight.weight) : count * static_cast<double>(weight.weight);
      if (is_listed && action == best.action) verdict.label = weight.label;
    }
    verdict.count = has_weight ? static_cast<std::int64_t>(std::min(count, 1e15)) : 1;
    return verdict;
  }

  std::int64_t copies_of(RowView row) {
    const RowInfo& info = row.info();
    if (info.label_count == 0) return 0;
    actions_.clear();
    before_.clear();
    scan_line(info.line, [&](const wire::Tag& tag, wire::Reader& reader) {
      if (tag.field != line_number::kActions && tag.field != line_number::kPreActions) return false;
      auto& out = tag.field == line_number::kActions ? actions_ : before_;
      take_ints(FieldKind::kInt, tag, reader, [&](std::int64_t action) { out.push_back(action); });
      return true;
    });
    if (actions_.empty() && before_.empty()) return 1;
    const Verdict now = verdict(actions_);
    const Verdict before = verdict(before_);
    if (before.priority <= now.priority) return 0;
    if (now.label) own_labels(row, info.label_count)[0] = *now.label;
    if (!before.label) return now.count;
    if (!now.label || *now.label != *before.label) return before.count + now.count;
    if (before.count <= now.count) return now.count - before.count;
    float* labels = own_labels(row, info.label_count);
    labels[0] = -labels[0];
    return before.count - now.count;
  }

  // The first copy of a row is the row itself.
  void emit(Rows& rows, std::uint64_t total) {
    std::vector<Rows::Ref> refs;
    refs.reserve(total);
    NewRows made(rows);
    for (std::size_t index = 0; index < plan_.size(); ++index) {
      const Rows::Ref source = rows.refs[index];
      if (plan_[index] > 0) refs.push_back(source);
      for (std::uint32_t copy = 1; copy < plan_[index]; ++copy) {
        const std::uint64_t key = mix(mix(seed_, rows.blocks[source.block]->info(source.row).key), copy);
        refs.push_back(made.add(source, key));
      }
    }
    rows.refs = std::move(refs);
    made.finish(rows);
  }

  Priority priority_;
  IntMap places_;
  std::vector<Reweighting::Weight> weights_;
  bool adds_;
  std::uint64_t seed_;
  std::vector<std::int64_t> actions_;
  std::vector<std::int64_t> before_;
  std::vector<std::uint32_t> plan_;
};

}  // namespace

RulePtr make_special_strategy(std::vector<Strategy> strategies, bool keep_empty, std::uint64_t seed) {
  return std::make_shared<SpecialStrategy>(std::move(strategies), keep_empty, seed);
}

RulePtr make_negative_sample(const NegativeSampling& config, std::uint64_t seed) {
  return std::make_shared<NegativeSample>(config, seed);
}

std::unique_ptr<RowOp> make_reweight(const Reweighting& config, std::uint64_t seed) {
  return std::make_unique<Reweight>(config, seed);
}

}  // namespace engine::data
