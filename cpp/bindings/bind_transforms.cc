// bind_transforms.cc: rules and operations on rows. Converts, releases the GIL and forwards.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.h"
#include "engine/data/row_op.h"
#include "engine/data/transforms/features.h"
#include "engine/data/transforms/filters.h"
#include "engine/data/transforms/item_pool.h"
#include "engine/data/transforms/labels.h"
#include "engine/data/transforms/negatives.h"
#include "engine/data/transforms/ragged.h"
#include "engine/data/transforms/sampling.h"
#include "engine/data/transforms/values.h"
#include "engine/error.h"
#include "line_fields.h"
#include "module.h"
#include "path.h"

namespace bindings {

using namespace nb::literals;
using namespace engine::data;

namespace {

using Ints = std::vector<std::int64_t>;
using Texts = std::vector<nb::bytes>;
using FeatureTuple = std::tuple<std::string, std::uint32_t, std::int32_t>;  // name, column, flat slot or -1

Operands operands_of(Ints ints, std::vector<double> reals, const Texts& texts) {
  Operands operands{std::move(ints), std::move(reals), {}};
  for (const nb::bytes& text : texts) operands.texts.emplace_back(text.c_str(), text.size());
  return operands;
}

FeatureRef feature_of(const FeatureTuple& tuple) {
  return {std::get<0>(tuple), std::get<1>(tuple), std::get<2>(tuple)};
}

template <typename Value>
Value one_of(const char* what, const std::string& name, std::initializer_list<std::pair<const char*, Value>> known) {
  std::string names;
  for (const auto& [text, value] : known) {
    if (name == text) return value;
    names += (names.empty() ? "" : ", ") + std::string(text);
  }
  throw engine::ConfigError(std::string(what) + " is '" + name + "'; it must be one of: " + names);
}

// --- rules ---

RulePtr filter_by_fids(Ints filter_fids, Ints has_fids, Ints select_fids, Ints has_actions, std::int64_t req_time_min,
                       std::vector<std::uint32_t> select_slots) {
  return make_filter_by_fids({std::move(filter_fids), std::move(has_fids), std::move(select_fids),
                              std::move(has_actions), req_time_min, std::move(select_slots)});
}

RulePtr filter_by_value(const LineFieldTuple& field, const std::string& op, Ints ints, std::vector<double> reals,
                        const Texts& texts, bool keep_empty) {
  return make_filter_by_value(as_line_field(field), op, operands_of(std::move(ints), std::move(reals), texts),
                              keep_empty);
}

RulePtr filter_by_feature_value(const std::string& name, std::uint32_t column, const std::string& kind,
                                const std::string& op, Ints ints, std::vector<double> reals, const Texts& texts,
                                bool keep_empty) {
  const auto feature_kind = one_of<FeatureKind>("field_type", kind,
                                                {{"int64", FeatureKind::kInt64},
                                                 {"float", FeatureKind::kFloat},
                                                 {"double", FeatureKind::kDouble},
                                                 {"bytes", FeatureKind::kBytes},
                                                 {"fid", FeatureKind::kFid}});
  return make_filter_by_feature_value(name, column, feature_kind, op,
                                      operands_of(std::move(ints), std::move(reals), texts), keep_empty);
}

RulePtr add_action(const LineFieldTuple& field, const std::string& op, Ints ints, std::vector<double> reals,
                   const Texts& texts, std::int64_t action) {
  return make_add_action(as_line_field(field), op, operands_of(std::move(ints), std::move(reals), texts), action);
}

RulePtr add_label(const std::vector<std::tuple<Ints, Ints, double>>& tasks, float negative_value,
                  double new_sample_rate, std::uint64_t seed) {
  std::vector<TaskLabel> configs;
  for (const auto& [positive, negative, rate] : tasks) configs.push_back({positive, negative, rate});
  return make_add_label(configs, negative_value, new_sample_rate, seed);
}

RulePtr multi_label(const LineFieldTuple& head_field, Ints int_heads, std::vector<std::string> text_heads,
                    std::vector<std::uint32_t> places, std::uint32_t task_num, bool use_origin_label, Ints pos_actions,
                    Ints neg_actions, Ints action_priority, float pos_label, float neg_label) {
  MultiLabel config;
  config.head_field = as_line_field(head_field);
  config.int_heads = std::move(int_heads);
  config.text_heads = std::move(text_heads);
  config.places = std::move(places);
  config.task_count = task_num;
  config.use_origin_label = use_origin_label;
  config.positive_actions = std::move(pos_actions);
  config.negative_actions = std::move(neg_actions);
  config.action_priority = std::move(action_priority);
  config.positive_label = pos_label;
  config.negative_label = neg_label;
  return make_multi_label(config);
}

RulePtr label_normalization(const std::vector<std::string>& methods, std::vector<double> values) {
  std::vector<Normalization> steps;
  for (const auto& method : methods) {
    steps.push_back(one_of<Normalization>("method", method,
                                          {{"log", Normalization::kLog},
                                           {"scale", Normalization::kScale},
                                           {"scale2int", Normalization::kScaleInt},
                                           {"pow", Normalization::kPow},
                                           {"repow", Normalization::kRepow},
                                           {"scalelog", Normalization::kScaleLog}}));
  }
  return make_label_normalization(std::move(steps), std::move(values));
}

RulePtr fill_rank(const std::string& source, std::int64_t rank_num) {
  return make_fill_rank(
      one_of<RankSource>("source", source,
                         {{"draw", RankSource::kDraw}, {"chnid", RankSource::kChnid}, {"rank", RankSource::kRank}}),
      rank_num);
}

using StrategyTuple = std::tuple<std::int64_t, double, std::optional<float>>;

RulePtr special_strategy(const std::vector<StrategyTuple>& strategies, bool keep_empty, std::uint64_t seed) {
  std::vector<Strategy> configs;
  for (const auto& [strategy, rate, label] : strategies) configs.push_back({strategy, rate, label});
  return make_special_strategy(std::move(configs), keep_empty, seed);
}

RulePtr negative_sample(double drop_rate, std::uint32_t label_index, float threshold, Ints action_priority,
                        Ints actions, std::vector<double> rates, bool correct_sample_rate, std::uint64_t seed) {
  return make_negative_sample({drop_rate, label_index, threshold, std::move(action_priority), std::move(actions),
                               std::move(rates), correct_sample_rate},
                              seed);
}

RulePtr switch_slot(const std::vector<std::tuple<FeatureTuple, std::uint32_t, std::uint32_t>>& switches) {
  std::vector<SlotSwitch> configs;
  for (const auto& [from, to_column, slot] : switches) configs.push_back({feature_of(from), to_column, slot});
  return make_switch_slot(std::move(configs));
}

RulePtr feature_combine(const FeatureTuple& a, const FeatureTuple& b, std::uint32_t slot, std::uint32_t to_column) {
  return make_feature_combine(feature_of(a), feature_of(b), slot, to_column);
}

RulePtr extract_fid(std::string name, std::uint32_t from_column, std::uint32_t to_column, std::uint32_t slot,
                    const std::string& method, double scale) {
  const auto extraction = one_of<Extraction>("method", method,
                                             {{"hash", Extraction::kHash},
                                              {"int", Extraction::kInt},
                                              {"int64_hash", Extraction::kInt64Hash},
                                              {"log2", Extraction::kLog2},
                                              {"ln", Extraction::kLn},
                                              {"ratio", Extraction::kRatio}});
  return make_extract_fid(std::move(name), from_column, to_column, slot, extraction, scale);
}

// --- operations ---

using WeightTuple = std::tuple<std::int64_t, std::int64_t, std::optional<float>>;

std::shared_ptr<RowOp> reweight(Ints action_priority, const std::vector<WeightTuple>& weights, bool adds,
                                std::uint64_t seed) {
  Reweighting config;
  config.action_priority = std::move(action_priority);
  config.adds = adds;
  for (const auto& [action, weight, label] : weights) config.weights.push_back({action, weight, label});
  return make_reweight(config, seed);
}

NegativeRows negative_rows(const std::vector<FeatureTuple>& item_features,
                           const std::optional<FeatureTuple>& index_feature, Ints positive_actions,
                           Ints action_priority, std::uint32_t label_index, float positive_label, float negative_label,
                           std::optional<std::int64_t> negative_action, bool exclude_own_item) {
  NegativeRows rows;
  for (const auto& feature : item_features) rows.item_features.push_back(feature_of(feature));
  if (index_feature) rows.index_feature = feature_of(*index_feature);
  rows.positive_actions = std::move(positive_actions);
  rows.action_priority = std::move(action_priority);
  rows.label_index = label_index;
  rows.positive_label = positive_label;
  rows.negative_label = negative_label;
  rows.negative_action = negative_action;
  rows.exclude_own_item = exclude_own_item;
  return rows;
}

std::shared_ptr<RowOp> negative_gen(const NegativeRows& rows, std::uint32_t neg_num,
                                    const std::optional<FeatureTuple>& channel_feature, std::size_t start_num,
                                    std::size_t max_item_num, bool throw_origin, bool throw_origin_neg,
                                    bool cache_only_pos, Ints cache_negative_actions, double real_neg_instance_weight,
                                    double sampled_neg_instance_weight, bool unbias_sampled_neg,
                                    double origin_neg_in_pool_proba, double neg_sample_decay_factor,
                                    double easy_hard_ratio, std::uint64_t seed) {
  NegativeGenConfig config;
  config.rows = rows;
  config.count = neg_num;
  config.per_channel = channel_feature.has_value();
  if (channel_feature) config.channel_feature = feature_of(*channel_feature);
  config.start_count = start_num;
  config.max_items = max_item_num;
  config.throw_origin = throw_origin;
  config.throw_origin_negative = throw_origin_neg;
  config.cache_only_positive = cache_only_pos;
  config.cache_negative_actions = std::move(cache_negative_actions);
  config.real_negative_weight = real_neg_instance_weight;
  config.sampled_negative_weight = sampled_neg_instance_weight;
  config.unbiases = unbias_sampled_neg;
  config.origin_negative_share = origin_neg_in_pool_proba;
  config.decay = neg_sample_decay_factor;
  config.easy_share = easy_hard_ratio;
  return make_negative_gen(config, seed);
}

// --- item pool ---

void restore_pool(ItemPool& pool, const std::vector<nb::object>& streams, const StreamName& source) {
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::vector<Bytes> views;
  for (const auto& stream : streams) {
    buffers.push_back(std::make_unique<Buffer>(stream));
    views.push_back(buffers.back()->bytes());
  }
  ReleasedGil unlocked;
  pool.restore(views, source);
}

std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>> pool_items(const ItemPool& pool,
                                                                             std::int64_t channel) {
  std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>> items;
  for (const auto& item : pool.items(channel)) items.emplace_back(item.id, item.seen_count, item.sample_count);
  return items;
}

nb::tuple filter_values(nb::handle message) {
  const Buffer buffer(message);
  const Operands operands = read_filter_values(buffer.bytes());
  nb::list texts;
  for (const auto& text : operands.texts) texts.append(nb::bytes(text.data(), text.size()));
  return nb::make_tuple(operands.reals, operands.ints, texts);
}

// --- ragged ---

using Ids = Vector<const std::int64_t>;

RaggedView ragged_view(const Ids& values, const Ids& offsets, const char* name) {
  const RaggedView view{as_span(values), as_span(offsets)};
  check_ragged(view, name);
  return view;
}

using RaggedTuple = std::pair<NewVector<std::int64_t>, NewVector<std::int64_t>>;

RaggedTuple ragged_tuple(RaggedArray&& ragged) {
  return {as_vector(std::move(ragged.values)), as_vector(std::move(ragged.offsets))};
}

RaggedTuple ragged_combine(const Ids& values_a, const Ids& offsets_a, const Ids& values_b, const Ids& offsets_b,
                           std::uint32_t slot, int version) {
  RaggedArray combined;
  {
    ReleasedGil unlocked;
    combined =
        combine(ragged_view(values_a, offsets_a, "first"), ragged_view(values_b, offsets_b, "second"), slot, version);
  }
  return ragged_tuple(std::move(combined));
}

RaggedTuple ragged_join(const std::vector<std::pair<Ids, Ids>>& parts) {
  std::vector<RaggedView> views;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    views.push_back(ragged_view(parts[i].first, parts[i].second, ("part " + std::to_string(i)).c_str()));
  }
  return ragged_tuple(join_rows(views));
}

nb::tuple unique_ids(const Ids& values) {
  engine::data::UniqueIds unique;
  {
    ReleasedGil unlocked;
    unique = engine::data::unique_ids(as_span(values));
  }
  return nb::make_tuple(as_vector(std::move(unique.ids)), as_vector(std::move(unique.index)));
}

NewVector<float> ragged_mask(const Ids& values, const Ids& offsets, std::int64_t fid) {
  return as_vector(mask_of(ragged_view(values, offsets, "ragged"), fid));
}

void bind_rules(nb::module_& m) {
  nb::class_<RowRule>(m, "RowRule", "Keeps or drops one row, and may edit it.");
  m.def("all_rule", &make_all_rule, "rules"_a, "Return the rule that keeps rows that every rule keeps.");
  m.def("any_rule", &make_any_rule, "rules"_a, "Return the rule that keeps rows that any rule keeps; all rules run.");
  m.def("filter_by_fids", &filter_by_fids, "filter_fids"_a, "has_fids"_a, "select_fids"_a, "has_actions"_a,
        "req_time_min"_a, "select_slots"_a);
  m.def("filter_by_action", &make_filter_by_action, "has_actions"_a);
  m.def("filter_by_label", &make_filter_by_label, "thresholds"_a, "filter_equal"_a);
  m.def("filter_by_source", &make_filter_by_source, "keys"_a);
  m.def("set_source", &make_set_source, "chnids"_a, "keys"_a, "default_key"_a);
  m.def("filter_by_value", &filter_by_value, "field"_a, "op"_a, "ints"_a, "reals"_a, "texts"_a, "keep_empty"_a);
  m.def("filter_by_feature_value", &filter_by_feature_value, "name"_a, "column"_a, "kind"_a, "op"_a, "ints"_a,
        "reals"_a, "texts"_a, "keep_empty"_a);
  m.def("add_action", &add_action, "field"_a, "op"_a, "ints"_a, "reals"_a, "texts"_a, "action"_a);
  m.def("add_label", &add_label, "tasks"_a, "negative_value"_a, "new_sample_rate"_a, "seed"_a);
  m.def("scatter_label", &make_scatter_label, "chnids"_a, "places"_a);
  m.def("multi_label", &multi_label, "head_field"_a, "int_heads"_a, "text_heads"_a, "places"_a, "task_num"_a,
        "use_origin_label"_a, "pos_actions"_a, "neg_actions"_a, "action_priority"_a, "pos_label"_a, "neg_label"_a);
  m.def("label_upper_bound", &make_label_upper_bound, "bounds"_a);
  m.def("label_normalization", &label_normalization, "methods"_a, "values"_a);
  m.def(
      "use_field_as_label",
      [](const LineFieldTuple& field, bool overwrite_invalid, double threshold) {
        return make_use_field_as_label(as_line_field(field), overwrite_invalid, threshold);
      },
      "field"_a, "overwrite_invalid"_a, "threshold"_a);
  m.def("fill_rank", &fill_rank, "source"_a, "rank_num"_a);
  m.def("special_strategy", &special_strategy, "strategies"_a, "keep_empty"_a, "seed"_a);
  m.def("negative_sample", &negative_sample, "drop_rate"_a, "label_index"_a, "threshold"_a, "action_priority"_a,
        "actions"_a, "rates"_a, "correct_sample_rate"_a, "seed"_a);
  m.def("switch_slot", &switch_slot, "switches"_a);
  m.def("feature_combine", &feature_combine, "a"_a, "b"_a, "slot"_a, "to_column"_a);
  m.def("extract_fid", &extract_fid, "name"_a, "from_column"_a, "to_column"_a, "slot"_a, "method"_a, "scale"_a);
}

// A mark of an operation's state, released when Python drops it, by whichever thread that is.
struct StateMark {
  explicit StateMark(std::shared_ptr<RowOp> of) : op(std::move(of)), id(op->mark()) {}
  ~StateMark() { op->release(id); }
  StateMark(const StateMark&) = delete;
  StateMark& operator=(const StateMark&) = delete;

  std::shared_ptr<RowOp> op;
  std::uint64_t id;
};

void bind_ops(nb::module_& m) {
  nb::class_<StateMark>(m, "StateMark", "Names the state of an operation at one moment.");
  nb::class_<RowOp>(m, "RowOp", "Turns rows into rows.")
      .def("run", &RowOp::run, "rows"_a, nb::call_guard<ReleasedGil>(), "Change ``rows`` in place.")
      .def_ro("rows_in", &RowOp::rows_in)
      .def_ro("rows_out", &RowOp::rows_out)
      .def_prop_ro("has_state", &RowOp::has_state)
      .def(
          "state",
          [](const RowOp& op) {
            std::vector<std::byte> state;
            {
              ReleasedGil unlocked;
              state = op.state();
            }
            return as_bytes(state);
          },
          "State of the operation; empty for most.")
      .def(
          "restore",
          [](RowOp& op, nb::handle state) {
            const Buffer buffer(state);
            ReleasedGil unlocked;
            op.restore(buffer.bytes());
          },
          "state"_a, nb::sig("def restore(self, state: bytes | bytearray | memoryview) -> None"))
      .def(
          "mark",
          [](const std::shared_ptr<RowOp>& op) -> std::unique_ptr<StateMark> {
            if (!op->has_state()) return nullptr;
            return std::make_unique<StateMark>(op);
          },
          nb::sig("def mark(self) -> StateMark | None"),
          "Name the present state, cheaply; None when there is no state. The mark is released with the object.")
      .def(
          "state_at",
          [](const RowOp& op, const StateMark& mark) {
            if (mark.op.get() != &op) throw engine::ConfigError("the mark is of another operation");
            std::vector<std::byte> state;
            {
              ReleasedGil unlocked;
              state = op.state_at(mark.id);
            }
            return as_bytes(state);
          },
          "mark"_a, "The state as it was at the mark.")
      .def_prop_ro("has_pool", [](RowOp& op) { return !op.pools().empty(); })
      .def_prop_ro("pools", &RowOp::pools, nb::rv_policy::reference_internal, "The item pools inside.");
  m.def(
      "rule_op", [](std::vector<RulePtr> rules) { return std::shared_ptr<RowOp>(make_rule_op(std::move(rules))); },
      "rules"_a, "The operation that keeps the rows which every rule keeps.");
  m.def(
      "sequence_op",
      [](std::vector<std::shared_ptr<RowOp>> ops) { return std::shared_ptr<RowOp>(make_sequence_op(std::move(ops))); },
      "ops"_a, "One operation after the other.");
  m.def("reweight", &reweight, "action_priority"_a, "weights"_a, "adds"_a, "seed"_a);
  nb::class_<NegativeRows>(m, "NegativeRows", "The positive rows, the features of an item, and the label of negatives.")
      .def(
          "__init__",
          [](NegativeRows* self, const std::vector<FeatureTuple>& item_features,
             const std::optional<FeatureTuple>& index_feature, Ints positive_actions, Ints action_priority,
             std::uint32_t label_index, float positive_label, float negative_label,
             std::optional<std::int64_t> negative_action, bool exclude_own_item) {
            new (self) NegativeRows(negative_rows(item_features, index_feature, std::move(positive_actions),
                                                  std::move(action_priority), label_index, positive_label,
                                                  negative_label, negative_action, exclude_own_item));
          },
          "item_features"_a, "index_feature"_a.none(), "positive_actions"_a, "action_priority"_a, "label_index"_a,
          "positive_label"_a, "negative_label"_a, "negative_action"_a.none(), "exclude_own_item"_a);
  m.def("negative_gen", &negative_gen, "rows"_a, "neg_num"_a, "channel_feature"_a.none(), "start_num"_a,
        "max_item_num"_a, "throw_origin"_a, "throw_origin_neg"_a, "cache_only_pos"_a, "cache_negative_actions"_a,
        "real_neg_instance_weight"_a, "sampled_neg_instance_weight"_a, "unbias_sampled_neg"_a,
        "origin_neg_in_pool_proba"_a, "neg_sample_decay_factor"_a, "easy_hard_ratio"_a, "seed"_a);
  m.def(
      "in_batch_negatives",
      [](const NegativeRows& rows, std::uint32_t num, float weight, std::uint64_t seed) {
        return std::shared_ptr<RowOp>(make_in_batch_negatives(rows, num, weight, seed));
      },
      "rows"_a, "num"_a, "weight"_a, "seed"_a);
}

void bind_pool(nb::module_& m) {
  nb::class_<ItemPool>(m, "ItemPool", "Items seen lately, by channel.")
      .def(nb::init<std::vector<std::string>, std::size_t>(), "feature_names"_a, "max_items"_a)
      .def("__len__", &ItemPool::size)
      .def_prop_ro("feature_names", &ItemPool::feature_names)
      .def_prop_ro("channels", &ItemPool::channel_ids, "Ids of the channels, ascending.")
      .def_prop_ro("log_size", &ItemPool::log_size, "Changes that are kept for live marks.")
      .def("items", &pool_items, "channel"_a, "(id, times seen, times sampled) of a channel's items, oldest first.")
      .def(
          "state",
          [](const ItemPool& pool, std::uint32_t shard, std::uint32_t shards) {
            if (shard >= shards) throw engine::ConfigError("shard must be below shards");
            return as_bytes(pool.state(shard, shards));
          },
          "shard"_a = 0, "shards"_a = 1, "TFRecords of ChannelCache messages.")
      .def("restore", &restore_pool, "streams"_a, "source"_a = "item pool",
           nb::sig("def restore(self, streams: collections.abc.Sequence[bytes | bytearray | memoryview], "
                   "source: str = 'item pool') -> None"),
           "Replace everything by the content of the streams.");
}

}  // namespace

void bind_transforms(nb::module_& m) {
  bind_rules(m);
  bind_pool(m);
  bind_ops(m);
  m.def(
      "standard_line_fields",
      [] {
        constexpr const char* kKinds[] = {"int", "fixed64", "fixed32", "float", "double", "text"};
        std::vector<LineFieldTuple> fields;
        for (const auto& field : standard_line_fields()) {
          fields.emplace_back(field.name, field.number, kKinds[static_cast<std::size_t>(field.kind)], field.is_repeated,
                              field.default_value);
        }
        return fields;
      },
      "(name, number, kind, is_repeated, default) of the fields that LineId always has.");
  m.def("read_filter_values", &filter_values, "message"_a, "(floats, ints, texts) of a FilterValues message.",
        nb::sig("def read_filter_values(message: bytes | bytearray | memoryview) -> "
                "tuple[list[float], list[int], list[bytes]]"));
  m.def("ragged_combine", &ragged_combine, "values_a"_a, "offsets_a"_a, "values_b"_a, "offsets_b"_a, "slot"_a,
        "version"_a);
  m.def("ragged_join", &ragged_join, "parts"_a);
  m.def("unique_ids", &unique_ids, "values"_a,
        "The distinct ids in the order first seen, and the place of every value.",
        nb::sig("def unique_ids(values: numpy.typing.NDArray[numpy.int64]) -> "
                "tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]"));
  m.def("ragged_mask", &ragged_mask, "values"_a, "offsets"_a, "fid"_a);
}

}  // namespace bindings
