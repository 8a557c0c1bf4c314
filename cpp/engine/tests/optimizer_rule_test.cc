// optimizer_rule_test.cc: properties of every update rule: its double-precision twin, its bits, its batches.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include "engine/hash.h"
#include "engine/optimizer.h"
#include "optimizer_row.h"

namespace engine {
namespace {

using namespace optimizer_row;
using Doubles = std::vector<double>;

// --- every rule against a twin written in double ---

struct Twin {
  SliceConfig config;
  Doubles w;
  std::map<std::string, Doubles> state;

  double at(const std::string& name) const { return config.optimizer.settings.at(name); }
  Doubles& of(const std::string& name) { return state[name]; }
};

void twin_step(Twin& t, const Floats& grad, double lr, double step) {
  const std::string kind = t.config.optimizer.kind;
  const std::size_t dim = t.w.size();
  const auto has = [&](const char* name) { return t.config.optimizer.settings.contains(name); };
  Doubles g(grad.begin(), grad.end());
  double wd = has("weight_decay_factor") ? t.at("weight_decay_factor") : 0;
  if (kind == "dynamic_wd_adagrad") {
    wd *= 1 - std::exp(-(step - t.of("last_update_step")[0]) / t.at("dynamic_wd_temperature"));
    t.of("last_update_step")[0] = step;
  }
  for (std::size_t i = 0; i < dim; ++i) g[i] += wd * t.w[i];

  if (kind == "group_adagrad") {
    double steepest = 0, length = 0;
    for (const double value : g) steepest = std::max(steepest, value * value);
    t.of("grad_square_sum")[0] += steepest;
    const double rate = lr / (t.at("beta") + std::sqrt(t.of("grad_square_sum")[0]));
    Doubles z(dim);
    for (std::size_t i = 0; i < dim; ++i) z[i] = g[i] - t.w[i] / rate, length += z[i] * z[i];
    length = std::sqrt(length);
    const double l2 = t.at("l2_regularization_strength");
    for (std::size_t i = 0; i < dim; ++i) t.w[i] = length < l2 ? 0 : -rate * (length - l2) / length * z[i];
    return;
  }

  double group = 0;
  for (std::size_t i = 0; i < dim; ++i) {
    double& w = t.w[i];
    if (kind == "sgd") w -= lr * g[i];
    if (kind == "moving_average") w = t.at("momentum") * w + (1 - t.at("momentum")) * g[i];
    if (kind == "adagrad" || kind == "dynamic_wd_adagrad") {
      t.of("norm")[i] += g[i] * g[i];
      w -= lr * g[i] / std::sqrt(t.of("norm")[i]);
    }
    if (kind == "adadelta") {
      double &a = t.of("accum")[i], &u = t.of("accum_update")[i];
      a = t.at("averaging_ratio") * a + (1 - t.at("averaging_ratio")) * g[i] * g[i];
      const double delta = std::sqrt(u + t.at("epsilon")) / std::sqrt(a + t.at("epsilon")) * g[i];
      w -= lr * delta;
      u = t.at("averaging_ratio") * u + (1 - t.at("averaging_ratio")) * delta * delta;
    }
    if (kind == "adam" || kind == "amsgrad") {
      const double b1 = t.at("beta1"), b2 = t.at("beta2");
      double &m = t.of("m")[i], &v = t.of("v")[i];
      m = b1 * m + (1 - b1) * g[i];
      v = b2 * v + (1 - b2) * g[i] * g[i];
      double square = v;
      if (kind == "amsgrad") square = t.of("vhat")[i] = std::max(t.of("vhat")[i], v);
      const double rate = lr * std::sqrt(1 - t.of("beta2_power")[0]) / (1 - t.of("beta1_power")[0]);
      const double numerator = t.at("use_nesterov") == 1 ? g[i] * (1 - b1) + b1 * m : m;
      w -= numerator * rate / (std::sqrt(square) + t.at("epsilon"));
    }
    if (kind == "momentum") {
      const double mu = t.at("momentum"), before = t.of("n")[i];
      const double n = t.of("n")[i] = mu * before - lr * g[i];
      w += t.at("use_nesterov") == 1 ? (1 + mu) * n - mu * before : n;
    }
    if (kind == "rmsprop" || kind == "rmspropv2") {
      const double mu = t.at("momentum");
      double& n = t.of("n")[i];
      n = mu * n + (kind == "rmsprop" ? 1 - mu : 1) * g[i] * g[i];
      w -= lr / (std::sqrt(n) + 1) * g[i];
    }
    if (kind == "ftrl" || kind == "group_ftrl") {
      double &n = t.of("norm")[i], &z = t.of("zero")[i];
      z += g[i] - (std::sqrt(n + g[i] * g[i]) - std::sqrt(n)) / lr * w;
      n += g[i] * g[i];
      group += z * z;
      const double l1 = t.at("l1_regularization_strength");
      w = std::abs(z) <= l1
              ? 0
              : lr * ((z > 0 ? l1 : -l1) - z) / (std::sqrt(n) + t.at("beta") + t.at("l2_regularization_strength") * lr);
    }
    if (kind == "batch_softmax") {
      w = (1 - lr) * w + lr * (step - t.of("global_step")[0]);
      t.of("global_step")[0] = step;
    }
  }
  if (kind == "group_ftrl") {
    group = std::sqrt(group);
    const double l1 = t.at("l1_regularization_strength"), l2 = t.at("l2_regularization_strength");
    for (std::size_t i = 0; i < dim; ++i) {
      const double share = lr * ((l1 - group) / group) / (t.at("beta") + std::sqrt(t.of("norm")[i]) + l2 * lr);
      t.w[i] = group < l1 ? 0 : t.of("zero")[i] * share;
    }
  }
  if (kind == "adam" || kind == "amsgrad") {
    t.of("beta1_power")[0] *= t.at("beta1");
    t.of("beta2_power")[0] *= t.at("beta2");
  }
}

class EveryRule : public testing::TestWithParam<std::string> {
 protected:
  static std::uint32_t dim_for(const std::string& kind, std::uint32_t dim) { return kind == "batch_softmax" ? 1 : dim; }
};

INSTANTIATE_TEST_SUITE_P(Optimizer, EveryRule, testing::ValuesIn(kKinds), [](const auto& kind) { return kind.param; });

TEST_P(EveryRule, AgreesWithItsDoublePrecisionTwin) {
  const SliceConfig config = lively(GetParam(), dim_for(GetParam(), 17));
  const Floats start = random_floats(config.dim, 5);
  Row row(config, start);
  Twin twin{config, Doubles(start.begin(), start.end()), {}};
  for (const StateField& field : row.optimizer().state_fields()) {
    twin.of(field.name).assign(field.is_int64 ? 1 : field.words, field.is_int64 ? 0 : row.state(field.name));
  }
  for (int step = 1; step <= 20; ++step) {
    const Floats grad = random_floats(config.dim, 100 + static_cast<std::uint64_t>(step));
    const Floats values = row.step(grad, 0.05F, 3 * step);
    twin_step(twin, grad, 0.05F, 3 * step);
    for (std::size_t i = 0; i < config.dim; ++i) {
      EXPECT_NEAR(values[i], twin.w[i], 1e-5 * std::max(1.0, std::abs(twin.w[i]))) << "step " << step << " at " << i;
    }
  }
}

TEST_P(EveryRule, NamesItsWholeStateWithoutGaps) {
  Row row(lively(GetParam(), dim_for(GetParam(), 5)));
  std::size_t words = 0;
  for (const StateField& field : row.optimizer().state_fields()) {
    EXPECT_EQ(field.offset, words);
    words += field.words;
  }
  EXPECT_EQ(words, row.optimizer().state_words());
}

TEST_P(EveryRule, ACopiedRowGoesOnAsTheOriginal) {
  const SliceConfig config = lively(GetParam(), dim_for(GetParam(), 7));
  Row row(config, random_floats(config.dim, 1));
  row.step(random_floats(config.dim, 2), 0.1F, 4);
  Row copy(config);
  copy.words() = row.words();
  const Floats grad = random_floats(config.dim, 3);
  row.step(grad, 0.1F, 9);
  copy.step(grad, 0.1F, 9);
  EXPECT_TRUE(same_bits(row.words(), copy.words()));
}

TEST_P(EveryRule, AZeroGradientOnAFreshRowGivesFiniteValues) {
  SliceConfig config = slice(dim_for(GetParam(), 5), part(GetParam()));
  for (const char* name : {"initial_accumulator_value", "beta"}) {
    if (config.optimizer.settings.contains(name)) config.optimizer.settings[name] = 0;
  }
  for (const float lr : {0.0F, 0.1F}) {
    Row row(config);
    for (const float value : row.step(Floats(config.dim, 0.0F), lr, 0)) EXPECT_EQ(value, 0.0F);
  }
}

// A float holds these gradients, but not the square of the first ones, or only as 0.
TEST_P(EveryRule, GradientsWithoutASquareGiveFiniteValues) {
  for (const double initial : {0.0, 0.1}) {
    SliceConfig config = slice(dim_for(GetParam(), 5), part(GetParam()));
    if (config.optimizer.settings.contains("initial_accumulator_value")) {
      config.optimizer.settings["initial_accumulator_value"] = initial;
    }
    for (const float size : {1e-40F, 1e-23F, 1e20F, 1e25F}) {
      for (const float start : {0.0F, 0.5F}) {
        Row row(config, Floats(config.dim, start));
        for (const float grad : {1.0F * size, -1.0F * size, 0.25F, size, 0.5F}) {
          for (const float value : row.step(Floats(config.dim, grad), 0.01F, 1)) {
            ASSERT_TRUE(std::isfinite(value)) << grad << " of size " << size << ", " << initial;
          }
        }
      }
    }
  }
}

TEST_P(EveryRule, TinyLearningRatesGiveFiniteValues) {
  const SliceConfig config = slice(dim_for(GetParam(), 5), part(GetParam()));
  for (const float lr : {1e-29F, 1e-33F, 1e-38F, 1e-39F, 1e-45F}) {
    Row row(config);
    row.step(Floats(config.dim, 1.0F), 0.01F, 1);
    for (const float grad : {1.0F, 0.0F, 100.0F}) {
      for (const float value : row.step(Floats(config.dim, grad), lr, 2)) ASSERT_TRUE(std::isfinite(value)) << lr;
    }
  }
}

TEST_P(EveryRule, ALearningRateOfZeroKeepsTheWeights) {
  if (GetParam() == "moving_average" || GetParam() == "momentum") GTEST_SKIP() << "moves without a rate";
  const SliceConfig config = slice(dim_for(GetParam(), 5), part(GetParam()));
  const Floats start = random_floats(config.dim, 1);
  Row row(config, start);
  EXPECT_TRUE(same_bits(row.step(random_floats(config.dim, 2), 0, 1), start));
}

// A result may depend neither on the dim, which picks vector or scalar code, nor on the alignment.
TEST_P(EveryRule, EachCoordinateIsComputedAsIfAlone) {
  if (GetParam().starts_with("group_") || GetParam() == "batch_softmax") GTEST_SKIP() << "not coordinate-wise";
  for (const std::uint32_t dim : {1U, 2U, 3U, 4U, 5U, 7U, 8U, 16U, 17U, 32U, 33U, 64U}) {
    const Floats start = random_floats(dim, dim);
    Row row(lively(GetParam(), dim), start);
    std::vector<Row> alone;
    for (std::size_t i = 0; i < dim; ++i) alone.emplace_back(lively(GetParam(), 1), Floats{start[i]});
    for (std::uint32_t step = 1; step < 4; ++step) {
      const Floats grad = random_floats(dim, 50 + step);
      row.step(grad, 0.1F, 2 * step);
      for (std::size_t i = 0; i < dim; ++i) {
        EXPECT_TRUE(same_bits(alone[i].step({grad[i]}, 0.1F, 2 * step), {row.values()[i]})) << dim << " at " << i;
      }
    }
  }
}

// The same bits on every machine and with every compiler. A failure here alone means that the build contracts
// or reorders floating-point operations: look at its flags.
TEST_P(EveryRule, ComputesTheSameBitsEverywhere) {
  static const std::map<std::string, std::uint64_t> kPinned = {
      {"sgd", 0xaea486244f4236b3ULL},
      {"adagrad", 0x383c57271ecb97a9ULL},
      {"adadelta", 0x42b6bc1226a8457fULL},
      {"adam", 0x4d7e1debc49e432cULL},
      {"amsgrad", 0x97dd88a2359b4243ULL},
      {"momentum", 0xa5cde5299a590050ULL},
      {"moving_average", 0x73efbe958b7b4e4fULL},
      {"rmsprop", 0xa3e2cbc227c6c522ULL},
      {"rmspropv2", 0x56cff1517e8f37e8ULL},
      {"ftrl", 0xf238c23ddb8509ebULL},
      {"group_ftrl", 0x3ef18e390b16551bULL},
      {"group_adagrad", 0xd49c78ff610a85dfULL},
      {"dynamic_wd_adagrad", 0xde921c8f18eee356ULL},
      {"batch_softmax", 0xda638bb27b8178d8ULL},
  };
  const SliceConfig config = lively(GetParam(), dim_for(GetParam(), 17));
  Row row(config, random_floats(config.dim, 1));
  std::uint64_t digest = 0;
  for (std::uint32_t step = 1; step <= 10; ++step) {
    row.step(random_floats(config.dim, step), 0.1F, 2 * step);
    for (const float word : row.words()) digest = scramble(digest ^ std::bit_cast<std::uint32_t>(word));
  }
  EXPECT_EQ(digest, kPinned.at(GetParam()));
}

// Many rows of two slices together, wrapped or not: as each slice on its own.
TEST_P(EveryRule, ABatchOfSlicesIsItsRowsOneByOne) {
  constexpr std::size_t kRows = 150;
  const std::uint32_t dims[] = {3, dim_for(GetParam(), 9)};
  for (const bool wrapped : {false, true}) {
    SliceConfig configs[] = {lively("adam", dims[0]), lively(GetParam(), dims[1])};
    if (wrapped) configs[1].stochastic_rounding = true, configs[1].delay_lambda = 0.3F;
    const std::unique_ptr<Optimizer> optimizers[] = {make_optimizer(configs[0]), make_optimizer(configs[1])};
    const std::size_t width = dims[0] + dims[1];
    const std::size_t offsets[] = {width, width + optimizers[0]->state_words()};
    const std::size_t stride = offsets[1] + optimizers[1]->state_words() + 1;
    const Floats start = random_floats(kRows * stride, 8);
    const Floats grads = random_floats(kRows * width, 9);
    const Floats latest = random_floats(kRows * width, 10);

    const auto run = [&](std::size_t at_once) {
      Floats rows = start;
      std::vector<RowWords> row_starts;
      std::vector<const float*> grad_starts, latest_starts;
      std::vector<std::int64_t> ids;
      for (std::size_t i = 0; i < kRows; ++i) {
        row_starts.push_back({.values = rows.data() + i * stride, .state = rows.data() + i * stride});
        grad_starts.push_back(grads.data() + i * width);
        latest_starts.push_back(latest.data() + i * width);
        ids.push_back(static_cast<std::int64_t>(i * 1000));
        for (int k = 0; k < 2; ++k) optimizers[k]->init(row_starts[i].state + offsets[k]);
      }
      for (int k = 0; k < 2; ++k) {
        for (std::size_t i = 0; i < kRows; i += at_once) {
          optimizers[k]->step({.count = std::min(at_once, kRows - i),
                               .end = kRows - i,
                               .rows = &row_starts[i],
                               .grads = &grad_starts[i],
                               .latest = &latest_starts[i],
                               .ids = &ids[i],
                               .value_offset = k == 0 ? 0 : dims[0],
                               .state_offset = offsets[k]},
                              {0.1F, 6, 11});
        }
      }
      return rows;
    };
    const Floats expected = run(1);
    EXPECT_TRUE(same_bits(run(kRows), expected));
    for (std::size_t i = 0; i < kRows; ++i)
      EXPECT_EQ(expected[i * stride + stride - 1], start[i * stride + stride - 1]);
  }
}

}  // namespace
}  // namespace engine
