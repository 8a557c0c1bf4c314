// adam.h: the rules that follow running means of the gradient and of its square.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "rule.h"

namespace engine::rules {

// Adam, and with kMax AMSGrad, which divides by the largest mean square seen. The powers of the betas
// are kept per row, so the bias correction follows each row's own number of updates.
template <bool kMax>
struct AdamFamily {
  float beta1;
  float beta2;
  float decay;
  bool nesterov;
  float epsilon;

  explicit AdamFamily(Settings& settings)
      : beta1(settings.fraction("beta1")),
        beta2(settings.fraction("beta2")),
        decay(settings.at_least_zero("weight_decay_factor")),
        nesterov(settings.flag("use_nesterov")),
        epsilon(settings.above_zero("epsilon")) {}

  static Fields fields() {
    Fields fields = {{"m", Width::kPerValue}, {"v", Width::kPerValue}};
    if (kMax) fields.push_back({"vhat", Width::kPerValue});
    fields.push_back({"beta1_power", Width::kOne});
    fields.push_back({"beta2_power", Width::kOne});
    return fields;
  }

  static constexpr std::size_t kMeans = kMax ? 3 : 2;

  void init(float* state, std::size_t dim) const noexcept {
    std::fill_n(state, kMeans * dim, 0.0F);
    state[kMeans * dim] = beta1;
    state[kMeans * dim + 1] = beta2;
  }

  // The next power, cut to zero before it turns subnormal: 1 - power is the same, and subnormals are slow.
  static float next_power(float power, float beta) noexcept {
    const float next = power * beta;
    return next < std::numeric_limits<float>::min() ? 0.0F : next;
  }

  void update(Values w, Values state, Gradient g, std::size_t dim, const StepArgs& args) const noexcept {
    Values m = state;
    Values v = state + dim;
    Values vhat = state + 2 * dim;
    Values powers = state + kMeans * dim;
    const float rate = args.learning_rate * std::sqrt(1.0F - powers[1]) / (1.0F - powers[0]);
    // The numerator is m, or with Nesterov m looked at one step ahead.
    const float slope_share = nesterov ? 1.0F - beta1 : 0.0F;
    const float mean_share = nesterov ? beta1 : 1.0F;
    for (std::size_t i = 0; i < dim; ++i) {
      const float slope = g[i] + decay * w[i];
      m[i] += (slope - m[i]) * (1.0F - beta1);
      // Finite: an infinite mean would become NaN at the next step.
      v[i] += (std::min(slope * slope, std::numeric_limits<float>::max()) - v[i]) * (1.0F - beta2);
      float square = v[i];
      if constexpr (kMax) square = vhat[i] = std::max(vhat[i], v[i]);
      w[i] -= (slope_share * slope + mean_share * m[i]) * rate / (std::sqrt(square) + epsilon);
    }
    powers[0] = next_power(powers[0], beta1);
    powers[1] = next_power(powers[1], beta2);
  }
};

using Adam = AdamFamily<false>;
using Amsgrad = AdamFamily<true>;

}  // namespace engine::rules
