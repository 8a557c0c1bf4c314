// config.h: the settings of a table as plain data. The Python specs are turned into these.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace engine {

// A named part with numeric settings, for example {"adagrad", {{"initial_accumulator_value", 0.1}}}.
// Booleans are 0 or 1. Every setting of a kind must be present: defaults live in the Python specs.
struct PartConfig {
  std::string kind;
  std::map<std::string, double> settings;
};

struct SliceConfig {
  std::uint32_t dim = 0;
  PartConfig optimizer;
  // Wrappers around the optimizer, applied by the same slice only.
  float delay_lambda = 0.0F;         // delay compensation; 0 = off
  bool stochastic_rounding = false;  // round the weights to fp16 values after each step
  PartConfig initializer;
  PartConfig compressor;
};

}  // namespace engine
