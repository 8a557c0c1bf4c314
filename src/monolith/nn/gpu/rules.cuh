// rules.cuh: the update rules, with the arithmetic of the host (cpp/engine/src/rules). A test compiles this text for the
// host too and compares every rule with the engine.
//
// Compiled with one RULE_<NAME>, the SETTING_<NAME> of the rule, and DEVICE, the qualifiers of functions. Each rule has
//   STATES                            state words per coordinate; word s is at state[s * apart]
//   first_state(s)                    first value of word s
//   Extra                             state per row, and numbers that all coordinates of a row share
//   first_extra, load_extra, store_extra
//   PASSES                            0 for a rule that steps each coordinate alone by step()
// A rule with PASSES runs pass 0, 1, ... over all coordinates. pass() returns a term; add() takes the terms in the order
// of the coordinates, and finish() ends the pass.

typedef long long step_t;

DEVICE void write_step(float* at, step_t step) {
  union {
    step_t step;
    float words[2];
  } both;
  both.step = step;
  at[0] = both.words[0];
  at[1] = both.words[1];
}

DEVICE step_t read_step(const float* at) {
  union {
    step_t step;
    float words[2];
  } both;
  both.words[0] = at[0];
  both.words[1] = at[1];
  return both.step;
}

#define LARGEST 3.402823466e+38f
#define LEAST_RATE 1e-30f
DEVICE float at_most_largest(float sum) { return LARGEST < sum ? LARGEST : sum; }

#if RULE_ADAM || RULE_AMSGRAD
// The powers of the betas are of the row, so the bias correction follows the updates of the row.
#define PASSES 0
struct Extra {
  float power1, power2, rate;
};
DEVICE float next_power(float power, float beta) {
  const float next = power * beta;
  return next < 1.17549435e-38f ? 0.0f : next;
}
DEVICE float first_state(unsigned) { return 0.0f; }
DEVICE void first_extra(float* at) {
  at[0] = SETTING_BETA1;
  at[1] = SETTING_BETA2;
}
DEVICE Extra load_extra(const float* at, float rate, step_t) {
  return {at[0], at[1], rate * sqrtf(1.0f - at[1]) / (1.0f - at[0])};
}
DEVICE void store_extra(float* at, const Extra& extra, step_t) {
  at[0] = next_power(extra.power1, SETTING_BETA1);
  at[1] = next_power(extra.power2, SETTING_BETA2);
}
#define SLOPE_SHARE (SETTING_USE_NESTEROV ? 1.0f - SETTING_BETA1 : 0.0f)
#define MEAN_SHARE (SETTING_USE_NESTEROV ? SETTING_BETA1 : 1.0f)
#if RULE_ADAM
#define STATES 2
#else
#define STATES 3
#endif
DEVICE void step(float& w, float* state, unsigned apart, float g, float, const Extra& extra) {
  const float slope = g + SETTING_WEIGHT_DECAY_FACTOR * w;
  float& mean = state[0];
  float& square = state[apart];
  mean += (slope - mean) * (1.0f - SETTING_BETA1);
  square += (at_most_largest(slope * slope) - square) * (1.0f - SETTING_BETA2);
#if RULE_AMSGRAD
  float& largest = state[2 * apart];
  largest = largest < square ? square : largest;
#else
  const float largest = square;
#endif
  w -= (SLOPE_SHARE * slope + MEAN_SHARE * mean) * extra.rate / (sqrtf(largest) + SETTING_EPSILON);
}

#elif RULE_DYNAMIC_WD_ADAGRAD
#define PASSES 0
#define STATES 1
struct Extra {
  float decay;
};
DEVICE float first_state(unsigned) { return SETTING_INITIAL_ACCUMULATOR_VALUE; }
DEVICE void first_extra(float* at) { write_step(at, 0); }
DEVICE Extra load_extra(const float* at, float, step_t step) {
  if (!SETTING_ENABLE_DYNAMIC_WD) return {SETTING_WEIGHT_DECAY_FACTOR};
  const double since = (double)step - (double)read_step(at);
  const double kept = exp(-(since > 0.0 ? since : 0.0) / (double)SETTING_DYNAMIC_WD_TEMPERATURE);
  return {(float)((double)SETTING_WEIGHT_DECAY_FACTOR * (SETTING_FLIP_DIRECTION ? kept : 1.0 - kept))};
}
DEVICE void store_extra(float* at, const Extra&, step_t step) { write_step(at, step); }
DEVICE void step(float& w, float* norm, unsigned, float g, float rate, const Extra& extra) {
  const float coupled = SETTING_DECOUPLE_WEIGHT_DECAY ? 0.0f : extra.decay;
  const float shrink = SETTING_DECOUPLE_WEIGHT_DECAY ? rate * extra.decay : 0.0f;
  const float slope = g + coupled * w;
  norm[0] += slope * slope;
  w -= (norm[0] == 0.0f ? 0.0f : rate * slope / sqrtf(norm[0])) + shrink * w;
}

#elif RULE_BATCH_SOFTMAX
#define PASSES 0
#define STATES 0
struct Extra {
  float gap;
};
DEVICE float first_state(unsigned) { return 0.0f; }
DEVICE void first_extra(float* at) { write_step(at, 0); }
DEVICE Extra load_extra(const float* at, float, step_t step) { return {(float)(step - read_step(at))}; }
DEVICE void store_extra(float* at, const Extra&, step_t step) { write_step(at, step); }
DEVICE void step(float& w, float*, unsigned, float, float rate, const Extra& extra) {
  w = (1.0f - rate) * w + rate * extra.gap;
}

#elif RULE_GROUP_ADAGRAD
// One norm for the row, then a group lasso: the row shrinks as a whole, down to zero.
#define PASSES 3
#define STATES 0
struct Extra {
  float square_sum, sum, rate, scale;
};
DEVICE float first_state(unsigned) { return 0.0f; }
DEVICE void first_extra(float* at) { at[0] = SETTING_INITIAL_ACCUMULATOR_VALUE; }
DEVICE Extra load_extra(const float* at, float, step_t) { return {at[0], 0.0f, 0.0f, 1.0f}; }
DEVICE void store_extra(float* at, const Extra& extra, step_t) { at[0] = extra.square_sum; }
DEVICE float pass(int number, float& w, float*, unsigned, float g, float, const Extra& extra) {
  const float slope = g + SETTING_WEIGHT_DECAY_FACTOR * w;
  if (number == 0) return slope * slope;
  if (number == 1) {
    w -= extra.rate * slope;
    return w * w;
  }
  w *= extra.scale;
  return 0.0f;
}
DEVICE void add(int number, Extra& extra, float term) {
  extra.sum = number == 0 ? (extra.sum < term ? term : extra.sum) : extra.sum + term;
}
DEVICE void finish(int number, Extra& extra, float rate) {
  if (number == 0) {
    extra.square_sum += extra.sum;
    const float divisor = SETTING_BETA + sqrtf(extra.square_sum);
    extra.rate = divisor == 0.0f ? 0.0f : rate / divisor;
  } else if (number == 1 && extra.rate != 0.0f) {
    const float length = sqrtf(extra.sum);
    const float least = SETTING_L2_REGULARIZATION_STRENGTH * extra.rate;
    extra.scale = length <= least ? 0.0f : 1.0f - least / length;
  }
  extra.sum = 0.0f;
}

#elif RULE_GROUP_FTRL
#define PASSES 2
#define STATES 2
struct Extra {
  float sum, scale;
};
DEVICE float first_state(unsigned word) { return word == 0 ? SETTING_INITIAL_ACCUMULATOR_VALUE : 0.0f; }
DEVICE void first_extra(float*) {}
DEVICE Extra load_extra(const float*, float, step_t) { return {0.0f, 0.0f}; }
DEVICE void store_extra(float*, const Extra&, step_t) {}
DEVICE float pass(int number, float& w, float* state, unsigned apart, float g, float rate, const Extra& extra) {
  if (rate < LEAST_RATE) return 0.0f;
  float& norm = state[0];
  float& zero = state[apart];
  if (number == 0) {
    const float before = norm;
    norm = at_most_largest(before + g * g);
    const float root = sqrtf(norm);
    const float sigma = (root - sqrtf(before)) * (1.0f / rate);
    zero += g - sigma * w;
    return zero * zero;
  }
  const float divisor = SETTING_BETA + sqrtf(norm) + SETTING_L2_REGULARIZATION_STRENGTH * rate;
  w = divisor == 0.0f ? 0.0f : extra.scale * zero / divisor;
  return 0.0f;
}
DEVICE void add(int, Extra& extra, float term) { extra.sum += term; }
DEVICE void finish(int number, Extra& extra, float rate) {
  if (number != 0) return;
  const float length = sqrtf(extra.sum);
  const float l1 = SETTING_L1_REGULARIZATION_STRENGTH;
  const float pulled = length > LARGEST ? -1.0f : (l1 - length) / length;
  extra.scale = length <= l1 ? 0.0f : rate * pulled;
}

#else  // rules without state per row
#define PASSES 0
struct Extra {};
DEVICE void first_extra(float*) {}
DEVICE Extra load_extra(const float*, float, step_t) { return {}; }
DEVICE void store_extra(float*, const Extra&, step_t) {}
#if RULE_SGD
#define STATES 0
DEVICE float first_state(unsigned) { return 0.0f; }
DEVICE void step(float& w, float*, unsigned, float g, float rate, const Extra&) { w -= rate * g; }
#elif RULE_ADAGRAD
#define STATES 1
DEVICE float first_state(unsigned) { return SETTING_INITIAL_ACCUMULATOR_VALUE; }
DEVICE void step(float& w, float* norm, unsigned, float g, float rate, const Extra&) {
  const float slope = g + SETTING_WEIGHT_DECAY_FACTOR * w;
  norm[0] += slope * slope;
  w -= norm[0] == 0.0f ? 0.0f : rate * slope / sqrtf(norm[0]);
}
#elif RULE_ADADELTA
#define STATES 2
DEVICE float first_state(unsigned) { return 0.0f; }
DEVICE void step(float& w, float* state, unsigned apart, float g, float rate, const Extra&) {
  const float share = 1.0f - SETTING_AVERAGING_RATIO;
  const float slope = g + SETTING_WEIGHT_DECAY_FACTOR * w;
  float& squares = state[0];
  float& updates = state[apart];
  squares = SETTING_AVERAGING_RATIO * squares + share * slope * slope;
  const float delta = sqrtf(updates + SETTING_EPSILON) / sqrtf(squares + SETTING_EPSILON) * slope;
  w -= rate * delta;
  updates = SETTING_AVERAGING_RATIO * updates + share * delta * delta;
}
#elif RULE_MOMENTUM
#define STATES 1
DEVICE float first_state(unsigned) { return 0.0f; }
DEVICE void step(float& w, float* state, unsigned, float g, float rate, const Extra&) {
  const float ahead = SETTING_USE_NESTEROV ? SETTING_MOMENTUM : 0.0f;
  const float before = state[0];
  state[0] = SETTING_MOMENTUM * before - rate * (g + SETTING_WEIGHT_DECAY_FACTOR * w);
  w = w - ahead * before + (1.0f + ahead) * state[0];
}
#elif RULE_MOVING_AVERAGE
#define STATES 0
DEVICE float first_state(unsigned) { return 0.0f; }
DEVICE void step(float& w, float*, unsigned, float g, float, const Extra&) {
  w = SETTING_MOMENTUM * w + (1.0f - SETTING_MOMENTUM) * g;
}
#elif RULE_RMSPROP || RULE_RMSPROPV2
// In double, as on the host.
#define STATES 1
DEVICE float first_state(unsigned) { return 0.0f; }
DEVICE void step(float& w, float* norm, unsigned, float g, float rate, const Extra&) {
  const double momentum = SETTING_MOMENTUM;
#if RULE_RMSPROP
  const double share = 1.0 - momentum;
#else
  const double share = 1.0;
#endif
  const double slope = g + (double)SETTING_WEIGHT_DECAY_FACTOR * w;
  const double square = momentum * norm[0] + share * slope * slope;
  norm[0] = (float)square;
  w = (float)(w - rate / (sqrt(square) + 1.0) * slope);
}
#elif RULE_FTRL
// A rate of nearly 0 leaves the row unchanged: the rule divides by the rate.
#define STATES 2
DEVICE float first_state(unsigned word) { return word == 0 ? SETTING_INITIAL_ACCUMULATOR_VALUE : 0.0f; }
DEVICE void step(float& w, float* state, unsigned apart, float g, float rate, const Extra&) {
  if (rate < LEAST_RATE) return;
  float& norm = state[0];
  float& zero = state[apart];
  const float before = norm;
  norm = at_most_largest(before + g * g);
  const float root = sqrtf(norm);
  const float sigma = (root - sqrtf(before)) * (1.0f / rate);
  const float z = zero + g - sigma * w;
  zero = z;
  const float l1 = SETTING_L1_REGULARIZATION_STRENGTH;
  const float divisor = root + SETTING_BETA + SETTING_L2_REGULARIZATION_STRENGTH * rate;
  const float weight = rate * (copysignf(l1, z) - z) / divisor;
  w = fabsf(z) <= l1 || divisor == 0.0f ? 0.0f : weight;
}
#endif
#endif
