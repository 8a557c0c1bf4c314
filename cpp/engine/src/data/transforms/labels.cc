// labels.cc: rules that make and change labels.
#include "engine/data/transforms/labels.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <unordered_map>
#include <utility>

#include "data/line_scan.h"
#include "data/transforms/best_action.h"
#include "data/transforms/int_map.h"
#include "data/transforms/labels_in_rows.h"
#include "data/transforms/sample_rate.h"
#include "engine/error.h"

namespace engine::data {

namespace {

const LineField& standard_field(const char* name) { return find_field(standard_line_fields(), name); }

class AddLabel : public RowRule {
 public:
  AddLabel(const std::vector<TaskLabel>& tasks, float negative_value, double new_sample_rate, std::uint64_t seed)
      : negative_value_(negative_value), new_sample_rate_(static_cast<float>(new_sample_rate)), seed_(seed) {
    for (const auto& task : tasks) {
      tasks_.push_back({IntMap(task.positive_actions), IntMap(task.negative_actions), task.sample_rate});
    }
  }

  bool apply(RowView row) override {
    RowInfo& info = row.info();
    double sample_rate = 1.0;
    read(info.line, sample_rate);
    const std::uint32_t before = info.label_count;
    float* labels = own_labels(row, before + static_cast<std::uint32_t>(tasks_.size()));
    if (before > 0 && labels[0] <= 0) labels[0] = kInvalidLabel;
    const std::uint64_t random = mix(seed_, info.key);
    for (std::size_t i = 0; i < tasks_.size(); ++i) labels[before + i] = label_of(tasks_[i], mix(random, i));
    if (static_cast<float>(sample_rate) != new_sample_rate_) set_sample_rate(row, new_sample_rate_);
    return true;
  }

 private:
  struct Task {
    IntMap positive;
    IntMap negative;
    double sample_rate;
  };

  void read(Bytes line, double& sample_rate) {
    actions_.clear();
    scan_line(line, [&](const wire::Tag& tag, wire::Reader& reader) {
      if (tag.field == line_number::kActions) {
        take_ints(FieldKind::kInt, tag, reader, [&](std::int64_t action) { actions_.push_back(action); });
        return true;
      }
      if (tag.field != line_number::kSampleRate) return false;
      take_reals(FieldKind::kFloat, tag, reader, [&](double rate) { sample_rate = rate; });
      return true;
    });
  }

  [[nodiscard]] bool hits(const IntMap& set) const noexcept {
    return std::any_of(actions_.begin(), actions_.end(), [&](std::int64_t action) { return set.has(action); });
  }

  [[nodiscard]] float label_of(const Task& task, std::uint64_t random) const noexcept {
    if (hits(task.positive)) return 1.0F;
    if (!task.negative.empty() && !hits(task.negative)) return kInvalidLabel;
    return unit(random) < task.sample_rate ? negative_value_ : kInvalidLabel;
  }

  std::vector<Task> tasks_;
  float negative_value_;
  float new_sample_rate_;
  std::uint64_t seed_;
  std::vector<std::int64_t> actions_;
};

std::uint32_t count_of(const std::vector<std::uint32_t>& places) {
  if (places.empty()) throw ConfigError("no head has a place for its label; give at least one");
  return *std::max_element(places.begin(), places.end()) + 1;
}

class ScatterLabel : public RowRule {
 public:
  ScatterLabel(const std::vector<std::int64_t>& chnids, const std::vector<std::uint32_t>& places)
      : chnids_(chnids), places_(places), count_(count_of(places)) {}

  bool apply(RowView row) override {
    static const LineField& field = standard_field("chnid");
    RowInfo& info = row.info();
    const float value = info.label_count > 0 ? info.labels[0] : kInvalidLabel;
    std::int64_t chnid = 0;
    line_int(info.line, field, chnid);
    float* labels = new_labels(row, count_);
    if (const auto place = chnids_.find(chnid); place >= 0) labels[places_[static_cast<std::size_t>(place)]] = value;
    return true;
  }

 private:
  IntMap chnids_;
  std::vector<std::uint32_t> places_;
  std::uint32_t count_;
};

class MultiLabelRule : public RowRule {
 public:
  explicit MultiLabelRule(const MultiLabel& config)
      : config_(config),
        int_heads_(config.int_heads),
        positive_(config.positive_actions),
        negative_(config.negative_actions),
        priority_(config.action_priority) {
    const LineField& field = config.head_field;
    if (field.is_repeated || field.kind == FieldKind::kFloat || field.kind == FieldKind::kDouble) {
      throw ConfigError("head_field '" + field.name + "' must be a single integer or text");
    }
    const bool is_text = field.kind == FieldKind::kText;
    if ((is_text ? config.text_heads.size() : config.int_heads.size()) != config.places.size()) {
      throw ConfigError(std::string("heads of field '") + field.name + "' must be " + (is_text ? "texts" : "integers"));
    }
    if (int_heads_.size() != config.int_heads.size()) {
      throw ConfigError("heads of field '" + field.name + "' have a number twice; give each head one place");
    }
    if (count_of(config.places) > config.task_count) {
      throw ConfigError("task_num is " + std::to_string(config.task_count) + ", a head has the index " +
                        std::to_string(count_of(config.places) - 1));
    }
    for (std::size_t i = 0; i < config.text_heads.size(); ++i) text_heads_.emplace(config_.text_heads[i], i);
  }

  bool apply(RowView row) override {
    RowInfo& info = row.info();
    const std::optional<std::size_t> head = read(info.line);
    const float value = !head ? kInvalidLabel : config_.use_origin_label ? origin(info) : by_actions();
    float* labels = new_labels(row, config_.task_count);
    if (head) labels[config_.places[*head]] = value;
    return true;
  }

 private:
  static float origin(const RowInfo& info) noexcept { return info.label_count > 0 ? info.labels[0] : kInvalidLabel; }

  // The row's head; its actions are in `actions_` then.
  std::optional<std::size_t> read(Bytes line) {
    const LineField& field = config_.head_field;
    auto number = static_cast<std::int64_t>(field.default_value);
    std::optional<std::string_view> text;
    actions_.clear();
    scan_line(line, [&](const wire::Tag& tag, wire::Reader& reader) {
      if (tag.field == field.number) {
        if (field.kind != FieldKind::kText) {
          take_ints(field.kind, tag, reader, [&](std::int64_t value) { number = value; });
        } else if (tag.wire == wire::kBlock) {
          text = text_of(reader.block());
        } else {
          throw_wrong_wire(tag, "text", reader.at());
        }
        return true;
      }
      if (tag.field != line_number::kActions) return false;
      take_ints(FieldKind::kInt, tag, reader, [&](std::int64_t action) { actions_.push_back(action); });
      return true;
    });
    return field.kind == FieldKind::kText ? head_of(text) : head_of(number);
  }

  std::optional<std::size_t> head_of(const std::optional<std::string_view>& text) const {
    if (!text) return std::nullopt;
    const auto found = text_heads_.find(*text);
    return found == text_heads_.end() ? std::nullopt : std::optional(found->second);
  }

  std::optional<std::size_t> head_of(std::int64_t number) const {
    const auto place = int_heads_.find(number);
    return place < 0 ? std::nullopt : std::optional(static_cast<std::size_t>(place));
  }

  float by_actions() {
    if (const auto best = priority_.best(actions_); best.rank != Priority::kUnlisted) actions_.assign(1, best.action);
    const auto hits = [&](const IntMap& set) {
      return std::any_of(actions_.begin(), actions_.end(), [&](std::int64_t action) { return set.has(action); });
    };
    if (hits(positive_)) return config_.positive_label;
    return negative_.empty() || hits(negative_) ? config_.negative_label : kInvalidLabel;
  }

  MultiLabel config_;
  IntMap int_heads_;
  std::unordered_map<std::string_view, std::size_t> text_heads_;  // into config_'s own texts
  IntMap positive_;
  IntMap negative_;
  Priority priority_;
  std::vector<std::int64_t> actions_;
};

class LabelUpperBound : public RowRule {
 public:
  explicit LabelUpperBound(std::vector<float> bounds) : bounds_(std::move(bounds)) {}

  bool apply(RowView row) override {
    const RowInfo& info = row.info();
    if (info.label_count < bounds_.size()) return true;
    bool exceeds = false;
    for (std::size_t i = 0; i < bounds_.size(); ++i) exceeds |= info.labels[i] > bounds_[i];
    if (!exceeds) return true;
    float* labels = own_labels(row, info.label_count);
    for (std::size_t i = 0; i < bounds_.size(); ++i) {
      if (labels[i] > bounds_[i]) labels[i] = bounds_[i];
    }
    return true;
  }

 private:
  std::vector<float> bounds_;
};

double normalized(double label, Normalization method, double value) noexcept {
  switch (method) {
    case Normalization::kLog:
      return std::log(std::max(label + value, 0.0));
    case Normalization::kScale:
      return label / value;
    case Normalization::kScaleInt:
      return std::trunc(label / value);
    case Normalization::kPow:
      return std::pow(label + 1, value);
    case Normalization::kRepow:
      return label > 0 ? std::pow(label, value) : 0.0;
    default:
      return std::log(std::max(label / value + 1, 0.0));
  }
}

class LabelNormalization : public RowRule {
 public:
  LabelNormalization(std::vector<Normalization> methods, std::vector<double> values)
      : methods_(std::move(methods)), values_(std::move(values)) {}

  bool apply(RowView row) override {
    const std::uint32_t count = row.info().label_count;
    if (count == 0) return true;
    float* labels = own_labels(row, count);
    for (std::uint32_t i = 0; i < count; ++i) {
      if (is_missing(labels[i])) continue;
      double label = static_cast<double>(labels[i]);
      for (std::size_t step = 0; step < methods_.size(); ++step) {
        label = normalized(label, methods_[step], values_[step]);
      }
      labels[i] = static_cast<float>(label);
    }
    return true;
  }

 private:
  std::vector<Normalization> methods_;
  std::vector<double> values_;
};

class UseFieldAsLabel : public RowRule {
 public:
  UseFieldAsLabel(LineField field, bool overwrite_invalid, double threshold)
      : field_(std::move(field)), overwrite_invalid_(overwrite_invalid), threshold_(threshold) {
    if (field_.is_repeated || field_.kind == FieldKind::kText) {
      throw ConfigError("LineId field '" + field_.name + "' cannot be a label: it is not a single number");
    }
  }

  bool apply(RowView row) override {
    RowInfo& info = row.info();
    double value = field_.default_value;
    if (!read(info.line, value) && field_.default_value == 0) return true;
    if (overwrite_invalid_ && value >= threshold_) value = 0;
    if (info.label_count == 0) return true;
    float* labels = own_labels(row, info.label_count);
    for (std::uint32_t i = 0; i < info.label_count; ++i) {
      if (is_missing(labels[i]) || static_cast<double>(labels[i]) < value) labels[i] = static_cast<float>(value);
    }
    return true;
  }

 private:
  bool read(Bytes line, double& value) const {
    if (field_.kind == FieldKind::kFloat || field_.kind == FieldKind::kDouble) return line_real(line, field_, value);
    std::int64_t whole = 0;
    if (!line_int(line, field_, whole)) return false;
    const bool is_unsigned = field_.kind != FieldKind::kInt;
    value = is_unsigned ? static_cast<double>(static_cast<std::uint64_t>(whole)) : static_cast<double>(whole);
    return true;
  }

  LineField field_;
  bool overwrite_invalid_;
  double threshold_;
};

class FillRank : public RowRule {
 public:
  FillRank(RankSource source, std::int64_t rank_count)
      : source_(source),
        rank_count_(rank_count),
        field_(standard_field(source == RankSource::kDraw    ? "is_draw"
                              : source == RankSource::kChnid ? "chnid"
                                                             : "rank")) {}

  bool apply(RowView row) override {
    std::int64_t value = 0;
    line_int(row.info().line, field_, value);
    if (source_ == RankSource::kDraw) value = value != 0 ? 1 : 0;
    if (source_ == RankSource::kChnid && value != 0 && value != 1) value = 2;
    if (source_ == RankSource::kRank) value = std::min(value, rank_count_ - 1);
    const std::uint32_t before = row.info().label_count;
    own_labels(row, before + 1)[before] = static_cast<float>(value);
    return true;
  }

 private:
  RankSource source_;
  std::int64_t rank_count_;
  const LineField& field_;
};

}  // namespace

RulePtr make_add_label(const std::vector<TaskLabel>& tasks, float negative_value, double new_sample_rate,
                       std::uint64_t seed) {
  return std::make_shared<AddLabel>(tasks, negative_value, new_sample_rate, seed);
}

RulePtr make_scatter_label(const std::vector<std::int64_t>& chnids, const std::vector<std::uint32_t>& places) {
  if (chnids.size() != places.size()) throw ConfigError("scatter_label: each chnid needs one place");
  return std::make_shared<ScatterLabel>(chnids, places);
}

RulePtr make_multi_label(const MultiLabel& config) { return std::make_shared<MultiLabelRule>(config); }

RulePtr make_label_upper_bound(std::vector<float> bounds) {
  return std::make_shared<LabelUpperBound>(std::move(bounds));
}

RulePtr make_label_normalization(std::vector<Normalization> methods, std::vector<double> values) {
  if (methods.size() != values.size()) throw ConfigError("label_normalization: each method needs one value");
  return std::make_shared<LabelNormalization>(std::move(methods), std::move(values));
}

RulePtr make_use_field_as_label(LineField field, bool overwrite_invalid, double threshold) {
  return std::make_shared<UseFieldAsLabel>(std::move(field), overwrite_invalid, threshold);
}

RulePtr make_fill_rank(RankSource source, std::int64_t rank_count) {
  return std::make_shared<FillRank>(source, rank_count);
}

}  // namespace engine::data
