// optimizer.cc: runs an update rule over a batch of rows, wraps it where asked, and picks it by name.
#include "engine/optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/error.h"
#include "kernels/kernels.h"
#include "rules/rules.h"
#include "settings.h"

namespace engine {
namespace {

template <class Rule>
class RuleOptimizer final : public Optimizer {
 public:
  RuleOptimizer(Rule rule, std::size_t dim)
      : rule_(std::move(rule)), dim_(dim), step_rows_(kernels().step_rows[rules::AllRules::index_of<Rule>()]) {
    for (const rules::Field& field : Rule::fields()) {
      const bool is_int64 = field.width == rules::Width::kInt64;
      const std::size_t words = field.width == rules::Width::kPerValue ? dim : (is_int64 ? 2 : 1);
      fields_.push_back({field.name, state_words_, words, is_int64});
      state_words_ += words;
    }
  }

  [[nodiscard]] std::size_t state_words() const noexcept override { return state_words_; }
  [[nodiscard]] std::vector<StateField> state_fields() const override { return fields_; }
  void init(float* state) const noexcept override { rule_.init(state, dim_); }

  void step(const RowBatch& batch, const StepArgs& args) const noexcept override {
    step_rows_(&rule_, batch, args, dim_);
  }

 private:
  Rule rule_;
  std::size_t dim_;
  Kernels::StepRows step_rows_;
  std::size_t state_words_ = 0;
  std::vector<StateField> fields_;
};

// A wrapper has the state of the wrapped optimizer, and steps a block of rows at a time so that they stay in cache
// between the wrapped step and its own work.
class Wrapper : public Optimizer {
 public:
  Wrapper(std::unique_ptr<Optimizer> wrapped, std::size_t dim)
      : wrapped_(std::move(wrapped)), dim_(dim), kernels_(kernels()) {}

  [[nodiscard]] std::size_t state_words() const noexcept override { return wrapped_->state_words(); }
  [[nodiscard]] std::vector<StateField> state_fields() const override { return wrapped_->state_fields(); }
  void init(float* state) const noexcept override { wrapped_->init(state); }

 protected:
  static constexpr std::size_t kBlockRows = 64;

  static void for_each_block(const RowBatch& batch, const auto& visit) {
    for (std::size_t begin = 0; begin < batch.count; begin += kBlockRows) {
      RowBatch block = batch;
      block.count = std::min(kBlockRows, batch.count - begin);
      block.end -= begin;
      block.rows += begin;
      block.grads += begin;
      if (block.latest != nullptr) block.latest += begin;
      if (block.ids != nullptr) block.ids += begin;
      visit(block);
    }
  }

  std::unique_ptr<Optimizer> wrapped_;
  std::size_t dim_;
  const Kernels& kernels_;
};

// Corrects a gradient computed at an older weight towards the present one: g + lambda g^2 (w - w_then).
class DelayCompensated final : public Wrapper {
 public:
  DelayCompensated(std::unique_ptr<Optimizer> wrapped, std::size_t dim, float lambda)
      : Wrapper(std::move(wrapped), dim), lambda_(lambda) {}

  void step(const RowBatch& batch, const StepArgs& args) const noexcept override {
    if (batch.latest == nullptr) return wrapped_->step(batch, args);
    // As wide as a gradient up to this slice, so that the offsets stay those of the batch.
    const std::size_t width = batch.value_offset + dim_;
    std::vector<float> corrected(kBlockRows * width);
    for_each_block(batch, [&](RowBatch& block) {
      std::array<float*, kBlockRows> outs{};
      std::array<const float*, kBlockRows> grads{};
      for (std::size_t i = 0; i < block.count; ++i) grads[i] = outs[i] = corrected.data() + i * width;
      kernels_.correct_gradients(block, lambda_, dim_, outs.data());
      block.grads = grads.data();
      wrapped_->step(block, args);
    });
  }

 private:
  float lambda_;
};

// Rounds the weights to fp16 values after each step, up or down at random so that the mean is kept.
class StochasticallyRounded final : public Wrapper {
 public:
  using Wrapper::Wrapper;

  void step(const RowBatch& batch, const StepArgs& args) const noexcept override {
    for_each_block(batch, [&](const RowBatch& block) {
      wrapped_->step(block, args);
      kernels_.round_rows(block, args, dim_);
    });
  }
};

template <class Rule>
std::unique_ptr<Optimizer> make_rule(const SliceConfig& slice) {
  Settings settings(slice.optimizer);
  Rule rule(settings);
  settings.expect_all_read();
  return std::make_unique<RuleOptimizer<Rule>>(std::move(rule), slice.dim);
}

using Maker = std::unique_ptr<Optimizer> (*)(const SliceConfig&);

const std::map<std::string, Maker>& makers() {
  static const std::map<std::string, Maker> kMakers = {
      {"sgd", make_rule<rules::Sgd>},
      {"adagrad", make_rule<rules::Adagrad>},
      {"adadelta", make_rule<rules::Adadelta>},
      {"adam", make_rule<rules::Adam>},
      {"amsgrad", make_rule<rules::Amsgrad>},
      {"momentum", make_rule<rules::Momentum>},
      {"moving_average", make_rule<rules::MovingAverage>},
      {"rmsprop", make_rule<rules::Rmsprop>},
      {"rmspropv2", make_rule<rules::RmspropV2>},
      {"ftrl", make_rule<rules::Ftrl>},
      {"group_ftrl", make_rule<rules::GroupFtrl>},
      {"group_adagrad", make_rule<rules::GroupAdagrad>},
      {"dynamic_wd_adagrad", make_rule<rules::DynamicWdAdagrad>},
      {"batch_softmax", make_rule<rules::BatchSoftmax>},
  };
  return kMakers;
}

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const SliceConfig& slice) {
  const auto maker = makers().find(slice.optimizer.kind);
  if (maker == makers().end()) throw ConfigError("unknown optimizer '" + slice.optimizer.kind + "'");
  if (slice.dim == 0) throw ConfigError(slice.optimizer.kind + ": a slice's dim must be 1 or more");
  if (slice.optimizer.kind == "batch_softmax" && slice.dim != 1) {
    throw ConfigError("batch_softmax: dim must be 1, not " + std::to_string(slice.dim));
  }
  if (!(std::isfinite(slice.delay_lambda) && slice.delay_lambda >= 0.0F)) {
    throw ConfigError(slice.optimizer.kind + ": delay_lambda must be 0 or more and finite");
  }

  auto optimizer = maker->second(slice);
  if (slice.delay_lambda > 0.0F) {
    optimizer = std::make_unique<DelayCompensated>(std::move(optimizer), slice.dim, slice.delay_lambda);
  }
  if (slice.stochastic_rounding) {
    optimizer = std::make_unique<StochasticallyRounded>(std::move(optimizer), slice.dim);
  }
  return optimizer;
}

}  // namespace engine
