// optimizer_test.cc: the reference's numbers for every update rule, the wrappers, and refused settings.
#include "engine/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/error.h"
#include "engine/half.h"
#include "optimizer_row.h"

namespace engine {
namespace {

using namespace optimizer_row;

// Same gradient at every step, from zero.
void expect_steps(const SliceConfig& config, float lr, const Floats& grad, const std::vector<Floats>& expected,
                  float tolerance = 1e-6F) {
  Row row(config);
  for (const Floats& values : expected) expect_near(row.step(grad, lr), values, tolerance);
}

// --- vectors of the reference (spec section 2 and 7.1, in its order) ---

TEST(OptimizerVectors, Sgd) { expect_steps(slice(1, part("sgd")), 0.1F, {1}, {{-0.1F}}); }

TEST(OptimizerVectors, Adagrad) {
  expect_steps(slice(2, part("adagrad", {{"initial_accumulator_value", 1}})), 0.1F, {1, 2},
               {{-0.07071067F, -0.08944272F}}, 2e-8F);
  Row row(slice(2, part("adagrad", {{"initial_accumulator_value", 1}, {"weight_decay_factor", 0.1}})));
  row.step({1, 2}, 0.1F);
  expect_near(row.step({1, 2}, 0.1F), {-0.128173F, -0.155943F}, 1e-6F);
  expect_steps(slice(1, part("adagrad")), 1, {1}, {{-0.95346254F}, {-1.643528F}}, 5e-7F);
}

TEST(OptimizerVectors, Adadelta) {
  expect_steps(slice(1, part("adadelta")), 0.01F, {10}, {{-0.0031607F}, {-0.0064035F}}, 1e-7F);
  expect_steps(slice(1, part("adadelta")), 0.01F, {1}, {{-0.0030151F}, {-0.0061047F}}, 1e-7F);
}

TEST(OptimizerVectors, AdamAndAmsgrad) {
  for (const char* kind : {"adam", "amsgrad"}) {
    expect_steps(slice(1, part(kind)), 0.01F, {10}, {{-0.00990099F}, {-0.01983060F}}, 2e-8F);
    expect_steps(slice(1, part(kind)), 0.01F, {1}, {{-0.00909091F}, {-0.01842895F}}, 2e-8F);
  }
  expect_steps(slice(1, part("adam", {{"use_nesterov", 1}})), 0.01F, {10}, {{-0.018811881F}, {-0.032974642F}}, 2e-8F);
}

TEST(OptimizerVectors, Momentum) {
  expect_steps(slice(1, part("momentum")), 0.01F, {10}, {{-0.1F}, {-0.29F}});
  expect_steps(slice(1, part("momentum")), 0.01F, {1}, {{-0.01F}, {-0.029F}});
  expect_steps(slice(1, part("momentum", {{"use_nesterov", 1}})), 0.01F, {10}, {{-0.19F}, {-0.461F}});
}

TEST(OptimizerVectors, MovingAverage) {
  expect_steps(slice(1, part("moving_average")), 0, {10}, {{1}, {1.9F}});
  expect_steps(slice(1, part("moving_average")), 0, {1}, {{0.1F}, {0.19F}});
}

TEST(OptimizerVectors, Rmsprop) {
  expect_steps(slice(1, part("rmsprop")), 0.01F, {10}, {{-0.024025F}, {-0.042686F}});
  expect_steps(slice(1, part("rmspropv2")), 0.01F, {10}, {{-0.0090909F}, {-0.0158549F}}, 1e-7F);
  expect_steps(slice(1, part("rmspropv2")), 0.01F, {1}, {{-0.005F}, {-0.0092045F}}, 1e-7F);
}

TEST(OptimizerVectors, Ftrl) {
  expect_steps(slice(1, part("ftrl")), 0.01F, {10}, {{-0.009995F}, {-0.0170643F}}, 1e-7F);
  expect_steps(slice(1, part("ftrl")), 0.01F, {1}, {{-0.00953463F}, {-0.0164353F}}, 1e-7F);
  const auto regularised =
      part("ftrl", {{"beta", 1}, {"l1_regularization_strength", 0.5}, {"l2_regularization_strength", 0.1}});
  expect_steps(slice(2, regularised), 0.1F, {1, -1}, {{-0.0242859F, 0.0242859F}}, 1e-7F);
}

TEST(OptimizerVectors, GroupAdagrad) {
  const auto config = [](std::uint32_t dim, double l2) {
    return slice(dim, part("group_adagrad",
                           {{"beta", 1}, {"initial_accumulator_value", 0}, {"l2_regularization_strength", l2}}));
  };
  expect_steps(config(1, 1), 0.01F, {10}, {{-0.008182F}, {-0.014125F}});
  Row row(config(2, 0.5));
  expect_near(row.step({10, 1}, 0.01F), {-0.008639F, -0.000864F}, 1e-6F);
  expect_near(row.step({1, 5}, 0.01F), {-0.009096F, -0.004778F}, 1e-6F);
  expect_steps(config(2, 0), 0.01F, {10, 1}, {{-0.009091F, -0.000909F}});
  expect_steps(config(2, 1000), 0.01F, {10, 1}, {{0, 0}}, 0);
}

TEST(OptimizerVectors, BatchSoftmax) {
  Row row(slice(1, part("batch_softmax")));
  expect_near(row.step({5}, 0.1F, 1), {0.1F}, 1e-7F);
  expect_near(row.step({-5}, 0.1F, 3), {0.29F}, 1e-7F);
  expect_near(row.step({0}, 0.1F, 10), {0.961F}, 1e-6F);
  EXPECT_EQ(row.int64_state("global_step"), 10);
}

TEST(OptimizerVectors, BatchSoftmaxLearnsTheFrequencyOfAnId) {
  for (const int interval : {5, 10}) {
    Row row(slice(1, part("batch_softmax")));
    for (int step = 0; step < 1000; step += interval) row.step({0}, 0.1F, step);
    EXPECT_NEAR(1.0F / row.values()[0], 1.0F / static_cast<float>(interval), 0.01F);
  }
}

TEST(OptimizerVectors, DelayCompensation) {
  SliceConfig config = slice(1, part("adadelta"));
  config.delay_lambda = 0.1F;
  const Floats then = {0.1F};
  const Floats zero = {0};
  Row steep(config);
  expect_near(steep.step({10}, 0.01F, 1, &then), {-0.0031603F}, 1e-7F);
  EXPECT_NEAR(steep.state("accum"), 8.1F, 1e-5F);
  expect_near(steep.step({10}, 0.01F, 2, &zero), {-0.0065548F}, 1e-7F);
  Row flat(config);
  expect_near(flat.step({1}, 0.01F, 1, &then), {-0.00301233F}, 1e-8F);
  EXPECT_NEAR(flat.state("accum"), 0.09801F, 1e-7F);
  expect_near(flat.step({1}, 0.01F, 2, &zero), {-0.00611400F}, 1e-8F);
}

TEST(OptimizerVectors, State) {
  const auto after_one = [](const std::string& kind, float grad, const std::string& name) {
    Row row(slice(1, part(kind)));
    row.step({grad}, 0.01F);
    return row.state(name);
  };
  EXPECT_NEAR(after_one("adadelta", 10, "accum"), 10, 1e-5);
  EXPECT_NEAR(after_one("adadelta", 1, "accum"), 0.1, 1e-7);
  EXPECT_NEAR(after_one("adam", 10, "m"), 1, 1e-6);
  EXPECT_NEAR(after_one("adam", 1, "m"), 0.1, 1e-7);
  EXPECT_NEAR(after_one("adam", 1, "beta1_power"), 0.81, 1e-7);
  EXPECT_NEAR(after_one("amsgrad", 1, "beta2_power"), 0.9801, 1e-7);
  EXPECT_NEAR(after_one("momentum", 10, "n"), -0.1, 1e-7);
  EXPECT_NEAR(after_one("momentum", 1, "n"), -0.01, 1e-8);
  EXPECT_NEAR(after_one("rmsprop", 10, "n"), 10, 1e-5);
  EXPECT_NEAR(after_one("rmspropv2", 10, "n"), 100, 1e-5);
  EXPECT_NEAR(after_one("rmspropv2", 1, "n"), 1, 1e-6);
  EXPECT_NEAR(after_one("ftrl", 10, "norm"), 100.1, 1e-4);
  EXPECT_NEAR(after_one("ftrl", 1, "norm"), 1.1, 1e-6);
}

// --- rules the reference never finished ---

TEST(DynamicWd, WithoutItsExtrasItIsAdagrad) {
  const std::map<std::string, double> decay = {{"weight_decay_factor", 0.1}};
  Row plain(slice(3, part("adagrad", decay)), {1, -2, 3});
  Row dynamic(slice(3, part("dynamic_wd_adagrad", decay)), {1, -2, 3});
  for (int step = 1; step < 4; ++step) {
    EXPECT_TRUE(same_bits(plain.step({1, 2, -3}, 0.1F, step), dynamic.step({1, 2, -3}, 0.1F, step)));
  }
  EXPECT_EQ(dynamic.int64_state("last_update_step"), 3);
}

TEST(DynamicWd, DecayGrowsWithIdleTimeAndFlipped) {
  for (const bool flipped : {false, true}) {
    Row row(slice(1, part("dynamic_wd_adagrad", {{"weight_decay_factor", 0.5},
                                                 {"decouple_weight_decay", 1},
                                                 {"enable_dynamic_wd", 1},
                                                 {"dynamic_wd_temperature", 4},
                                                 {"flip_direction", flipped ? 1.0 : 0.0}})),
            {1});
    double expected = 1;
    std::int64_t last = 0;
    for (const std::int64_t step : {2, 3, 20}) {
      const double kept = std::exp(-static_cast<double>(step - last) / 4);
      expected -= 0.1 * 0.5 * (flipped ? kept : 1 - kept) * expected;
      expect_near(row.step({0}, 0.1F, step), {static_cast<float>(expected)}, 1e-6F);
      last = step;
    }
  }
}

TEST(GroupFtrl, OneValueIsFtrl) {
  const std::map<std::string, double> settings = {{"beta", 1},
                                                  {"initial_accumulator_value", 0.1},
                                                  {"l1_regularization_strength", 0.5},
                                                  {"l2_regularization_strength", 0.1}};
  Row one(slice(1, part("ftrl", settings)));
  Row group(slice(1, part("group_ftrl", settings)));
  for (const float grad : {1.0F, -0.3F, 2.0F, -4.0F})
    expect_near(group.step({grad}, 0.1F), one.step({grad}, 0.1F), 1e-7F);
}

TEST(GroupFtrl, AWeakGroupIsZeroAsAWhole) {
  Row row(slice(3, part("group_ftrl", {{"l1_regularization_strength", 5}})), {1, 1, 1});
  EXPECT_EQ(row.step({0.1F, 0.2F, 0}, 1), (Floats{0, 0, 0}));
}

TEST(OptimizerSlices, EachHasItsOwnRateAndState) {
  const auto first = make_optimizer(slice(1, part("adagrad", {{"initial_accumulator_value", 1}})));
  const auto second = make_optimizer(slice(2, part("adagrad", {{"initial_accumulator_value", 2}})));
  Floats row(6);
  const Floats grad = {1, 2, 3};
  const RowWords rows{.values = &row[0], .state = &row[3]};
  const float* grads = grad.data();
  first->init(&row[3]);
  second->init(&row[4]);
  const auto step_both = [&] {
    first->step({1, 1, &rows, &grads, nullptr, nullptr, 0, 0}, {1.0F, 1, 0});
    second->step({1, 1, &rows, &grads, nullptr, nullptr, 1, 1}, {2.0F, 1, 0});
    return Floats(row.begin(), row.begin() + 3);
  };
  expect_near(step_both(), {-0.70710677F, -1.6329931F, -1.8090681F}, 2e-7F);
  std::fill_n(row.begin(), 3, 0.0F);
  expect_near(step_both(), {-0.57735026F, -1.264911F, -1.3416407F}, 2e-7F);
}

TEST(Adam, StaysExactAfterManySteps) {
  Row row(slice(1, part("adam")));
  for (int step = 0; step < 20000; ++step) row.step({0.0F}, 0.1F);
  EXPECT_EQ(row.state("beta1_power"), 0.0F);
  EXPECT_EQ(row.state("beta2_power"), 0.0F);
  EXPECT_TRUE(std::isfinite(row.step({1}, 0.1F)[0]));
}

// --- wrappers ---

TEST(DelayCompensation, WithoutLatestValuesThereIsNoDelay) {
  SliceConfig config = slice(3, part("adagrad"));
  Row plain(config, {1, 2, 3});
  config.delay_lambda = 0.5F;
  Row wrapped(config, {1, 2, 3});
  EXPECT_TRUE(same_bits(plain.step({1, -1, 2}, 0.1F), wrapped.step({1, -1, 2}, 0.1F)));
}

TEST(DelayCompensation, AGradientWhoseSquareOverflowsIsNotCorrected) {
  SliceConfig config = slice(2, part("sgd"));
  Row plain(config, {0, 1});
  config.delay_lambda = 0.5F;
  Row wrapped(config, {0, 1});
  const Floats then = {0, 3};
  EXPECT_TRUE(same_bits(plain.step({1e25F, -1e25F}, 0.1F), wrapped.step({1e25F, -1e25F}, 0.1F, 1, &then)));
}

TEST(StochasticRounding, KeepsTheMeanAndIsAFunctionOfIdAndStep) {
  SliceConfig config = slice(1, part("sgd"));
  config.stochastic_rounding = true;
  constexpr int kIds = 20000;
  // In turn: a normal half, a negative one, one just above a power of two, a subnormal one.
  for (const float value : {0.1F, -3.3337F, 1.0001F, 1.2345e-7F}) {
    const float low = round_to_half(value, 0.9999999F);
    const float high = round_to_half(value, 0.0F);
    ASSERT_NE(low, high);
    double sum = 0;
    for (int id = 0; id < kIds; ++id) {
      Row row(config, {value});
      row.id = id;
      const float rounded = row.step({0}, 0.1F)[0];
      EXPECT_TRUE(rounded == low || rounded == high);
      sum += rounded;
      row.words()[0] = value;
      EXPECT_EQ(row.step({0}, 0.1F)[0], rounded);
    }
    const double up = (value - low) / (static_cast<double>(high) - low);
    const double sigma = std::abs(high - low) * std::sqrt(up * (1 - up) / kIds);
    EXPECT_NEAR(sum / kIds, value, 4 * sigma);
  }
}

TEST(StochasticRounding, DrawsAnewForEachStepSeedAndCoordinate) {
  SliceConfig config = slice(64, part("sgd"));
  config.stochastic_rounding = true;
  const auto draw = [&](std::int64_t step, std::uint64_t seed, std::int64_t id) {
    Row row(config, Floats(64, 0.1F));
    row.seed = seed;
    row.id = id;
    return row.step(Floats(64, 0.0F), 0.1F, step);
  };
  const Floats base = draw(1, 2, 3);
  EXPECT_TRUE(same_bits(draw(1, 2, 3), base));
  EXPECT_FALSE(same_bits(draw(2, 2, 3), base));
  EXPECT_FALSE(same_bits(draw(1, 3, 3), base));
  EXPECT_FALSE(same_bits(draw(1, 2, 4), base));
  EXPECT_NE(*std::min_element(base.begin(), base.end()), *std::max_element(base.begin(), base.end()));
}

TEST(StochasticRounding, KeepsWhatHalfHoldsAndClampsTheRest) {
  SliceConfig config = slice(8, part("sgd"));
  config.stochastic_rounding = true;
  const float infinity = std::numeric_limits<float>::infinity();
  const Floats start = {0.5F, -65504, 0x1p-24F, 0, 1e6F, -infinity, 65505, std::nanf("")};
  for (std::int64_t id = 0; id < 100; ++id) {
    Row row(config, start);
    row.id = id;
    const Floats values = row.step(Floats(8, 0.0F), 0.1F);
    EXPECT_TRUE(same_bits({values.begin(), values.begin() + 7}, {0.5F, -65504, 0x1p-24F, 0, 65504, -65504, 65504}));
    EXPECT_TRUE(std::isnan(values[7]));
  }
}

// --- configs that are refused ---

std::string refusal(const SliceConfig& config) {
  try {
    make_optimizer(config);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(OptimizerConfig, TheErrorNamesWhatIsWrong) {
  EXPECT_EQ(refusal(slice(4, {"adamw", {}})), "unknown optimizer 'adamw'");
  EXPECT_EQ(refusal(slice(4, {"moving_average", {}})), "moving_average: setting 'momentum' is missing");
  EXPECT_EQ(refusal(slice(4, part("sgd", {{"learning_rate", 1}}))), "sgd: setting 'learning_rate' is unknown");
  EXPECT_EQ(refusal(slice(4, part("adam", {{"beta1", 1}}))), "adam: setting 'beta1' must be in [0, 1)");
  EXPECT_EQ(refusal(slice(4, part("adam", {{"use_nesterov", 0.5}}))), "adam: setting 'use_nesterov' must be 0 or 1");
  EXPECT_EQ(refusal(slice(4, part("ftrl", {{"beta", -1}}))), "ftrl: setting 'beta' must be 0 or more");
  EXPECT_EQ(refusal(slice(4, part("ftrl", {{"beta", std::nan("")}}))), "ftrl: setting 'beta' must be finite");
  EXPECT_EQ(refusal(slice(2, part("batch_softmax"))), "batch_softmax: dim must be 1, not 2");
  EXPECT_EQ(refusal(slice(0, part("sgd"))), "sgd: a slice's dim must be 1 or more");
  SliceConfig delayed = slice(4, part("sgd"));
  delayed.delay_lambda = -1;
  EXPECT_EQ(refusal(delayed), "sgd: delay_lambda must be 0 or more and finite");
  EXPECT_EQ(refusal(slice(4, part("sgd"))), "accepted");
}

}  // namespace
}  // namespace engine
