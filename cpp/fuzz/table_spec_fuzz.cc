// table_spec_fuzz.cc: slices of tables, as a client or a manifest gives them. Those that are accepted make rows that
// every part stays within.
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "engine/row_schema.h"
#include "row_columns.h"
#include "target.h"

namespace {

using namespace engine;

// Beyond this, rows are too large to be worth filling; the sums are checked all the same.
constexpr std::size_t kMostRowBytes = 1 << 12;

struct Kind {
  const char* name;
  std::vector<const char*> settings;
};

const std::vector<Kind>& optimizers() {
  static const std::vector<Kind> kinds = {
      {"sgd", {}},
      {"adagrad", {"initial_accumulator_value", "weight_decay_factor"}},
      {"adadelta", {"averaging_ratio", "epsilon", "weight_decay_factor"}},
      {"adam", {"beta1", "beta2", "epsilon", "use_nesterov", "weight_decay_factor"}},
      {"amsgrad", {"beta1", "beta2", "epsilon", "use_nesterov", "weight_decay_factor"}},
      {"momentum", {"momentum", "use_nesterov", "weight_decay_factor"}},
      {"moving_average", {"momentum"}},
      {"rmsprop", {"momentum", "weight_decay_factor"}},
      {"rmspropv2", {"momentum", "weight_decay_factor"}},
      {"ftrl", {"beta", "initial_accumulator_value", "l1_regularization_strength", "l2_regularization_strength"}},
      {"group_ftrl", {"beta", "initial_accumulator_value", "l1_regularization_strength", "l2_regularization_strength"}},
      {"group_adagrad", {"beta", "initial_accumulator_value", "l2_regularization_strength", "weight_decay_factor"}},
      {"dynamic_wd_adagrad",
       {"initial_accumulator_value", "weight_decay_factor", "decouple_weight_decay", "enable_dynamic_wd",
        "dynamic_wd_temperature", "flip_direction"}},
      {"batch_softmax", {}},
      {"unknown", {}},
  };
  return kinds;
}

const std::vector<Kind>& initializers() {
  static const std::vector<Kind> kinds = {
      {"zeros", {}}, {"ones", {}}, {"constants", {"constant"}}, {"random_uniform", {"minval", "maxval"}}};
  return kinds;
}

const std::vector<Kind>& compressors() {
  static const std::vector<Kind> kinds = {{"fp32", {}},
                                          {"fp16", {}},
                                          {"fixed_r8", {"r"}},
                                          {"one_bit", {"amplitude", "init_scale", "max_scale", "step_size"}}};
  return kinds;
}

double number(fuzz::Input& input) {
  static constexpr std::array<double, 8> kUsual = {0, 1, 0.5, 0.9, -1, 1e30, 1e300, 8};
  const std::uint8_t choice = input.byte();
  if (choice < kUsual.size() * 16) return kUsual[choice / 16];
  double value = 0;
  const std::uint64_t bits = input.word();
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

PartConfig part(fuzz::Input& input, const std::vector<Kind>& kinds) {
  const Kind& kind = kinds[input.byte() % kinds.size()];
  PartConfig config{.kind = kind.name, .settings = {}};
  for (const char* setting : kind.settings) config.settings[setting] = number(input);
  return config;
}

std::uint32_t width(fuzz::Input& input) {
  const std::uint8_t small = input.byte();
  return small < 250 ? small : static_cast<std::uint32_t>(input.word());
}

std::vector<SliceConfig> read_slices(fuzz::Input& input) {
  std::vector<SliceConfig> slices(input.byte() % 5);
  for (SliceConfig& slice : slices) {
    slice.dim = width(input);
    slice.optimizer = part(input, optimizers());
    slice.initializer = part(input, initializers());
    slice.compressor = part(input, compressors());
    const std::uint8_t wrappers = input.byte();
    slice.stochastic_rounding = (wrappers & 1) != 0;
    slice.delay_lambda = (wrappers & 2) != 0 ? static_cast<float>(number(input)) : 0.0F;
  }
  return slices;
}

void use_schema(const RowSchema& schema, std::span<const SliceConfig> slices) {
  std::uint64_t columns = 0;
  for (const SliceConfig& slice : slices) columns += slice.dim;
  fuzz::expect(schema.dim() == columns, "the columns of a row are not those of its slices");
  fuzz::expect(columns <= kMostColumns, "a row is wider than any may be");
  std::size_t stored = 0;
  for (const Column& column : columns_of(schema)) {
    fuzz::expect(column.row_offset + column.bytes <= schema.row_bytes(), "a column reaches beyond its row");
    stored += column.bytes;
  }
  fuzz::expect(stored <= schema.row_bytes(), "the columns of a row overlap");
  if (schema.row_bytes() > kMostRowBytes) return;
  // Exactly as large as they may be, so that a sanitizer sees the first byte too many.
  const std::vector<float> scales(slices.size(), 1.0F);
  std::vector<std::byte> row(schema.row_bytes());
  std::vector<float> values(schema.dim());
  schema.init(7, row.data(), row.data() + schema.value_bytes());
  schema.read(row.data(), values.data(), scales);
  schema.get(row.data(), values.data());
  schema.set(row.data(), values.data());
  schema.initial_values(-1, values.data());
  if (!schema.is_serving()) schema.read_initial(-1, values.data(), scales);
}

// Input: slices, each with its width and parts.
void run(fuzz::Bytes bytes) {
  fuzz::Input input(bytes);
  const bool is_serving = (input.byte() & 1) != 0;
  const std::vector<SliceConfig> slices = read_slices(input);
  (void)fuzz::accepts([&] { use_schema(RowSchema(slices, 3, is_serving), slices); });
}

const fuzz::Target target("table_spec", run);

}  // namespace
