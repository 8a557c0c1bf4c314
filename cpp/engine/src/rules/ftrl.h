// ftrl.h: follow the regularised leader. The weight is recomputed from the state at every step.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "rule.h"

namespace engine::rules {

struct FtrlState {
  // A learning rate of 0 (the start of a warm-up), or nearly 0, leaves the row as it is: these rules divide by the
  // rate, and a float would overflow.
  static constexpr float kLeastRate = 1e-30F;

  float beta;
  float initial;
  float l1;
  float l2;

  explicit FtrlState(Settings& settings)
      : beta(settings.at_least_zero("beta")),
        initial(settings.at_least_zero("initial_accumulator_value")),
        l1(settings.at_least_zero("l1_regularization_strength")),
        l2(settings.at_least_zero("l2_regularization_strength")) {}

  static Fields fields() { return {{"norm", Width::kPerValue}, {"zero", Width::kPerValue}}; }

  void init(float* state, std::size_t dim) const noexcept {
    std::fill_n(state, dim, initial);
    std::fill_n(state + dim, dim, 0.0F);
  }

  // The sum of squares with one more gradient. It stays finite: two infinite sums have no difference.
  static float next_norm(float norm, float g) noexcept {
    return std::min(norm + g * g, std::numeric_limits<float>::max());
  }
};

struct Ftrl : FtrlState {
  using FtrlState::FtrlState;

  void update(Values w, Values state, Gradient g, std::size_t dim, const StepArgs& args) const noexcept {
    const float lr = args.learning_rate;
    if (lr < kLeastRate) return;
    const float per_lr = 1.0F / lr;
    Values norm = state;
    Values zero = state + dim;
    for (std::size_t i = 0; i < dim; ++i) {
      const float before = norm[i];
      norm[i] = next_norm(before, g[i]);
      const float root = std::sqrt(norm[i]);
      const float sigma = (root - std::sqrt(before)) * per_lr;
      const float z = zero[i] + g[i] - sigma * w[i];
      zero[i] = z;
      const float divisor = root + beta + l2 * lr;
      const float weight = lr * (std::copysign(l1, z) - z) / divisor;
      // The square of a tiny gradient is 0, and so may be the divisor.
      w[i] = std::abs(z) <= l1 || divisor == 0.0F ? 0.0F : weight;
    }
  }
};

// Ftrl whose l1 term weighs the slice as a whole: all of its weights are zero together.
struct GroupFtrl : FtrlState {
  using FtrlState::FtrlState;

  void update(Values w, Values state, Gradient g, std::size_t dim, const StepArgs& args) const noexcept {
    const float lr = args.learning_rate;
    if (lr < kLeastRate) return;
    const float per_lr = 1.0F / lr;
    Values norm = state;
    Values zero = state + dim;
    float length = 0.0F;
    for (std::size_t i = 0; i < dim; ++i) {
      const float before = norm[i];
      norm[i] = next_norm(before, g[i]);
      const float root = std::sqrt(norm[i]);
      const float sigma = (root - std::sqrt(before)) * per_lr;
      zero[i] += g[i] - sigma * w[i];
      length += zero[i] * zero[i];
    }
    length = std::sqrt(length);
    const float pulled = std::isinf(length) ? -1.0F : (l1 - length) / length;
    const float scale = length <= l1 ? 0.0F : lr * pulled;
    for (std::size_t i = 0; i < dim; ++i) {
      const float divisor = beta + std::sqrt(norm[i]) + l2 * lr;
      w[i] = divisor == 0.0F ? 0.0F : scale * zero[i] / divisor;
    }
  }
};

}  // namespace engine::rules
