// optimizer_row.h: optimizer settings by kind, and one row to step; shared by the optimizer tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/hash.h"
#include "engine/optimizer.h"

namespace engine::optimizer_row {

using Floats = std::vector<float>;

// --- configs: the reference's defaults, with the changes of a test ---

inline PartConfig part(const std::string& kind, const std::map<std::string, double>& changes = {}) {
  static const std::map<std::string, std::map<std::string, double>> kDefaults = {
      {"sgd", {}},
      {"adagrad", {{"initial_accumulator_value", 0.1}, {"weight_decay_factor", 0}}},
      {"adadelta", {{"weight_decay_factor", 0}, {"averaging_ratio", 0.9}, {"epsilon", 0.01}}},
      {"adam", {{"beta1", 0.9}, {"beta2", 0.99}, {"weight_decay_factor", 0}, {"use_nesterov", 0}, {"epsilon", 0.01}}},
      {"amsgrad",
       {{"beta1", 0.9}, {"beta2", 0.99}, {"weight_decay_factor", 0}, {"use_nesterov", 0}, {"epsilon", 0.01}}},
      {"momentum", {{"weight_decay_factor", 0}, {"use_nesterov", 0}, {"momentum", 0.9}}},
      {"moving_average", {{"momentum", 0.9}}},
      {"rmsprop", {{"weight_decay_factor", 0}, {"momentum", 0.9}}},
      {"rmspropv2", {{"weight_decay_factor", 0}, {"momentum", 0.9}}},
      {"ftrl",
       {{"beta", 0},
        {"initial_accumulator_value", 0.1},
        {"l1_regularization_strength", 0},
        {"l2_regularization_strength", 0}}},
      {"group_ftrl",
       {{"beta", 1},
        {"initial_accumulator_value", 0},
        {"l1_regularization_strength", 0},
        {"l2_regularization_strength", 0}}},
      {"group_adagrad",
       {{"beta", 0},
        {"initial_accumulator_value", 0.1},
        {"l2_regularization_strength", 0},
        {"weight_decay_factor", 0}}},
      {"dynamic_wd_adagrad",
       {{"initial_accumulator_value", 0.1},
        {"weight_decay_factor", 0},
        {"decouple_weight_decay", 0},
        {"enable_dynamic_wd", 0},
        {"dynamic_wd_temperature", 1},
        {"flip_direction", 0}}},
      {"batch_softmax", {}},
  };
  PartConfig config{kind, kDefaults.at(kind)};
  for (const auto& [name, value] : changes) config.settings[name] = value;
  return config;
}

inline const std::vector<std::string> kKinds = {
    "sgd",     "adagrad",   "adadelta", "adam",       "amsgrad",       "momentum",           "moving_average",
    "rmsprop", "rmspropv2", "ftrl",     "group_ftrl", "group_adagrad", "dynamic_wd_adagrad", "batch_softmax"};

inline SliceConfig slice(std::uint32_t dim, PartConfig optimizer) {
  SliceConfig config;
  config.dim = dim;
  config.optimizer = std::move(optimizer);
  return config;
}

// Awkward settings: everything a rule can do is switched on.
inline SliceConfig lively(const std::string& kind, std::uint32_t dim) {
  SliceConfig config = slice(dim, part(kind));
  for (auto& [name, value] : config.optimizer.settings) {
    if (name == "weight_decay_factor") value = 0.1;
    if (name == "l1_regularization_strength" || name == "l2_regularization_strength") value = 0.05;
    if (name == "beta") value = 0.7;
    if (name == "use_nesterov" || name == "enable_dynamic_wd") value = 1;
    if (name == "dynamic_wd_temperature") value = 3;
  }
  return config;
}

// --- one row of one slice ---

class Row {
 public:
  explicit Row(const SliceConfig& config, Floats start = {})
      : dim_(config.dim), optimizer_(make_optimizer(config)), words_(dim_ + optimizer_->state_words()) {
    std::copy(start.begin(), start.end(), words_.begin());
    optimizer_->init(words_.data() + dim_);
  }

  Floats step(const Floats& grad, float lr, std::int64_t step = 1, const Floats* latest = nullptr) {
    const RowWords row{.values = words_.data(), .state = words_.data() + dim_};
    const float* g = grad.data();
    const float* then = latest == nullptr ? nullptr : latest->data();
    RowBatch batch;
    batch.count = 1;
    batch.rows = &row;
    batch.grads = &g;
    batch.latest = latest == nullptr ? nullptr : &then;
    batch.ids = &id;
    optimizer_->step(batch, {lr, step, seed});
    return values();
  }

  [[nodiscard]] Floats values() const { return {words_.begin(), words_.begin() + static_cast<std::ptrdiff_t>(dim_)}; }

  [[nodiscard]] StateField field(const std::string& name) const {
    for (const StateField& field : optimizer_->state_fields()) {
      if (field.name == name) return field;
    }
    throw std::out_of_range(name);
  }

  [[nodiscard]] float state(const std::string& name) const { return words_.at(dim_ + field(name).offset); }

  [[nodiscard]] std::int64_t int64_state(const std::string& name) const {
    EXPECT_TRUE(field(name).is_int64);
    EXPECT_EQ(field(name).words, 2U);
    std::int64_t value = 0;
    std::memcpy(&value, &words_.at(dim_ + field(name).offset), sizeof(value));
    return value;
  }

  Floats& words() { return words_; }
  Optimizer& optimizer() { return *optimizer_; }

  std::int64_t id = 1;
  std::uint64_t seed = 2;

 private:
  std::size_t dim_;
  std::unique_ptr<Optimizer> optimizer_;
  Floats words_;
};

inline void expect_near(const Floats& actual, const Floats& expected, float tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], tolerance) << "at " << i;
}

inline bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Uniform in [-1, 1), the same on every machine.
inline Floats random_floats(std::size_t count, std::uint64_t seed) {
  Floats values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = 2.0F * unit_float(scramble(scramble(seed) + i)) - 1.0F;
  return values;
}

}  // namespace engine::optimizer_row
