// averages.h: the rules built on one or two running averages, and those that keep none.
#pragma once

#include <algorithm>
#include <cmath>

#include "rule.h"

namespace engine::rules {

struct Sgd {
  explicit Sgd(Settings&) {}

  static Fields fields() { return {}; }
  void init(float*, std::size_t) const noexcept {}

  void update(Values w, Values, Gradient g, std::size_t dim, const StepArgs& args) const noexcept {
    for (std::size_t i = 0; i < dim; ++i) w[i] -= args.learning_rate * g[i];
  }
};

// The "gradient" is a new observation of the value; the learning rate plays no part.
struct MovingAverage {
  float momentum;

  explicit MovingAverage(Settings& settings) : momentum(settings.fraction("momentum")) {}

  static Fields fields() { return {}; }
  void init(float*, std::size_t) const noexcept {}

  void update(Values w, Values, Gradient g, std::size_t dim, const StepArgs&) const noexcept {
    for (std::size_t i = 0; i < dim; ++i) w[i] = momentum * w[i] + (1.0F - momentum) * g[i];
  }
};

struct Momentum {
  float decay;
  bool nesterov;
  float momentum;

  explicit Momentum(Settings& settings)
      : decay(settings.at_least_zero("weight_decay_factor")),
        nesterov(settings.flag("use_nesterov")),
        momentum(settings.fraction("momentum")) {}

  static Fields fields() { return {{"n", Width::kPerValue}}; }
  void init(float* state, std::size_t dim) const noexcept { std::fill_n(state, dim, 0.0F); }

  void update(Values w, Values n, Gradient g, std::size_t dim, const StepArgs& args) const noexcept {
    // Plain: w + n. Nesterov: w - momentum * n_before + (1 + momentum) * n.
    const float ahead = nesterov ? momentum : 0.0F;
    for (std::size_t i = 0; i < dim; ++i) {
      const float before = n[i];
      n[i] = momentum * before - args.learning_rate * (g[i] + decay * w[i]);
      w[i] = w[i] - ahead * before + (1.0F + ahead) * n[i];
    }
  }
};

struct Adadelta {
  float decay;
  float ratio;
  float epsilon;

  explicit Adadelta(Settings& settings)
      : decay(settings.at_least_zero("weight_decay_factor")),
        ratio(settings.fraction("averaging_ratio")),
        epsilon(settings.above_zero("epsilon")) {}

  static Fields fields() { return {{"accum", Width::kPerValue}, {"accum_update", Width::kPerValue}}; }
  void init(float* state, std::size_t dim) const noexcept { std::fill_n(state, 2 * dim, 0.0F); }

  void update(Values w, Values state, Gradient g, std::size_t dim, const StepArgs& args) const noexcept {
    Values accum = state;
    Values accum_update = state + dim;
    for (std::size_t i = 0; i < dim; ++i) {
      const float slope = g[i] + decay * w[i];
      accum[i] = ratio * accum[i] + (1.0F - ratio) * slope * slope;
      const float delta = std::sqrt(accum_update[i] + epsilon) / std::sqrt(accum[i] + epsilon) * slope;
      w[i] -= args.learning_rate * delta;
      accum_update[i] = ratio * accum_update[i] + (1.0F - ratio) * delta * delta;
    }
  }
};

// RMSProp as the original has it, 1 in the place of an epsilon. The first version averages the squares;
// the second sums them with forgetting, without the factor 1 - momentum. Both work in double.
template <bool kAverages>
struct RmspropFamily {
  double decay;
  double momentum;

  explicit RmspropFamily(Settings& settings)
      : decay(settings.at_least_zero("weight_decay_factor")), momentum(settings.fraction("momentum")) {}

  static Fields fields() { return {{"n", Width::kPerValue}}; }
  void init(float* state, std::size_t dim) const noexcept { std::fill_n(state, dim, 0.0F); }

  void update(Values w, Values n, Gradient g, std::size_t dim, const StepArgs& args) const noexcept {
    const double share = kAverages ? 1.0 - momentum : 1.0;
    for (std::size_t i = 0; i < dim; ++i) {
      const double slope = g[i] + decay * w[i];
      const double square = momentum * n[i] + share * slope * slope;
      n[i] = static_cast<float>(square);
      w[i] = static_cast<float>(w[i] - args.learning_rate / (std::sqrt(square) + 1.0) * slope);
    }
  }
};

using Rmsprop = RmspropFamily<true>;
using RmspropV2 = RmspropFamily<false>;

// Estimates the number of steps between two sightings of an id: the weight is a moving average of the gaps,
// the learning rate its share of the new one. The gradient plays no part. Steps are 0 or more.
struct BatchSoftmax {
  explicit BatchSoftmax(Settings&) {}

  static Fields fields() { return {{"global_step", Width::kInt64}}; }
  void init(float* state, std::size_t) const noexcept { store_int64(state, 0); }

  void update(Values w, Values last_step, Gradient, std::size_t, const StepArgs& args) const noexcept {
    const float share = args.learning_rate;
    const auto gap = static_cast<float>(args.step - load_int64(last_step));
    w[0] = (1.0F - share) * w[0] + share * gap;
    store_int64(last_step, args.step);
  }
};

}  // namespace engine::rules
