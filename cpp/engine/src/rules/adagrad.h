// adagrad.h: the rules that divide by the root of all squared gradients so far.
#pragma once

#include <algorithm>
#include <cmath>

#include "rule.h"

namespace engine::rules {

// The step of one coordinate. A zero norm means no gradient was ever seen: stay, rather than 0/0.
inline float adagrad_step(float slope, float norm, float lr) noexcept {
  return norm == 0.0F ? 0.0F : lr * slope / std::sqrt(norm);
}

struct Adagrad {
  float initial;
  float decay;

  explicit Adagrad(Settings& settings)
      : initial(settings.at_least_zero("initial_accumulator_value")),
        decay(settings.at_least_zero("weight_decay_factor")) {}

  static Fields fields() { return {{"norm", Width::kPerValue}}; }

  void init(float* state, std::size_t dim) const noexcept { std::fill_n(state, dim, initial); }

  void update(Values w, Values norm, Gradient g, std::size_t dim, const StepArgs& args) const noexcept {
    for (std::size_t i = 0; i < dim; ++i) {
      const float slope = g[i] + decay * w[i];
      norm[i] += slope * slope;
      w[i] -= adagrad_step(slope, norm[i], args.learning_rate);
    }
  }
};

// Adagrad whose weight decay follows the time since the row's last update: nearly none for a row seen every
// step, the whole of it for one long idle (flipped: the other way round). A row's first update counts from step 0.
struct DynamicWdAdagrad {
  float initial;
  float decay;
  bool decoupled;
  bool dynamic;
  float temperature;
  bool flipped;

  explicit DynamicWdAdagrad(Settings& settings)
      : initial(settings.at_least_zero("initial_accumulator_value")),
        decay(settings.at_least_zero("weight_decay_factor")),
        decoupled(settings.flag("decouple_weight_decay")),
        dynamic(settings.flag("enable_dynamic_wd")),
        temperature(settings.above_zero("dynamic_wd_temperature")),
        flipped(settings.flag("flip_direction")) {}

  static Fields fields() { return {{"norm", Width::kPerValue}, {"last_update_step", Width::kInt64}}; }

  void init(float* state, std::size_t dim) const noexcept {
    std::fill_n(state, dim, initial);
    store_int64(state + dim, 0);
  }

  // A step before the last one (a row restored from the future) counts as no time at all.
  [[nodiscard]] float effective_decay(std::int64_t step, std::int64_t last_step) const noexcept {
    if (!dynamic) return decay;
    const double idle = std::max(0.0, static_cast<double>(step) - static_cast<double>(last_step));
    const double kept = std::exp(-idle / temperature);
    return static_cast<float>(decay * (flipped ? kept : 1.0 - kept));
  }

  void update(Values w, Values norm, Gradient g, std::size_t dim, const StepArgs& args) const noexcept {
    const float lr = args.learning_rate;
    const float wd = effective_decay(args.step, load_int64(norm + dim));
    const float coupled_wd = decoupled ? 0.0F : wd;
    const float shrink = decoupled ? lr * wd : 0.0F;
    for (std::size_t i = 0; i < dim; ++i) {
      const float slope = g[i] + coupled_wd * w[i];
      norm[i] += slope * slope;
      w[i] -= adagrad_step(slope, norm[i], lr) + shrink * w[i];
    }
    store_int64(norm + dim, args.step);
  }
};

// Adagrad with one norm for the slice, then a group lasso: the slice shrinks as a whole, down to zero.
// The usual form divides by the rate, L = lr / (beta + sqrt(s)): z = g - w/L, w = -L (1 - l2/|z|) z.
// With u = w - L g = -L z it needs no such division, and a rate of 0 is harmless.
struct GroupAdagrad {
  float beta;
  float initial;
  float l2;
  float decay;

  explicit GroupAdagrad(Settings& settings)
      : beta(settings.at_least_zero("beta")),
        initial(settings.at_least_zero("initial_accumulator_value")),
        l2(settings.at_least_zero("l2_regularization_strength")),
        decay(settings.at_least_zero("weight_decay_factor")) {}

  static Fields fields() { return {{"grad_square_sum", Width::kOne}}; }

  void init(float* state, std::size_t) const noexcept { *state = initial; }

  void update(Values w, Values square_sum, Gradient g, std::size_t dim, const StepArgs& args) const noexcept {
    float steepest = 0.0F;
    for (std::size_t i = 0; i < dim; ++i) {
      const float slope = g[i] + decay * w[i];
      steepest = std::max(steepest, slope * slope);
    }
    *square_sum += steepest;
    const float divisor = beta + std::sqrt(*square_sum);
    if (divisor == 0.0F) return;  // no gradient was ever seen

    const float rate = args.learning_rate / divisor;
    float length = 0.0F;
    for (std::size_t i = 0; i < dim; ++i) {
      w[i] -= rate * (g[i] + decay * w[i]);
      length += w[i] * w[i];
    }
    length = std::sqrt(length);
    const float scale = length <= l2 * rate ? 0.0F : 1.0F - l2 * rate / length;
    for (std::size_t i = 0; i < dim; ++i) w[i] *= scale;
  }
};

}  // namespace engine::rules
